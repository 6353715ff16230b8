"""Types, sizes and groups the communication of a rank: kernels of collectives and P2P, and gloo's host-side ranges.

What PyTorch recorded of a call decides: Kineto's own arguments on the kernel, those of the ``record_param_comms`` op
that launched it, and that op's ET node. That a kernel without any of these is communication at all is known from its
name, else from the op that launched it (``graphlink.read.commnames``, docs/model.md); it stays UNKNOWN, under the name
of the ``nccl:*`` range around its launch or its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from graphlink.linking.commtypes import (
    as_one,
    collective_type,
    element_bytes,
    kind_of,
    size_bytes,
    sizes_may_differ,
    waiting_calls,
)
from graphlink.linking.groups import Groups
from graphlink.linking.nest import askers, enclosing, innermost
from graphlink.linking.provenance import asynchronous_form
from graphlink.model import (
    I32,
    I64,
    NOWHERE,
    Bool,
    Comm,
    CommKind,
    CommOps,
    Communication,
    DeviceKind,
    Linked,
    ProcessGroup,
    Trace,
)
from graphlink.patterns import fits
from graphlink.read.columns import Strings, loose
from graphlink.read.commnames import Meaning, kernel_meaning, kernel_path, meanings, op_meaning, range_meaning
from graphlink.read.comms import NAMES, shape_elements
from graphlink.records import NOTE
from graphlink.tables import (
    grouped,
    marked,
    numbered_texts,
    numbered_values,
    pointing_at,
    spread,
    sums,
    tuples,
)

GROUP_FIELDS = ("pg_name", "pg_desc", "ranks", "group_size", "rank")
GROUP_RANGE: Final = "graphlink::group "  # graphlink.capture records it around sends and receives of gloo
NONE_NAMED: Final[Mapping[int, str]] = {}


class _Calls(msgspec.Struct, frozen=True):
    """The recorded communication calls: merged by host row, and on device rows alone."""

    host: dict[int, Comm]
    device: dict[int, Comm]
    awaited: dict[int, int]  # host row of a wait() -> sequence number of its work
    named: dict[int, str]  # host row of a functional op -> the group of the calls in it
    disagreeing: dict[str, int]  # groups on which ET and Kineto differ, in words, with the number of calls


_LISTED: Final = 6  # names that a warning lists


def _times(counts: Mapping[str, int]) -> list[str]:
    """Return ``45 x ALL_TO_ALL``, the most frequent first, of several the number of all before."""
    texts = [f"{n} x {name}" for name, n in sorted(counts.items(), key=lambda item: -item[1])]
    return texts if len(texts) < 2 else [f"{sum(counts.values()):,} ops: {texts[0]}", *texts[1:]]


def _listed(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _LISTED:,} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


def communication(
    linked: Linked, known: tuple[ProcessGroup, ...] = (), named: Mapping[int, str] = NONE_NAMED
) -> Communication:
    """Find type and size in bytes of the communication ops of one rank; O(n log n) in its rows.

    ``known``: groups that other files describe, for those that it does not. ``named``: host rows whose group they name.

    ``wait`` is none. Of several kernels of one call the first is the call, the others are UNKNOWN so that its bytes
    count once; copies and computation inside a call's op are none. Every ``gloo:`` range is one, with peer, tag and
    bytes from the ``c10d`` op in which it began. Nothing is raised: what is not known is UNKNOWN, with a warning that
    counts it.
    """
    calls = _recorded_calls(linked)
    comm, may_be, bare = _evidence(linked, calls)
    on_host = _host_rows(linked, calls, named)
    every = (*calls.host.values(), *calls.device.values(), *(call for row in on_host for call in row.calls))
    groups = Groups(linked.trace, linked.et, every, known)
    typed = _Typing(groups)
    ops = typed.table(linked, _device_rows(linked, calls, comm, bare), on_host)
    uncounted = "written as COMP_NODE, and its time counts as communication"
    doubtful = _doubtful(linked.trace, may_be)
    of_cause = {
        "ET and Kineto trace differ on a process group, Kineto holds": [
            f"{text} ({n} calls)" for text, n in sorted(calls.disagreeing.items())
        ],
        f"communication without parameters or group, {uncounted}": _times(typed.unknown),
        f"communication of one of several process groups, and nothing names it (graphlink.capture does, by the Flight "
        f"Recorder), {uncounted}": _times(typed.undecided),
        f"further kernels of one call, {uncounted}": _times(typed.doubled),
        "may be communication, kept as computation": [
            f"{n} x {name}, {ns / 1e6:,.3f} ms" for name, (n, ns) in doubtful.items()
        ],
    }
    warnings = [
        f"{NOTE}the members of process group {name or '(unnamed)'} are not recorded: it is the only one used, so taken "
        "as all ranks"
        for name in sorted(groups.assumed)
    ]
    warnings += [f"{cause}: {_listed(texts)}" for cause, texts in of_cause.items() if texts]
    return Communication(
        ops,
        tuple(warnings),
        unknown={
            name: typed.unknown.get(name, 0) + typed.undecided.get(name, 0) for name in typed.unknown | typed.undecided
        },
        unlisted=typed.unlisted,
        assumed=tuple(sorted(groups.assumed)),
        differing=calls.disagreeing,
        doubtful=doubtful,
        awaited=calls.awaited,
    )


def calls_of_et(linked: Linked) -> Iterator[tuple[int, Comm]]:
    """Yield the communication of each ET node that has a host row, with that row."""
    return ((row, comm) for row, comm in _told_by_et(linked) if comm.name != NAMES)


def _told_by_et(linked: Linked) -> Iterator[tuple[int, Comm]]:
    if linked.et is not None:
        host_row = pointing_at(linked.match.et, len(linked.et.id))[linked.et.comm.row]
        for row, comm in zip(host_row.tolist(), linked.et.comm.comms, strict=True):
            if row != NOWHERE:
                yield row, comm


def _recorded_calls(linked: Linked) -> _Calls:
    trace = linked.trace
    calls = dict(zip(trace.host.comm.row.tolist(), trace.host.comm.comms, strict=True))
    disagreeing: dict[str, int] = {}
    for row, comm in calls_of_et(linked):
        difference = _difference(calls.get(row), comm)
        if difference:
            disagreeing[difference] = disagreeing.get(difference, 0) + 1
        calls[row] = _merged(calls.get(row), comm)
    device = dict(zip(trace.device.comm.row.tolist(), trace.device.comm.comms, strict=True))
    return _Calls(
        {row: comm for row, comm in calls.items() if comm.name != "wait"},
        {row: comm for row, comm in device.items() if comm.name != "wait"},
        {row: comm.seq for row, comm in calls.items() if comm.name == "wait" and comm.seq is not None},
        {row: comm.pg_name for row, comm in _told_by_et(linked) if comm.name == NAMES and comm.pg_name},
        disagreeing,
    )


def _difference(kineto: Comm | None, et: Comm) -> str | None:
    if kineto is None or "wait" in (kineto.name, et.name):
        return None
    name = kineto.pg_name or et.pg_name or ""
    if kineto.ranks and et.ranks and kineto.ranks != et.ranks:
        return f"{name} has ranks {_short(et.ranks)} in the ET, {_short(kineto.ranks)} in Kineto"
    if kineto.group_size and et.group_size and kineto.group_size != et.group_size:
        return f"{name} has {et.group_size} ranks in the ET, {kineto.group_size} in Kineto"
    return None


def _short(ranks: tuple[int, ...]) -> str:
    return str(list(ranks)) if len(ranks) <= 8 else f"[{ranks[0]}, {ranks[1]}, ... {ranks[-1]}] ({len(ranks)})"


def _merged(first: Comm | None, other: Comm) -> Comm:
    """Merge two sources: ``first``, with what it lacks taken from ``other``; the group is taken from one side only,
    unless both agree on it."""
    if first is None:
        return other
    own_group = bool(first.pg_name or first.ranks)
    agrees = first.group_size == other.group_size and first.pg_name in (None, "", other.pg_name)
    fields = [field for field in Comm.__struct_fields__ if agrees or not own_group or field not in GROUP_FIELDS]
    lacking = {field: getattr(other, field) for field in fields if getattr(first, field) in (None, "", ())}
    return msgspec.structs.replace(first, **lacking)


class _Typing:
    """Types recorded calls; counts those that stay unknown by their recorded name. ``COLUMNS``: what is recorded of
    each op.
    """

    COLUMNS = ("kind", "name", "type", "bytes", "group", "peer", "tag", "seq", "uneven")

    def __init__(self, groups: Groups) -> None:
        self.groups, self.names = groups, Strings()
        self.unknown: dict[str, int] = {}
        self.undecided: dict[str, int] = {}
        self.unlisted: dict[str, int] = {}
        self.doubled: dict[str, int] = {}

    def table(self, linked: Linked, of_device: list[CommRow], of_host: list[CommRow]) -> CommOps:
        """Return the ops of all rows. Groups and names are numbered as they first come, those of device rows before
        others.
        """
        values = np.array([self.of(one) for one in (*of_device, *of_host)], np.int64).reshape(-1, len(self.COLUMNS))
        at, on = (np.array([one.row for one in rows], np.int32) for rows in (of_device, of_host))
        device, host = linked.trace.device, linked.trace.host
        row, on_host = np.concatenate([at, on]), np.repeat([False, True], [len(at), len(on)])
        start_ns, end_ns = (
            np.concatenate([device.start_ns[at], host.start_ns[on]]),
            np.concatenate([device.end_ns[at], host.end_ns[on]]),
        )
        order = np.lexsort((row, on_host, end_ns, start_ns))
        kind, name, type_, bytes_, group, peer, tag, seq, uneven = np.ascontiguousarray(values[order].T)
        return CommOps(
            on_host=on_host[order],
            row=row[order],
            kind=kind.astype(np.uint8),
            name=name.astype(np.int32),
            type=type_.astype(np.int32),
            bytes=bytes_,
            group=group.astype(np.int32),
            peer=peer,
            tag=tag,
            seq=seq,
            uneven=uneven != 0,
            start_ns=start_ns[order],
            end_ns=end_ns[order],
            names=tuple(self.names),
            groups=tuple(self.groups.found),
        )

    def of(self, row: CommRow) -> tuple[int, ...]:
        """Classify a row; UNKNOWN, with the names of its calls, where one op cannot say it."""
        if not row.calls:
            return self._left(self.unknown, row.name)
        if row.further:
            return self._left(self.doubled, row.calls[0].name)
        one = as_one(list(row.calls))
        if one is None:
            return self._left(self.unknown, "coalesced " + ", ".join(_chakra_name(c.name) for c in row.calls))
        return self.call(one)

    def call(self, comm: Comm) -> tuple[int, ...]:
        kind, key = kind_of(comm.name), self.groups.key(comm)
        size = size_bytes(comm, self.groups.size(comm))
        if key is None and kind is not CommKind.UNKNOWN and self.groups.undecided(comm):
            return self._left(self.undecided, comm.name)
        if key is None and kind is not CommKind.UNKNOWN and size is not None:
            name = comm.pg_desc or comm.pg_name or "(unnamed)"
            self.unlisted[name] = self.unlisted.get(name, 0) + 1
        if kind is CommKind.UNKNOWN or key is None or size is None:
            return self._left(self.unknown, comm.name)
        group, seq = self.groups.found[key], NOWHERE if comm.seq is None else comm.seq
        if kind is CommKind.COLLECTIVE:
            type_ = collective_type(comm.name)
            assert type_ is not None, comm.name
            return kind, self.names[type_.name], type_, size, group, NOWHERE, 0, seq, sizes_may_differ(comm)
        # PyTorch records the other side as a rank of the group, in old versions in place of the own rank
        recorded = comm.dst_rank if kind is CommKind.SEND else comm.src_rank
        member, ranks = comm.rank if recorded is None else recorded, key[0]
        if member is None or not 0 <= member < len(ranks):
            return self._left(self.unknown, comm.name)
        return kind, self.names[kind.name], NOWHERE, size, group, ranks[member], comm.tag or 0, seq, False

    def _left(self, counts: dict[str, int], name: str) -> tuple[int, ...]:
        """Return an op of which only the name is known, and count it."""
        recorded = _chakra_name(name)
        counts[recorded] = counts.get(recorded, 0) + 1
        return CommKind.UNKNOWN, self.names[recorded], NOWHERE, 0, NOWHERE, NOWHERE, 0, NOWHERE, False


def _chakra_name(name: str) -> str:
    """Convert a recorded name as Chakra spells its type; as recorded where it has none."""
    kind, type_ = kind_of(name), collective_type(name)
    if type_ is not None:
        return type_.name
    return name if kind is CommKind.UNKNOWN else kind.name


class CommRow(msgspec.Struct, frozen=True):
    """A communication kernel or host row as recorded. ``calls``: those that it stands for, none where nothing tells.

    ``name``: that of the ``nccl:*`` range around its launch, else its own. ``further``: an earlier kernel stands for
    the same call.
    """

    row: int
    calls: tuple[Comm, ...]
    name: str
    further: bool = False


def comm_rows(linked: Linked) -> tuple[list[CommRow], list[CommRow]]:
    """Return the device rows and the host rows that ``communication`` types; O(n log n) in rows."""
    calls = _recorded_calls(linked)
    comm, _, bare = _evidence(linked, calls)
    return _device_rows(linked, calls, comm, bare), _host_rows(linked, calls, NONE_NAMED)


def _device_rows(linked: Linked, calls: _Calls, comm: Bool, bare: Bool) -> list[CommRow]:
    trace, op = linked.trace, _launching_ops(linked)
    in_graph, correlation, kernel = trace.device.graph > 0, trace.device.correlation, trace.device.name
    rows = np.flatnonzero(comm)
    ranges = _range_names(linked, rows)
    coalesced = waiting_calls(linked, calls.host, op, rows[bare[rows]].tolist())
    found, begun = [], dict[object, int]()
    for row, text in zip(rows.tolist(), ranges, strict=True):
        host_row = int(op[row])
        call = calls.device.get(row)
        if host_row in calls.host:
            call = _merged(call, calls.host[host_row])
        name = text or kernel_path(trace.strings[trace.device.name[row]])
        if row in coalesced:
            found.append(CommRow(row, tuple(coalesced[row]), name))
        elif call is None:
            found.append(CommRow(row, (), name))
        else:
            # a replay has as many as were captured, each a kernel of its own
            one = (int(correlation[row]), call) if in_graph[row] else host_row
            first = row if one == NOWHERE else begun.setdefault(one, row)
            further = first != row and not (in_graph[row] and kernel[first] == kernel[row])
            found.append(CommRow(row, (call,), name, further))
    return found


def _evidence(linked: Linked, calls: _Calls) -> tuple[Bool, Bool, Bool]:
    """Return of each device row whether it is communication, may be some, and is a backend's without a recorded call of
    its own: each kernel by its own arguments, then by what its name tells, then by the op or range around its launch.

    In a call's op all is communication but what is computation by its name. Copies are copies.
    """
    trace, device, host = linked.trace, linked.trace.device, linked.trace.host
    op = _launching_ops(linked)
    own = marked(len(op), np.array([*calls.device], np.int64))
    in_call = marked(len(host.tid) + 1, np.array([*calls.host], np.int64))  # the last entry stands for NOWHERE
    named = meanings(trace.strings, device.name, kernel_meaning)
    launched = np.flatnonzero(op != NOWHERE)
    name, annotation = host.name[op[launched]], host.annotation[op[launched]]
    meant = np.where(
        annotation, meanings(trace.strings, name, range_meaning), meanings(trace.strings, name, op_meaning)
    )
    around = spread(len(op), launched, meant, 0)
    open_ = (named == Meaning.NOTHING) | (named == Meaning.DOUBTFUL)
    kernel = device.kind == DeviceKind.KERNEL
    comm = kernel & (
        own | (named >= Meaning.COMMUNICATION) | (open_ & (in_call[op] | (around == Meaning.COMMUNICATION)))
    )
    doubtful = kernel & ~comm & open_ & ((named == Meaning.DOUBTFUL) | (around == Meaning.DOUBTFUL))
    return comm, doubtful, (named == Meaning.BACKEND) & ~own & ~in_call[op]


def _doubtful(trace: Trace, rows: Bool) -> dict[str, tuple[int, int]]:
    """Return number and time (ns) of the device rows that may be communication, by name of kernel, the longest
    first.
    """
    device = trace.device
    names, which = numbered_values(device.name[rows])
    path, paths = numbered_texts(kernel_path(trace.strings[name]) for name in names.tolist())
    of = path[which]
    spent_ns = sums(len(paths), of, device.end_ns[rows] - device.start_ns[rows])
    found = zip(paths, tuples(np.bincount(of, minlength=len(paths)), spent_ns), strict=True)
    return dict(sorted(found, key=lambda one: -one[1][1]))


def _launching_ops(linked: Linked) -> I32:
    """Find for each device row the host row whose call launched it, or NOWHERE."""
    return np.append(linked.call_op, np.int32(NOWHERE))[linked.device_call]


def _range_names(linked: Linked, rows: I64) -> list[str]:
    """Return the name of the innermost ``nccl:*`` range around the launch of each device row, "" where there is
    none.
    """
    trace, host = linked.trace, linked.trace.host
    wanted = host.annotation & (meanings(trace.strings, host.name, range_meaning) == Meaning.COMMUNICATION)
    call = linked.device_call[rows]
    launched = np.flatnonzero(call != NOWHERE)
    at_ns = trace.calls.start_ns[call[launched]]
    found = enclosing(host, linked.parent, ~linked.crossing, wanted, trace.calls.tid[call[launched]], at_ns)
    around = spread(len(rows), launched, found).tolist()
    return [trace.strings[host.name[row]] if row != NOWHERE else "" for row in around]


def _host_rows(linked: Linked, calls: _Calls, groups: Mapping[int, str]) -> list[CommRow]:
    """Find the host rows of communication: ranges of gloo, or of another backend, begin inside the ``c10d`` op that
    asked for them, and end when somebody waits.
    """
    trace, host = linked.trace, linked.trace.host
    named = fits(asynchronous_form(trace), trace.strings)[host.name]
    rows = np.flatnonzero(named & host.annotation & linked.crossing)
    wanted = marked(len(host.tid), np.array([*calls.host], np.int64))
    ops = enclosing(host, linked.parent, ~linked.crossing, wanted, host.tid[rows], host.start_ns[rows])
    found = []
    for row, op in tuples(rows, ops):
        name = trace.strings[host.name[row]]
        comm = calls.host.get(row, calls.host.get(op))
        if comm is None or kind_of(comm.name) is not kind_of(name):
            comm = Comm(name)
        found.append(CommRow(row, (_merged(comm, _inputs(linked, row)),), name))
    return _in_groups(linked, found, ops, calls.named | _group_ranges(linked), groups)


def _group_ranges(linked: Linked) -> dict[int, str]:
    """Return the ranges that name the group of sends and receives in them."""
    host, strings = linked.trace.host, linked.trace.strings
    named = np.array([text.startswith(GROUP_RANGE) for text in strings], np.bool_)
    rows = np.flatnonzero(named[host.name] & host.annotation)
    return {row: strings[code].removeprefix(GROUP_RANGE) for row, code in tuples(rows, host.name[rows])}


def _in_groups(
    linked: Linked, rows: list[CommRow], ops: I32, naming: Mapping[int, str], named: Mapping[int, str]
) -> list[CommRow]:
    """Name the groups of rows of gloo, whose ``c10d`` ops name none: as what is around the op does (``naming``: a
    functional op, or a range), or another file. A thread of gloo's works for one group: so the others that it ran are
    of that, too. ``ops``: those in which rows began on the thread that asked.
    """
    if not rows:
        return rows
    host, asker = linked.trace.host, askers(linked)
    row = np.array([row.row for row in rows], np.int64)
    asked = row[asker[row] != NOWHERE]
    op = np.where(asker[row] != NOWHERE, asker[row], ops)
    row, op = row[op != NOWHERE], op[op != NOWHERE]
    wanted = marked(len(asker), np.array([*naming], np.int64))
    around = innermost(host, linked.parent, op, wanted, host.end_ns[op] - 1)
    texts = {row: naming[outer] for row, outer in tuples(row, around) if outer != NOWHERE} | {**named}
    of_thread = grouped((int(host.tid[row]), texts[row]) for row in asked.tolist() if row in texts)
    whose = {tid: names[0] for tid, names in of_thread.items() if len({*names}) == 1}
    texts = {row: whose[tid] for row, tid in tuples(asked, host.tid[asked]) if tid in whose} | texts
    return [msgspec.structs.replace(row, calls=_named(row.calls, texts.get(row.row))) for row in rows]


def _named(calls: tuple[Comm, ...], name: str | None) -> tuple[Comm, ...]:
    return tuple(msgspec.structs.replace(call, pg_name=call.pg_name or name) for call in calls)


def _inputs(linked: Linked, row: int) -> Comm:
    """Return elements and their size from the recorded inputs of a range, in Kineto or else in its ET node."""
    host, node = linked.trace.host, int(linked.match.et[row])
    texts = [linked.trace.strings[column[row]] for column in (host.input_shapes, host.input_types)]
    if linked.et is not None and node != NOWHERE and not all(texts):
        texts = [linked.et.strings[column[node]] for column in (linked.et.input_shapes, linked.et.input_types)]
    shapes, types = (loose(text or "[]") for text in texts)
    if not (isinstance(shapes, list) and isinstance(types, list)):  # cut by the writer
        return Comm("")
    sizes = [element_bytes(type_) if isinstance(type_, str) else None for type_ in types]
    if not sizes or None in sizes or len(shapes) != len(sizes) or not all(isinstance(shape, list) for shape in shapes):
        return Comm("")
    elems = shape_elements(shapes)
    if elems is None:  # a list of tensors, or no numbers
        return Comm("")
    return Comm("", in_nelems=elems, out_nelems=elems, elem_bytes=sizes[0])
