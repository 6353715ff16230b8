"""The files of a run as pandas tables: one row per node, edge, wait or interval, times in ns. The only place that makes
any.

Times are since the first node of the rank (``graph(rank).metadata.epoch_ns``), but where a table says otherwise.
Integers that a row does not have are missing (``Int64``), never -1. Every table is linear in what the file holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from graphlink.errors import bad_value
from graphlink.figures import Column, all_names, columns, text, types
from graphlink.graph.gains import FamilyGain, OpGain
from graphlink.graph.path_file import PathFile
from graphlink.graph.syncpoints import SyncPointGain
from graphlink.graph.target import comm_word
from graphlink.graph.write_et import KINDS, type_name
from graphlink.graph_model import NO_GROUP, EdgeKind, Graph, Groups, NodeType
from graphlink.model import I64, NOWHERE, Bool
from graphlink.ranks.summary import RankWait
from graphlink.replay.across import CriticalAcross
from graphlink.replay.workload import Work, works_of
from graphlink.report.summary import Summary
from graphlink.tables import tuples
from graphlink.wings import RowTable

if TYPE_CHECKING:
    import pandas as pd

_TIMES: Final = ("start_ns", "end_ns", "duration_ns")
_DEVICE: Final = ("device", "stream", "correlation")
_DELAYS: Final = ("start_delay_ns", "launch_latency_ns", "overlap_ns")
_KINDS: Final = np.array([*KINDS, *(["unknown"] * (256 - len(KINDS)))], object)
_WORKS: Final = np.array([w.name.lower() for w in Work], object)
GAINS: Final = ("families", "ops", "sync_points", "shares")
FAMILIES: Final = ("name", "share", "count", "gain_ns", "on_path_ns", "work_ns")
_GAINS: Final[dict[str, tuple[type, tuple[str, ...]]]] = {
    "families": (FamilyGain, FAMILIES),
    "ops": (OpGain, ("id", "name", "share", "gain_ns", "on_path_ns", "work_ns")),
    "sync_points": (SyncPointGain, ("id", "name", "call", "waited_for", "waited_for_name", "gain_ns")),
}


def nodes(file: Graph) -> pd.DataFrame:
    """Return one row per node of a graph, in its order."""
    everything = np.ones(len(file.id), np.bool_)
    plain = (*_TIMES, "cost_ns", "self_ns", "wait_ns", *_DELAYS)
    type_of = {code: type_name(code) for code in np.unique(file.type).tolist()}
    columns = {
        **_named(file, everything),
        "work": _WORKS[works_of(file)],
        "type": np.array([type_of[code] for code in file.type.tolist()], object),
        **_places(file, everything, ("tid", *_DEVICE)),
        **{name: getattr(file, name) for name in plain},
        "caller": _callers(file),
    }
    return frame(columns)


def edges(file: Graph) -> pd.DataFrame:
    """Return one row per dependency (``data_deps``): ids of its ends, and its kind."""
    target = file.target
    return frame({"source": _ids(file, file.source), "target": _ids(file, target), "kind": _KINDS[file.edge_kind]})


def ops(file: Graph) -> pd.DataFrame:
    """Return one row per host node that is work: an op, or a part or call of one, with the number of device nodes that
    it launches.
    """
    mine = works_of(file) == Work.HOST
    launches = np.bincount(file.source[file.edge_kind == EdgeKind.LAUNCH], minlength=len(file.id))
    return frame(
        {
            **_named(file, mine),
            "tid": file.tid[mine],
            **{name: getattr(file, name)[mine] for name in (*_TIMES, "self_ns", "wait_ns")},
            "caller": _callers(file)[mine],
            "launches": launches[mine],
        }
    )


def kernels(file: Graph) -> pd.DataFrame:
    """Return one row per op of a device: kernel, communication or copy (``work``), with the op that launched it."""
    mine = (
        np.isin(works_of(file), (Work.KERNEL, Work.COMM, Work.COPY)) & ~file.host & (file.device >= 0)
    )  # gloo's are on none
    caller = file.caller
    op_name = np.array([None, *file.strings], object)[np.where(caller == NOWHERE, 0, file.name[caller] + 1)]
    return frame(
        {
            **_named(file, mine),
            "work": _WORKS[works_of(file)[mine]],
            **_places(file, mine, _DEVICE),
            **{name: getattr(file, name)[mine] for name in (*_TIMES, *_DELAYS)},
            "op": _callers(file)[mine],
            "op_name": op_name[mine],
        }
    )


def syncs(file: Graph) -> pd.DataFrame:
    """Return one row a ``sync`` edge: the device op that was waited for, the host node that waited, and the calls that
    did.
    """
    target = file.target
    edge = np.flatnonzero(file.edge_kind == EdgeKind.SYNC)
    source, behind = file.source[edge], target[edge]
    place = (edge - file.first[behind]).tolist()
    calls = [_call(file, node, k) for node, k in zip(behind.tolist(), place, strict=True)]
    return frame(
        {
            "source": _ids(file, source),
            "source_name": _texts(file, source),
            "source_end_ns": file.end_ns[source],
            "target": _ids(file, behind),
            "target_name": _texts(file, behind),
            "target_start_ns": file.start_ns[behind],
            "call": np.array(calls, object),
        }
    )


def collectives(file: Graph, groups: Groups, whole: Summary) -> pd.DataFrame:
    """Return one row per communication node, with what the ranks of the run together say of its group and type.

    ``algorithm_bytes_per_s``, ``bus_bytes_per_s``: of all meetings of the group and type, missing where no figure is
    known (a rank alone). ``own_bytes_per_s``: its own bytes by the time that it took, waiting included.
    """
    mine = np.isin(file.type, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV))
    types = [comm_word(t, c) for t, c in tuples(file.type[mine], file.comm_type[mine])]
    group = file.group[mine]
    rates = {
        (one.id, of.type): (of.algorithm_bytes_per_s, of.bus_bytes_per_s)
        for one in (whole.run.groups if whole.run else ())
        for of in one.collectives
    }
    found = [rates.get(key, (None, None)) for key in zip(group.tolist(), types, strict=True)]
    algorithm, bus = (np.array([pair[k] for pair in found], np.float64) for k in (0, 1))
    took_ns = np.where(file.duration_ns[mine] > 0, file.duration_ns[mine], np.nan)
    members = np.empty(len(types), object)
    members[:] = [groups.get(g) for g in group.tolist()]
    return frame(
        {
            **_named(file, mine),
            "type": np.array(types, object),
            "size_bytes": _known(file.comm_size[mine], file.says("comm_size")[mine]),
            "group": _known(group, group > NO_GROUP),
            "ranks": members,
            **_places(file, mine, ("comm_src", "comm_dst", "comm_tag", "stream")),
            **{name: getattr(file, name)[mine] for name in _TIMES},
            "algorithm_bytes_per_s": algorithm,
            "bus_bytes_per_s": bus,
            "own_bytes_per_s": 1e9 * file.comm_size[mine] / took_ns,
        }
    )


def waits(whole: Summary) -> pd.DataFrame:
    """Return one row per rank: its waiting for others in communication."""
    return _of_figures(RankWait, ("rank", "wait_ns", "transfer_ns", "last"), whole.run.waits if whole.run else ())


def critical_path(file: PathFile) -> pd.DataFrame:
    """Return one row per node of the critical path of a rank, first node first; ``cost_ns`` sums up to its length."""
    at = file.nodes
    return frame(
        {
            "id": np.array(at.id, np.int64),
            "name": _coded(at.name, file.names),
            "share": _coded(at.share, file.shares),
            "held_by": _coded(at.held_by, file.edge_kinds),
            **{column: np.array(getattr(at, column), np.int64) for column in ("start_ns", "cost_ns", "start_delay_ns")},
        }
    )


def critical_across(found: CriticalAcross) -> pd.DataFrame:
    """Return one row per node of the path over all ranks, first node first; times of the replay, on the run's clock
    from ``origin_ns``.

    ``cost_ns`` sums up to the length of the path, as that of ``critical_path`` does.
    """
    at = found.nodes
    start, end = (np.array(column, np.int64) for column in (at.start_ns, at.end_ns))
    other = np.array([NOWHERE if rank is None else rank for rank in at.other_rank], np.int64)
    return frame(
        {
            **{column: np.array(getattr(at, column), np.int64) for column in ("rank", "id")},
            "name": _coded(at.name, found.names),
            "share": _coded(at.share, found.shares),
            "start_ns": start,
            "end_ns": end,
            "cost_ns": end - start,
            "start_delay_ns": np.array(at.start_delay_ns, np.int64),
            "held_by": np.array(at.held_by, object),
            "other_rank": _known(other, other != NOWHERE),
        }
    )


def gains(file: PathFile, of: str) -> pd.DataFrame:
    """Return one row per thing of sort ``of`` (one of ``GAINS``), largest gain first: how much earlier the rank would
    end without its time.

    Raises:
        UsageError: there is no such sort.
    """
    if of not in GAINS:
        raise bad_value("of", of, f"one of {', '.join(GAINS)}")
    if of == "shares":
        gain, on_path = (msgspec.structs.asdict(ns) for ns in (file.gains.shares, file.share_ns))
        columns = {
            "share": np.array([*gain], object),
            "gain_ns": np.array([*gain.values()]),
            "on_path_ns": np.array([*on_path.values()]),
        }
        return frame(columns).sort_values("gain_ns", ascending=False, kind="stable", ignore_index=True)
    return _of_figures(*_GAINS[of], getattr(file.gains, of))


def frame(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a table of columns of one length."""
    import pandas as pd

    return pd.DataFrame(dict(columns))


def of_rows(table: RowTable, rows: Sequence[Any]) -> pd.DataFrame:
    """Return a table of a wing, one row per record; lists are one text each."""
    return _of_figures(table.record, table.figures, rows)


def _of_figures(record: type, names: Sequence[str], rows: Sequence[Any]) -> pd.DataFrame:
    made = columns(record, rows, *names)
    named = zip(all_names(record, names), made, strict=True)
    return frame({column_name(str(name)): _array(shown) for name, shown in named})


def column_name(name: str) -> str:
    return name.replace("_cores.", "_").removeprefix("longest_")


def _array(shown: Column) -> Any:
    kind, *others = types(shown.type)
    values = [None if value is UNSET else value for value in shown.values]
    if kind is int:
        numbers = np.array([value or 0 for value in values], np.int64)
        known = np.array([value is not None for value in values], np.bool_)
        return _known(numbers, known) if {NoneType, UnsetType} & {*others} else numbers
    if shown.unit == "longest_kernel":
        values = [value and value.name for value in values]
    return np.array(
        [value if isinstance(value, str | None) else text(shown.unit, value, whole=True) for value in values], object
    )


def of_ranks(tables: Mapping[int, pd.DataFrame]) -> pd.DataFrame:
    """Return the tables of several ranks one after the other, with the rank as the first column."""
    import pandas as pd

    for rank, table in tables.items():
        table.insert(0, "rank", np.full(len(table), rank, np.int64))
    return pd.concat(tables.values(), ignore_index=True) if len(tables) > 1 else next(iter(tables.values()))


def _known(values: I64, known: Bool) -> Any:
    """Return a column of integers of which some are missing."""
    import pandas as pd

    return pd.arrays.IntegerArray(np.where(known, values, 0).astype(np.int64), ~known)


def _places(file: Graph, mine: Any, names: Iterable[str]) -> dict[str, Any]:
    """Encode columns of numbers from 0 that some nodes have; -1 stands for none in a file."""
    columns = {name: file.integers(name)[mine] for name in names}
    return {name: _known(column, file.says(name)[mine] & (column >= 0)) for name, column in columns.items()}


def _named(file: Graph, mine: Bool) -> dict[str, Any]:
    return {"id": _ids(file, np.flatnonzero(mine)), "name": _texts(file, np.flatnonzero(mine))}


def _ids(file: Graph, node: Any) -> I64:
    return np.asarray(file.id[node].astype(np.int64))


def _texts(file: Graph, node: Any) -> Any:
    return np.array(file.strings, object)[file.name[node]] if len(file.strings) else np.zeros(0, object)


def _coded(codes: Sequence[int | None], table: Sequence[str]) -> Any:
    return np.array([None if code is None else table[code] for code in codes], object)


def _callers(file: Graph) -> Any:
    return _known(_ids(file, np.maximum(file.caller, 0)), file.caller != NOWHERE)


def _call(file: Graph, node: int, place: int) -> str | None:
    """Return the names of the calls of a ``sync`` edge: one for all of the node, or a list parallel to
    ``data_deps``.
    """
    calls = file.file.sync_call.get(node, ())
    if not calls:
        return None
    return calls[0] if len(calls) == 1 else calls[place] if place < len(calls) else None
