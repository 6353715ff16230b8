"""Reads what PyTorch's Flight Recorder wrote of one rank, as a pickle or as JSON. Format: ``c10d/FlightRecorderDetail.hpp``.

One entry a collective, send or receive, also of gloo and others. ``start_ns`` is when the host asked for it, ``end_ns`` when the watchdog
noticed its end: both epoch, and neither is the time on the GPU. ``count`` is what NCCL is called with: elements of the input, of a
reduce-scatter, scatter or receive those of the output. ``bytes`` are those of the larger side.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from graphlink.errors import InputError
from graphlink.model import NOWHERE
from graphlink.nccl.read.events import small
from graphlink.nccl.read.names import function_of, message_bytes, natural, rank_in_name
from graphlink.nccl.read.pickled import MOST_BYTES, Refused, load
from graphlink.nccl.read.records import Calls, Clock, Communicator, Dump, table
from graphlink.read.columns import Strings, ints, loose, to_int_or_none
from graphlink.read.comms import rank_list
from graphlink.read.nccl_kinds import PICKLE, DumpKind
from graphlink.read.source import open_source
from graphlink.read.stream import ArrayReader, gc_paused

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
_COLUMNS: Final = (
    "communicator", "own", "function", "peer", "count", "larger", "dtype", "seq", "start_ns", "end_ns", "exec_ns", "state",
)  # fmt: skip


class Entry(msgspec.Struct, gc=False):
    profiling_name: Any = None
    process_group: Any = None
    pg_id: Any = None
    collective_seq_id: Any = None
    p2p_seq_id: Any = None
    seq_id: Any = None  # PyTorch 2.3
    is_p2p: Any = None
    input_sizes: Any = None
    output_sizes: Any = None
    input_dtypes: Any = None
    output_dtypes: Any = None
    time_created_ns: Any = None
    time_discovered_completed_ns: Any = None
    duration_ms: Any = None
    state: Any = None


_FIELDS: Final = Entry.__struct_fields__


def read_flight_recorder(path: Path) -> Dump:
    """The dump at ``path``. A pickle is never run; memory is a few times the file, up to a bound.

    Raises:
        InputError: the file cannot be read, is no dump, is damaged or cut, is too large, or its pickle asks for more than plain values.
    """
    with open_source(path) as source:
        is_pickle = PICKLE.match(source.read(2)) is not None
    recording = _Recording(path)
    with gc_paused():
        around = _read_pickle(path, recording) if is_pickle else _read_json(path, recording)
    return recording.dump(around)


def _read_pickle(path: Path, recording: _Recording) -> dict[str, Any]:
    with open_source(path) as source:
        text = source.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise InputError(f"the pickle has more than {MOST_BYTES >> 20} MB", path=path, todo=_SMALLER)
        try:
            value = load(text)
        except Refused as problem:
            raise InputError(problem.what, path=path, where=source.where(problem.at), todo=_RECORD_AGAIN) from None
    whole = value if isinstance(value, dict) else {"entries": value}  # PyTorch 2.2 wrote the bare list
    entries = whole.pop("entries", [])
    if not isinstance(entries, list) or not (entries or "pg_config" in whole):
        raise InputError("the pickle is no dump of the Flight Recorder: it has no entries", path=path, todo=_RECORD_AGAIN)
    known = [entry for entry in entries if isinstance(entry, dict)]
    recording.left_out[_NO_ENTRY] += len(entries) - len(known)
    recording.add([Entry(**{name: entry.get(name) for name in _FIELDS}) for entry in known])
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
    """The JSON of a recorder that recorded nothing: it leaves the key out."""
    with open_source(path) as source:
        whole = loose(msgspec.Raw(source.read(_MOST_ENTRY_BYTES)))
    return whole if isinstance(whole, dict) and "pg_config" in whole else None


class _Recording:
    """The calls read so far, in the order of the file."""

    def __init__(self, path: Path):
        self.path = path
        self.strings = Strings()
        self.descs: dict[str, str] = {}  # by name of a group, in the order of the communicators
        self.left_out: Counter[str] = Counter()
        self.columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}

    def add(self, entries: list[Entry]) -> None:
        named = [entry for entry in entries if isinstance(entry.profiling_name, str)]
        self.left_out["entries without a name"] += len(entries) - len(named)
        for entry in named:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        function = function_of(entry.profiling_name)
        peer = _PEER.fullmatch(entry.profiling_name)
        own, other = (number for number in peer.groups() if number is not None) if peer else (None, None)
        taken, given = _elements(entry.input_sizes), _elements(entry.output_sizes)
        of_output = function in _OF_OUTPUT
        count = (given or taken) if of_output else (taken or given)
        dtype = _first_text(entry.output_dtypes) if of_output else _first_text(entry.input_dtypes)
        row = {
            "communicator": self._group(entry),
            "own": to_int_or_none(own),
            "function": function,
            "peer": to_int_or_none(other),
            "count": count,
            "larger": max((side for side in (taken, given) if side is not None), default=None),
            "dtype": dtype or _first_text(entry.input_dtypes) or _first_text(entry.output_dtypes),
            "seq": entry.p2p_seq_id if entry.is_p2p is True else entry.collective_seq_id if entry.seq_id is None else entry.seq_id,
            "start_ns": entry.time_created_ns,
            "end_ns": entry.time_discovered_completed_ns,
            "exec_ns": _ns_of_ms(entry.duration_ms),
            "state": _text_of(entry.state),
        }
        for name, value in row.items():
            self.columns[name].append(value)

    def _group(self, entry: Entry) -> str:
        given = entry.process_group
        name, desc = given[:2] if isinstance(given, (list, tuple)) and len(given) >= 2 else (given, "")
        if not isinstance(name, str):
            name = "" if entry.pg_id is None else str(to_int_or_none(entry.pg_id))
        self.descs.setdefault(name, _text_of(desc))
        return name

    def dump(self, around: dict[str, Any]) -> Dump:
        listed = _listed_groups(around.get("pg_config"))
        for name, group in listed.items():
            if name or name in self.descs:
                self.descs[name] = self.descs.get(name) or group.desc
        communicators = [replace(listed.get(name, Communicator(name, name)), desc=desc) for name, desc in self.descs.items()]
        row = {name: k for k, name in enumerate(self.descs)}
        self.columns["communicator"] = [row[name] for name in self.columns["communicator"]]
        columns, texts = self.columns, self.strings.column
        rows = len(columns["seq"])
        rank = self._own_rank(communicators)
        if rank is None:
            rank = rank_in_name(self.path)
        end_ns = np.maximum(ints(columns["end_ns"], 0), 0)
        calls = table(
            Calls,
            rows,
            communicator=np.array(columns["communicator"], np.int32),
            rank=np.full(rows, NOWHERE if rank is None else rank, np.int32),
            function=texts(columns["function"]),
            peer=small(columns["peer"]),
            count=natural(columns["count"]),
            dtype=texts(columns["dtype"]),
            bytes=message_bytes(natural(columns["larger"]), columns["dtype"]),
            seq=natural(columns["seq"]),
            start_ns=np.maximum(ints(columns["start_ns"], 0), 0),
            end_ns=end_ns,
            exec_ns=np.maximum(ints(columns["exec_ns"], 0), 0),
            state=texts(columns["state"]),
        )
        left_out = {reason: count for reason, count in self.left_out.items() if count}
        return Dump(
            path=str(self.path),
            kind=DumpKind.FLIGHT_RECORDER,
            clock=Clock.EPOCH,
            rank=rank,
            strings=tuple(self.strings),
            communicators=tuple(communicators),
            calls=calls,
            events=rows + sum(left_out.values()),
            paired=int((end_ns > 0).sum()),
            left_out=left_out,
            warnings=_version_warning(around.get("version")),
        )

    def _own_rank(self, communicators: Sequence[Communicator]) -> int | None:
        """The global rank, which no field says: the name of a send or receive has the rank in its group, and the rank is a member of all
        groups that it calls in. None where neither tells, or they disagree.
        """
        found = set()
        for row, own in set(zip(self.columns["communicator"], self.columns["own"], strict=True)):
            ranks = communicators[row].ranks
            if own is not None and ranks is not None and own < len(ranks):
                found.add(ranks[own])
            elif own is not None and ranks is None and communicators[row].desc == _WORLD:
                found.add(own)
        members = [set(communicators[row].ranks or ()) for row in set(self.columns["communicator"]) if communicators[row].ranks]
        common = set.intersection(*members) if members else set()
        found |= common if len(common) == 1 else set()
        return found.pop() if len(found) == 1 else None


def _version_warning(version: object) -> tuple[str, ...]:
    if isinstance(version, str) and version.startswith("2."):
        return ()
    said = f"{version[:20]!r}" if isinstance(version, str) else "not said"
    return (f"its version is {said}: 2.x is known, other fields may be missing",)


# Each value of an entry may be anything: what is not what it should be counts as not recorded.


def _listed_groups(config: object) -> dict[str, Communicator]:
    """Return the groups of ``pg_config``: ``{name: {desc, ranks}}``, the same under each rank, or a list of ``{name, desc, ranks}``.

    Ranks are a list or its text.
    """
    pairs: list[tuple[Any, Any]] = []
    for name, group in config.items() if isinstance(config, dict) else ():
        pairs += [(name, group)] if not isinstance(group, dict) or "ranks" in group else group.items()
    for group in config if isinstance(config, list) else ():
        pairs += [(group.get("name", group.get("uid")), group)] if isinstance(group, dict) else []
    return {str(name): _listed(str(name), group) for name, group in pairs if isinstance(name, (str, int)) and isinstance(group, dict)}


def _listed(name: str, group: dict[str, Any]) -> Communicator:
    ranks = rank_list(group.get("ranks")) or None
    return Communicator(name, name, _text_of(group.get("desc")), len(ranks) if ranks else None, ranks)


def _elements(sizes: object) -> int | None:
    """Count the elements of all tensors of ``[[2, 3], [4]]``; None where it lists none."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        return None
    total = 0
    for shape in sizes:
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int and 0 <= size < _MOST_COUNT for size in shape):
            return None
        product = 1
        for size in shape[:_MOST_DIMENSIONS]:
            product *= size
        total += product
    return total if total < _MOST_COUNT else None


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def _first_text(values: object) -> str:
    return _text_of(values[0]) if isinstance(values, (list, tuple)) and values else ""


def _ns_of_ms(ms: object) -> int:
    return round(ms * 1_000_000) if isinstance(ms, (int, float)) and 0 < ms < _MOST_MS else 0
