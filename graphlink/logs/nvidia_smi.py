"""Logs of nvidia-smi: what ``--query-gpu`` writes as csv, of any columns, and pasted screens.

The header decides the columns. Without one a log is refused: what a column holds is not guessed.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

from msgspec.structs import replace

from graphlink.errors import InputError
from graphlink.logs.lines import Sum, Window, lines_of, moment, noted_zone, zones
from graphlink.logs.records import Figure, GpuLog, InRecording, SmiLog

QUERY: Final = (
    "nvidia-smi "
    "--query-gpu=timestamp,index,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu "
    "--format=csv -l 1"
)
MOST_GPUS: Final = 1 << 16
FIGURES: Final = ("utilisation", "used", "total", "power", "temperature")
_COLUMNS: Final = {
    "timestamp": "time", "index": "index", "name": "name", "gpu_name": "name", "uuid": "id", "gpu_uuid": "id",
    "pci.bus_id": "id", "gpu_bus_id": "id", "hostname": "host", "host": "host", "node": "host",
    "utilization.gpu": "utilisation", "memory.used": "used", "memory.total": "total", "power.draw": "power",
    "power.draw.average": "power", "power.draw.instant": "power", "temperature.gpu": "temperature",
}  # fmt: skip
_UNITS: Final = {  # by figure: what a unit is times; the first is meant where none is written
    "utilisation": {"%": 1.0},
    "used": {
        "mib": 1.0,
        "mb": 1e6 / (1 << 20),
        "gib": 1024.0,
        "gb": 1e9 / (1 << 20),
        "kib": 1 / 1024,
        "b": 1 / (1 << 20),
    },
    "power": {"w": 1.0, "mw": 1e-3, "kw": 1e3},
    "temperature": {"c": 1.0, "°c": 1.0},
}
_UNITS["total"] = _UNITS["used"]
_CELL: Final = re.compile(r"(-?\d{1,15})(?:([.,])(\d{1,9}))?\s*([^\d\s]\S{0,9})?")
_ABSENT: Final = re.compile(r"\[.{0,60}\]|n/a|err!|not supported|unknown error|-|", re.IGNORECASE)
_FIGURE: Final = re.compile(r"utilization\.gpu|memory\.|power\.draw|temperature\.gpu", re.IGNORECASE)
_HEAD: Final = re.compile(r"([a-z][a-z0-9_.]{1,63})\s*(?:\[([^\]]{1,8})\])?", re.IGNORECASE)
_HOST: Final = re.compile(r"\[?([A-Za-z0-9][\w.-]{0,63})\]?:\s(.*)")  # as pdsh and clush put it in front
_TIME: Final = re.compile(r"[\d/.:T +Z-]{8,40}")
_PLAIN: Final = re.compile(r"[\w.,:;/+()\[\] -]{1,64}")
_QUOTED: Final = re.compile(r"^\s*(?:>\s?)+")
_PARTS: Final = {  # of a screen, by their first line
    "gpus": re.compile(r"\|\s*NVIDIA-SMI\s"),
    "MIG devices": re.compile(r"\|\s*MIG devices:"),
    "processes": re.compile(r"\|\s*Processes:"),
}
_DATE: Final = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}")
_GPU: Final = re.compile(
    r"\|\s*(\d{1,4})\s+(\S.{0,60}?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:"
)
_STATE: Final = re.compile(
    r"\|\s*(?:N/A|ERR!|\d+%)\s+(N/A|ERR!|\d{1,3}C)\s+(?:N/A|P\d{1,2}|ERR!)?\s*(N/A|ERR!|\d{1,5}W)?\s*(?:/|$|\|)"
)
_MEMORY: Final = re.compile(r"\|\s*(\d{1,9})MiB\s*/\s*(\d{1,9})MiB\s*\|")
_BUSY: Final = re.compile(r"MiB\s*\|\s*(N/A|ERR!|\d{1,3}%)")
_OTHER: Final = (
    (re.compile(r"#\s*gpu\s+"), "the output of nvidia-smi dmon or pmon"),
    (re.compile(r"=+NVSMI LOG=+"), "the output of nvidia-smi -q"),
    (re.compile(r"<\?xml|<!DOCTYPE nvidia_smi|<nvidia_smi_log"), "the output of nvidia-smi -q -x"),
    (re.compile(r"GPU \d+: .*\(UUID: "), "the output of nvidia-smi -L"),
    (re.compile(r"NVIDIA-SMI has failed"), "a message that nvidia-smi failed"),
)


@dataclass(slots=True)
class _Gpu:
    name: str | None = None
    samples: int = 0
    times: list[str] = field(default_factory=list)  # the first, and the last
    sums: dict[str, Sum] = field(default_factory=lambda: {name: Sum() for name in FIGURES})

    def sample(self, time: str | None) -> None:
        self.samples += 1
        if time:
            self.times = [*self.times[:1], time]


_Key = tuple[str, int]  # which GPU a sample is of: host, and place among those of its host


@dataclass(frozen=True, slots=True)
class _Header:
    """The columns of a csv: what each holds ("" for what is not asked for), and the unit that it is in."""

    roles: tuple[str, ...]
    units: tuple[str, ...]
    comma: str


class _Reader:
    """Reads one file; ``host`` is for lines that name none. ``within``: only samples from one to another time of the
    log count, in ns.
    """

    def __init__(self, path: Path, host: str, within: tuple[int, int] | None = None):
        self.path, self.host, self.within = path, host, within
        self.gpus: dict[_Key, _Gpu] = {}
        self.unread: Counter[str] = Counter()
        self.header: _Header | None = None
        self.screens = 0
        self.no_header = 0
        self.told_apart = True
        self._orders: dict[str, dict[str, int]] = {}  # by host and what identifies a GPU: its place
        self._on_screen: dict[str, _Screen] = {}

    def samples(self) -> list[GpuLog]:
        """Return the GPUs with samples."""
        for text, ended in lines_of(self.path, self.unread):
            self._line(text, ended=ended)
        for screen in self._on_screen.values():
            self._close(screen)
        return [_log(key, self.gpus[key]) for key in sorted(self.gpus) if self.gpus[key].samples or self.within is None]

    def _outside(self, time: str | None) -> bool:
        if self.within is None:
            return False
        at = None if time is None else moment(time)
        return at is None or not self.within[0] <= at.ns <= self.within[1]

    def read(self) -> SmiLog:
        gpus = self.samples()
        if not self.gpus:
            raise self._refusal()
        return SmiLog(
            path=str(self.path),
            form="screen" if self.header is None else "csv",
            told_apart=self.told_apart,
            gpus=gpus,
            unread=dict(sorted(self.unread.items())),
        )

    def _refusal(self) -> InputError:
        if self.header is not None or self.screens:
            why = (
                ", ".join(f"{count:,} {reason}" for reason, count in self.unread.items())
                or "nothing follows its header"
            )
            return InputError(
                f"holds no sample of a GPU that can be read: {why}", path=self.path, todo=f"record again with {QUERY}"
            )
        if self.no_header:
            return InputError(
                "has no header line, so what its columns hold is unknown", path=self.path, todo=f"record with {QUERY}"
            )
        return InputError(
            "is neither csv of nvidia-smi nor a pasted screen of it", path=self.path, todo=f"record with {QUERY}"
        )

    def _line(self, text: str, *, ended: bool) -> None:
        text = _QUOTED.sub("", text).strip()
        if not text:
            return
        if self.header is None and not self.screens:
            self._refuse_other(text)
        host = self.host
        prefixed = _HOST.fullmatch(text)
        if prefixed is not None:
            host, text = prefixed[1], prefixed[2].strip()
        if text[:1] in ("|", "+") or _DATE.fullmatch(text):
            self._screen_line(self._on_screen.setdefault(host, _Screen(host)), text)
        elif (header := _header(text)) is not None:
            self.header = header
            self.told_apart &= bool({"index", "id"} & {*header.roles})
        elif self.header is not None:
            self._row(self.header, host, text, ended=ended)
        elif self.screens:
            self.unread["other text"] += 1
        else:
            cells = [cell.strip() for cell in text.split(",")]
            self.no_header += len(cells) > 1 and any(_CELL.fullmatch(cell) for cell in cells)
            self.unread["before a header"] += 1

    def _refuse_other(self, text: str) -> None:
        other = next((what for pattern, what in _OTHER if pattern.match(text)), None)
        if other is not None:
            raise InputError(f"is {other}, which is not read", path=self.path, todo=f"record with {QUERY}")

    def _row(self, header: _Header, host: str, text: str, *, ended: bool) -> None:
        cells = _cells(text, header)
        if cells is None:
            self.unread["wrong number of cells"] += 1
            return
        if not ended and cells[-1][-1:].isdigit():
            self.unread["cut at the end of the file"] += 1  # of the last number digits may be missing
            return
        of = dict(zip(header.roles, cells, strict=True))
        named = of.get("host", "")
        order = self._order(named if _PLAIN.fullmatch(named) else host, of)
        if order is None:
            self.unread["index is no number"] += 1
            return
        if self._outside(of.get("time")):
            return
        gpu = self._gpu(order)
        self._name(gpu, of.get("name"))
        time = of.get("time")
        known = time is not None and _TIME.fullmatch(time) is not None
        gpu.sample(time if known else None)
        if time is not None and not known:
            self.unread["time is none"] += 1
        for role, unit, cell in zip(header.roles, header.units, cells, strict=True):
            if role in FIGURES:
                self._figure(gpu.sums[role], role, cell, unit)

    def _order(self, host: str, of: dict[str, str]) -> _Key | None:
        """Return which GPU a row is of: by index, else by what identifies it, in the order in which they come."""
        if "index" in of:
            return (host, int(of["index"])) if re.fullmatch(r"\d{1,5}", of["index"]) else None
        known = self._orders.setdefault(host, {})
        return host, known.setdefault(of.get("id", ""), len(known))

    def _gpu(self, key: _Key) -> _Gpu:
        if key not in self.gpus:
            if len(self.gpus) >= MOST_GPUS:
                raise InputError(f"names more than {MOST_GPUS:,} GPUs", path=self.path, todo="give the log of one run")
            self.gpus[key] = _Gpu()
        return self.gpus[key]

    def _name(self, gpu: _Gpu, name: str | None) -> None:
        if name and gpu.name is None and _PLAIN.fullmatch(name) and not _ABSENT.fullmatch(name):
            gpu.name = name

    def _figure(self, to: Sum, role: str, cell: str, unit: str) -> None:
        if _ABSENT.fullmatch(cell):
            to.add(None)
            return
        value = _value(cell, role, unit)
        if value is None:
            self.unread[f"{_WORDS[role]} cannot be read"] += 1
        else:
            to.add(value)

    def _screen_line(self, screen: _Screen, text: str) -> None:
        part = next((name for name, first in _PARTS.items() if first.match(text)), None)
        if _DATE.fullmatch(text):
            screen.time = text
        elif part is not None:
            self._close(screen)
            self.screens += part == "gpus"
            screen.part = part
        elif text[0] == "+" or re.match(r"\|[=\-+]", text):
            self._close(screen)
        elif screen.part not in ("", "gpus") and re.match(r"\|\s*\d+\s", text):
            self.unread[f"row of {screen.part}"] += 1
        elif (row := _GPU.match(text)) is not None:
            self._close(screen)
            self.screens += screen.part == ""  # pasted without its head
            screen.part = "gpus"
            screen.open = (screen.host, int(row[1]))
            self._name(self._gpu(screen.open), row[2])
        elif screen.open is not None and screen.part == "gpus":
            self._state_row(screen, screen.open, text)
        elif screen.part == "gpus" and re.match(r"\|\s*\d{1,4}\s", text):
            self.unread["cut row of a screen"] += 1

    def _state_row(self, screen: _Screen, key: _Key, text: str) -> None:
        """Read the second row of a GPU: temperature, power, memory and utilisation, as far as it is not cut."""
        if "MiB" not in text and not _STATE.match(text):
            return
        screen.open = None
        if self._outside(screen.time):
            return
        gpu = self.gpus[key]
        gpu.sample(screen.time)
        state, memory, busy = _STATE.match(text), _MEMORY.search(text), _BUSY.search(text)
        of = {
            "temperature": state[1] if state else None,
            "power": state[2] if state else None,
            "used": memory[1] if memory else None,
            "total": memory[2] if memory else None,
            "utilisation": busy[1] if busy else None,
        }
        for role, cell in of.items():
            if cell is None:
                self.unread[f"{_WORDS[role]} cannot be read"] += 1
            else:
                self._figure(gpu.sums[role], role, cell, "")

    def _close(self, screen: _Screen) -> None:
        """End the row of a GPU whose second line is missing."""
        if screen.open is not None:
            self.unread["cut row of a screen"] += 1
            if not self.gpus[screen.open].samples:
                del self.gpus[screen.open]
            screen.open = None


@dataclass(slots=True)
class _Screen:
    """Where on the screen of a host the reader is: its ``part``, and the GPU whose second row is awaited."""

    host: str
    part: str = ""
    time: str | None = None
    open: _Key | None = None


_WORDS: Final = dict(zip(FIGURES, ("utilisation", "memory used", "memory total", "power", "temperature"), strict=True))


def read_nvidia_smi(paths: list[Path]) -> list[SmiLog]:
    """Read logs of nvidia-smi; for hosts see ``hosts_of``.

    Raises:
        InputError: a file cannot be opened, or is no log of nvidia-smi that can be read.
    """
    return [_Reader(path, host).read() for path, host in zip(paths, hosts_of(paths), strict=True)]


def joined_by_time(log: SmiLog, host: str, window: Window) -> SmiLog:
    """Add the samples that lie in the window, or why that cannot be told. The file is read once more.

    Raises:
        InputError: it cannot be opened any more.
    """
    times = [(moment(gpu.from_time or ""), moment(gpu.to_time or ""), gpu.samples) for gpu in log.gpus]
    known = [(begin, end, samples) for begin, end, samples in times if begin is not None and end is not None]
    if not known:
        return replace(log, not_joined="its samples have no times, or such as are not read")
    first = min((begin for begin, _, _ in known), key=lambda at: at.ns)
    last = max((end for _, end, _ in known), key=lambda at: at.ns)
    between_ns = max((end.ns - begin.ns) // max(samples - 1, 1) for begin, end, samples in known)
    found = zones(first, last, window, between_ns)
    noted = noted_zone(window)
    by: Literal["log", "execution trace", "cover"] = "log" if first.zoned else "cover"
    if len(found) > 1 and noted in found:
        found, by = [noted], "execution trace"
    if len(found) != 1:
        why = (
            f"it covers the recording in {len(found)} time zones"
            if found
            else "it covers the recording in no time zone"
        )
        return replace(log, not_joined=why)
    ahead_ns = 0 if first.zoned else found[0] * 60 * 10**9
    within = (window.began_ns + ahead_ns, window.ended_ns + ahead_ns)
    inside = _Reader(Path(log.path), host, within).samples()
    return replace(
        log,
        in_recording=InRecording(
            zone_minutes=found[0], zone_by=by, recorded_ns=window.ended_ns - window.began_ns, gpus=inside
        ),
    )


def hosts_of(paths: Sequence[Path]) -> list[str]:
    """Return the host of each log that names none: its file's name, or its path where two files have one name."""
    names = Counter(_stem(path) for path in paths)
    return [_stem(path) if names[_stem(path)] == 1 else str(path) for path in paths]


def _stem(path: Path) -> str:
    return re.sub(r"(?:\.(?:gz|zst|csv|txt|log|out))+$", "", path.name) or path.name


def _header(text: str) -> _Header | None:
    """Return the columns that a line names; None if it is no header."""
    if _FIGURE.search(text) is None:
        return None
    comma = max(",;\t", key=text.count)
    names = [name.strip().strip('"') for name in text.split(comma)]
    found = [_HEAD.fullmatch(name) for name in names]
    roles = [_COLUMNS.get(one[1].lower(), "") if one else "" for one in found]
    roles = [role if role not in roles[:k] else "" for k, role in enumerate(roles)]
    if not {*roles} & {*FIGURES} or any(one is None and name for one, name in zip(found, names, strict=True)):
        return None
    units = tuple((one[2] or "") if one else "" for one in found)
    return _Header(tuple(role or f"-{k}" for k, role in enumerate(roles)), units, comma)


def _cells(text: str, header: _Header) -> list[str] | None:
    """Split a row as its header is split; None if it has another number of cells. A comma without a space may be one of
    decimals.
    """
    if '"' in text:
        cells = next(csv.reader([text], delimiter=header.comma, skipinitialspace=True), [])
    else:
        cells = text.split(header.comma)
        if len(cells) != len(header.roles) and header.comma == ",":
            cells = text.split(", ")
    return [cell.strip() for cell in cells] if len(cells) == len(header.roles) else None


@lru_cache(maxsize=4096)  # a log repeats few texts
def _value(cell: str, role: str, unit: str) -> float | None:
    """Return the figure of a cell in the unit of its role; None if it is none, or its comma may be one of thousands."""
    found = _CELL.fullmatch(cell)
    if found is None or (found[2] == "," and len(found[3]) == 3):
        return None
    units = _UNITS[role]
    factor = units.get((found[4] or unit).lower(), None) if found[4] or unit else 1.0
    if factor is None:
        return None
    value = float(f"{found[1]}.{found[3] or 0}") * factor
    plausible = 0 <= value <= 100 if role == "utilisation" else value >= 0 or role == "temperature"
    return value if plausible else None


def _figure(values: Sum) -> Figure | None:
    if not values.samples + values.absent:
        return None
    most = round(values.largest, 3) if values.samples else None
    return Figure(mean=values.mean(3), max=most, samples=values.samples, absent=values.absent)


def _log(key: _Key, gpu: _Gpu) -> GpuLog:
    figures = {name: _figure(values) for name, values in gpu.sums.items()}
    total = figures["total"]
    return GpuLog(
        host=key[0],
        gpu=key[1],
        name=gpu.name,
        samples=gpu.samples,
        from_time=gpu.times[0] if gpu.times else None,
        to_time=gpu.times[-1] if gpu.times else None,
        utilisation_percent=figures["utilisation"],
        memory_used_mib=figures["used"],
        memory_total_mib=total.max if total else None,
        power_w=figures["power"],
        temperature_c=figures["temperature"],
    )
