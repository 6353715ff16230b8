"""Reads what PyTorch's Flight Recorder wrote of one rank, as a pickle or as JSON. Format:
``c10d/FlightRecorderDetail.hpp``.

One entry per collective, send or receive, also of gloo and others. ``start_ns`` is when the host asked for it,
``end_ns`` when the watchdog noticed its end: both epoch, and neither is the time on the GPU. ``count`` is what NCCL is
called with: elements of the input, of a reduce-scatter, scatter or receive those of the output. ``bytes`` are those of
the larger side.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from graphlink.errors import InputError
from graphlink.model import I32, NOWHERE
from graphlink.nccl.read.names import function_of, message_bytes, natural, rank_in_name, small, text_of
from graphlink.nccl.read.pickled import MOST_BYTES, Refused, load
from graphlink.nccl.read.records import Calls, Communicator, Dump, table
from graphlink.process import gc_paused
from graphlink.read.columns import Parts, Strings, ints, loose, to_int_or_none
from graphlink.read.comms import rank_list
from graphlink.read.kinds import PICKLED, DumpKind
from graphlink.read.source import open_source
from graphlink.read.stream import ArrayReader
from graphlink.tables import tuples

_PEER: Final = re.compile(r"\S*:?(?:send (\d{1,7})->(\d{1,7})|recv (\d{1,7})<-(\d{1,7}))")
_OF_OUTPUT: Final = frozenset({"reducescatter", "scatter", "recv"})
_MOST_ENTRY_BYTES: Final = 1 << 22  # of JSON
_MOST_COUNT: Final = (1 << 63) - 1
_MOST_DIMENSIONS: Final = 64
_MOST_MS: Final = 1e12
_WORLD: Final = "default_pg"
_NO_ENTRY: Final = "entries that are no objects"
_SMALLER: Final = "record with a smaller TORCH_FR_BUFFER_SIZE, or without stack traces"
_RECORD_AGAIN: Final = "copy or record it again, with torch._C._distributed_c10d._dump_fr_trace()"


Entry = dict[str, Any]


def read_flight_recorder(path: Path) -> Dump:
    """Read the dump at ``path``. A pickle is never run; memory is a few times the file, up to a bound.

    Raises:
        InputError: the file cannot be read, is no dump, is damaged or cut, is too large, or its pickle asks for more
            than plain values.
    """
    with open_source(path) as source:
        is_pickle = PICKLED.match(source.read(2)) is not None
    recording = _Recording()
    with gc_paused():
        around = _read_pickle(path, recording) if is_pickle else _read_json(path, recording)
    return recording.dump(path, around)


def _read_pickle(path: Path, recording: _Recording) -> dict[str, Any]:
    with open_source(path) as source:
        text = source.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise InputError(f"the pickle has more than {MOST_BYTES >> 20} MB", path=path, todo=_SMALLER)
        try:
            value = load(text)
        except Refused as problem:
            what, at = problem.args
            raise InputError(what, path=path, where=source.where(at), todo=_RECORD_AGAIN) from None
    whole = value if isinstance(value, dict) else {"entries": value}  # PyTorch 2.2 wrote the bare list
    entries = whole.pop("entries", [])
    if not isinstance(entries, list) or not (entries or "pg_config" in whole):
        raise InputError(
            "the pickle is no dump of the Flight Recorder: it has no entries", path=path, todo=_RECORD_AGAIN
        )
    known = [entry for entry in entries if isinstance(entry, dict)]
    recording.left_out[_NO_ENTRY] += len(entries) - len(known)
    recording.add(known)
    return whole


def _read_json(path: Path, recording: _Recording) -> dict[str, Any]:
    with open_source(path) as source:
        try:
            array = ArrayReader(source, ("entries",), max_element_bytes=_MOST_ENTRY_BYTES)
        except InputError:
            whole = _without_entries(path)
            if whole is None:
                raise
            return whole
        for block in array.blocks(Entry):
            recording.left_out[_NO_ENTRY] += len(block.bad)
            recording.add(block.rows)
        return {key: loose(raw) for key, raw in array.around.items()}


def _without_entries(path: Path) -> dict[str, Any] | None:
    """Return the JSON of a recorder that recorded nothing: it leaves the key out."""
    with open_source(path) as source:
        whole = loose(msgspec.Raw(source.read(_MOST_ENTRY_BYTES)))
    return whole if isinstance(whole, dict) and "pg_config" in whole else None


class _Recording:
    """The calls read so far, in the order of the file. ``descs``: of groups by name, in the order of ``numbers``."""

    def __init__(self) -> None:
        self.strings = Strings()
        self.numbers: dict[str, int] = {}
        self.descs: dict[str, str] = {}
        self.left_out: Counter[str] = Counter()
        self.calls = Parts()

    def add(self, entries: list[Entry]) -> None:
        named = [entry for entry in entries if isinstance(entry.get("profiling_name"), str)]
        self.left_out["entries without a name"] += len(entries) - len(named)
        functions = [function_of(entry["profiling_name"]) for entry in named]
        pairs = [_ranks_in(entry["profiling_name"]) for entry in named]
        sizes = [(_elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))) for entry in named]
        dtypes = [_dtype(entry, function) for entry, function in zip(named, functions, strict=True)]
        counts = (
            sides[::-1] if function in _OF_OUTPUT else sides for sides, function in zip(sizes, functions, strict=True)
        )
        largest = natural([max((side for side in sides if side is not None), default=None) for sides in sizes])
        self.calls.add(
            communicator=np.array([self._group(entry) for entry in named], np.int32),
            own=small([own for own, _ in pairs]),
            function=self.strings.column(functions),
            peer=small([peer for _, peer in pairs]),
            count=natural([first or second for first, second in counts]),
            dtype=self.strings.column(dtypes),
            bytes=message_bytes(largest, dtypes),
            seq=natural([_sequence_number(entry) for entry in named]),
            start_ns=np.maximum(ints([entry.get("time_created_ns") for entry in named], 0), 0),
            end_ns=np.maximum(ints([entry.get("time_discovered_completed_ns") for entry in named], 0), 0),
            exec_ns=np.array([_ns_of_ms(entry.get("duration_ms")) for entry in named], np.int64),
        )

    def _group(self, entry: Entry) -> int:
        given = entry.get("process_group")
        name, desc = given[:2] if isinstance(given, (list, tuple)) and len(given) >= 2 else (given, "")
        if not isinstance(name, str):
            name = "" if entry.get("pg_id") is None else str(to_int_or_none(entry.get("pg_id")))
        self.descs.setdefault(name, text_of(desc))
        return self.numbers.setdefault(name, len(self.numbers))

    def dump(self, path: Path, around: dict[str, Any]) -> Dump:
        listed = _listed_groups(around.get("pg_config"))
        for name, group in listed.items():
            if name or name in self.descs:
                self.descs[name] = self.descs.get(name) or group.desc
        communicators = [
            replace(listed.get(name, Communicator(name, name)), desc=desc) for name, desc in self.descs.items()
        ]
        communicator = self.calls.column("communicator")
        rank = _own_rank(communicators, communicator, self.calls.column("own"))
        if rank is None:
            rank = rank_in_name(path)
        ranks = np.full(self.calls.count, NOWHERE if rank is None else rank)
        left_out = dict(+self.left_out)
        return Dump(
            path=str(path),
            kind=DumpKind.FLIGHT_RECORDER,
            rank=rank,
            strings=tuple(self.strings),
            communicators=tuple(communicators),
            calls=table(Calls, self.calls.count, communicator=communicator, rank=ranks, **self.calls.columns()),
            events=self.calls.count + sum(left_out.values()),
            left_out=left_out,
            warnings=_version_warning(around.get("version")),
        )


def _own_rank(communicators: Sequence[Communicator], communicator: I32, own: I32) -> int | None:
    """Find the global rank, which no field says: the name of a send or receive has the rank in its group, ``own``, and
    the rank is a member of all groups that it calls in. None where neither tells, or they disagree."""
    found = set()
    for row, place in set(tuples(communicator, own)):
        ranks = communicators[row].ranks
        if place != NOWHERE and ranks is not None and place < len(ranks):
            found.add(ranks[place])
        elif place != NOWHERE and ranks is None and communicators[row].desc == _WORLD:
            found.add(place)
    members = [set(ranks) for row in np.unique(communicator).tolist() if (ranks := communicators[row].ranks)]
    common = set.intersection(*members) if members else set()
    found |= common if len(common) == 1 else set()
    return found.pop() if len(found) == 1 else None


def _version_warning(version: object) -> tuple[str, ...]:
    if isinstance(version, str) and version.startswith("2."):
        return ()
    said = "another one" if isinstance(version, str) else "not said"
    return (f"its version is {said}: 2.x is known, other fields may be missing",)


# Each value of an entry may be anything: what is not what it should be counts as not recorded.


def _listed_groups(config: object) -> dict[str, Communicator]:
    """Return the groups of ``pg_config``: ``{name: {desc, ranks}}``, the same under each rank, or a list of ``{name,
    desc, ranks}``.

    Ranks are a list or its text.
    """
    pairs: list[tuple[Any, Any]] = []
    for name, group in config.items() if isinstance(config, dict) else ():
        pairs += [(name, group)] if not isinstance(group, dict) or "ranks" in group else group.items()
    for group in config if isinstance(config, list) else ():
        pairs += [(group.get("name", group.get("uid")), group)] if isinstance(group, dict) else []
    return {
        str(name): _listed(str(name), group)
        for name, group in pairs
        if isinstance(name, (str, int)) and isinstance(group, dict)
    }


def _listed(name: str, group: dict[str, Any]) -> Communicator:
    ranks = rank_list(group.get("ranks")) or None
    return Communicator(name, name, text_of(group.get("desc")), len(ranks) if ranks else None, ranks)


def _elements(sizes: object) -> int | None:
    """Count the elements of all tensors of ``[[2, 3], [4]]``; None where it lists none."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        return None
    if not all(
        isinstance(shape, (list, tuple)) and all(type(size) is int and 0 <= size < _MOST_COUNT for size in shape)
        for shape in sizes
    ):
        return None
    total = sum(math.prod(shape[:_MOST_DIMENSIONS]) for shape in sizes)
    return total if total < _MOST_COUNT else None


def _ranks_in(name: str) -> tuple[str | None, str | None]:
    """Return the own rank and that of the peer in the name of a send or receive, as texts."""
    peer = _PEER.fullmatch(name)
    return (peer[1] or peer[3], peer[2] or peer[4]) if peer else (None, None)


def _dtype(entry: Entry, function: str) -> str:
    """Return the type of the side that counts, or of the one that has some."""
    taken, given = _first_text(entry.get("input_dtypes")), _first_text(entry.get("output_dtypes"))
    return (given or taken) if function in _OF_OUTPUT else (taken or given)


def _first_text(values: object) -> str:
    return text_of(values[0]) if isinstance(values, (list, tuple)) and values else ""


def _sequence_number(entry: Entry) -> object:
    """Return the number of a message or a collective; ``seq_id``: PyTorch 2.3."""
    collective = entry.get("seq_id", entry.get("collective_seq_id"))
    return entry.get("p2p_seq_id") if entry.get("is_p2p") is True else collective


def _ns_of_ms(ms: object) -> int:
    return round(ms * 1_000_000) if isinstance(ms, (int, float)) and 0 < ms < _MOST_MS else 0
