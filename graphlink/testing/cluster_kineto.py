"""Writes a rank of a simulated cluster as Kineto has it. Row by row from templates: a rank has 100,000 rows and more."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphlink.testing.cluster_program import DESCRIPTIONS, ROW_ELEMS, Op
from graphlink.testing.cluster_records import ALL_GATHER, COLLECTIVE, NOWHERE, REDUCE_SCATTER, SEND
from graphlink.testing.cluster_rows import WAIT, CallRow, HostRow, KernelRow, OverheadRow, RankRows, SyncRow, names_of
from graphlink.testing.dialects import BASE_NS, DIALECTS, Clock, Dialect, ExternalId
from graphlink.testing.kineto import CBID, group_config

if TYPE_CHECKING:
    from graphlink.testing.cluster import ClusterRun

Row = HostRow | CallRow | KernelRow | SyncRow | OverheadRow

DTYPES = {2: "BFloat16", 4: "Float", 8: "Long"}
WAIT_ARGS = {
    "Collective name": "wait", "dtype": "Byte", "In msg nelems": 0, "Out msg nelems": 0, "Group size": 1, "In split size": "[]",
    "Out split size": "[]", "Process Group Ranks": "[]",
}  # fmt: skip


def usable_dialect(name: str) -> Dialect:
    """Raises KeyError for an unknown dialect, ValueError for one that these files are not written in."""
    dialect = DIALECTS[name]
    if dialect.hip or dialect.string_tids:
        raise ValueError(f"clusters are not written in dialect {name}")
    return dialect


def process_id(rank: int) -> int:
    """Its main thread has the same id."""
    return 4_000 + 1_000 * rank


def elements(op: Op, size: int) -> tuple[int, int]:
    """What PyTorch records of a communication in a group of ``size``: elements in and out."""
    count = op.bytes // op.elem_bytes
    if op.splits[0]:
        return count, sum(op.splits[1]) * ROW_ELEMS
    if op.type == ALL_GATHER:
        return count, count * size
    return (count, count // size) if op.type == REDUCE_SCATTER else (count, count)


def comm_args(run: ClusterRun, rank: int, op: Op, *, seq: bool, on_op: bool) -> dict[str, Any]:
    """The arguments of a communication's kernel, or of its ``record_param_comms``. The peer of a message is a rank of the group."""
    group = run.groups[op.group]
    members, name = group_key(run, rank, op.group)
    sent, got = elements(op, len(members))
    args: dict[str, Any] = {
        "Collective name": names_of(op).recorded, "dtype": DTYPES[op.elem_bytes], "In msg nelems": sent, "Out msg nelems": got,
        "Group size": len(members), "In split size": str(list(op.splits[0])), "Out split size": str(list(op.splits[1])),
        "Process Group Name": name, "Process Group Description": DESCRIPTIONS[group.sort], "Process Group Ranks": str(list(members)),
    }  # fmt: skip
    if on_op:
        args |= {"Global rank start": members[0], "Global rank stride": members[1] - members[0]}
    if op.kind != COLLECTIVE:
        args |= {"Dst Rank" if op.kind == SEND else "Src Rank": members.index(op.peer)}
    if seq:
        args["Seq"] = op.seq
    return args


def group_key(run: ClusterRun, rank: int, group: int) -> tuple[tuple[int, ...], str]:
    """Members, and the name that the rank knows a group of the run by."""
    return run.ranks[rank].groups[run.own_groups[rank].index(group)]


def head(run: ClusterRun, rank: int) -> dict[str, Any]:
    """What stands in a file beside its rows."""
    training = run.training
    keys = [(run.groups[index].sort, key) for index, key in zip(run.own_groups[rank], run.ranks[rank].groups, strict=True)]
    config = [group_config(name, DESCRIPTIONS[sort], members) for sort, (members, name) in keys]
    info = {"backend": "nccl", "rank": rank, "world_size": training.world, "pg_count": len(run.groups), "pg_config": config}
    device = {"id": rank % training.ranks_per_host, "name": "NVIDIA H100 80GB HBM3"}
    return {"schemaVersion": 1, "deviceProperties": [device], "host_name": run.ranks[rank].host, "distributedInfo": info}


class _Writer:
    def __init__(self, run: ClusterRun, rows: RankRows, dialect: Dialect, *, seq: bool, comm_args: bool, cuda_sync: bool):
        self.run, self.rows, self.dialect = run, rows, dialect
        self.seq, self.comm_args = seq, comm_args and dialect.comm_args
        self.cuda_sync = cuda_sync and dialect.sync_rows
        self.pid, self.device = process_id(rows.rank), rows.rank % run.training.ranks_per_host

    def texts(self) -> Iterator[str]:
        yield from self.host()
        yield from self.kernels()
        yield from self.calls()
        if self.cuda_sync:
            yield from self.syncs()
        for row, times in zip(self.rows.overheads, self.times(self.rows.overheads, by_ends=False), strict=True):
            yield f'{{"ph":"X","cat":"overhead","name":"{row.name}","pid":-1,"tid":{self.pid},{times},"args":{{}}}}'

    def times(self, rows: Sequence[Row], *, by_ends: bool) -> list[str]:
        """``ts`` and ``dur``. Files of whole us have the length of a host op by its ends, that of other rows (CUPTI) rounded down."""
        if self.dialect.clock is Clock.INT_US:
            if by_ends:
                return [f'"ts":{row[0] // 1000},"dur":{row[1] // 1000 - row[0] // 1000}' for row in rows]
            return [f'"ts":{row[0] // 1000},"dur":{(row[1] - row[0]) // 1000}' for row in rows]
        if self.dialect.clock is Clock.FLOAT_US:
            return [f'"ts":{row[0] / 1000},"dur":{(row[1] - row[0]) / 1000}' for row in rows]
        found = []
        for row in rows:
            start, length = row[0] - BASE_NS, row[1] - row[0]
            found.append(f'"ts":{start // 1000}.{start % 1000:03d},"dur":{length // 1000}.{length % 1000:03d}')
        return found

    def described(self, *, on_op: bool) -> dict[int, str]:
        """Text of the arguments of each communication, to follow others."""
        ops = self.run.records[self.rows.rank].ops
        if not self.comm_args:
            return dict.fromkeys((NOWHERE, WAIT, *range(len(ops))), "")
        texts = {NOWHERE: "", WAIT: _following(WAIT_ARGS)}
        for i, op in enumerate(ops):
            if op.group != NOWHERE:
                texts[i] = _following(comm_args(self.run, self.rows.rank, op, seq=self.seq, on_op=on_op))
        return texts

    def external(self, op: int, correlation: int) -> str:
        """The external id of a call or kernel, with a comma after it."""
        if self.dialect.external_id is ExternalId.CORRELATION:
            return f'"External id":{correlation},'
        linked = op != NOWHERE and not self.rows.host[op].annotation
        if self.dialect.external_id is ExternalId.OP_OR_MISSING and not linked:
            return ""
        return f'"External id":{op + 1 if linked else correlation},'

    def host(self) -> Iterator[str]:
        comms, pid = self.described(on_op=True), self.pid
        index = self.dialect.index_key
        rf_id = self.dialect.record_function_id
        for i, (row, times) in enumerate(zip(self.rows.host, self.times(self.rows.host, by_ends=True), strict=True)):
            cat = "user_annotation" if row.annotation else "cpu_op"
            id_text = f'"Record function id":{i + 2},' if rf_id else ""
            yield (
                f'{{"ph":"X","cat":"{cat}","name":"{row.name}","pid":{pid},"tid":{pid},{times},'
                f'"args":{{"External id":{i + 1},{id_text}"{index}":{i}{comms[row.comm]}}}}}'
            )

    def kernels(self) -> Iterator[str]:
        comms, device = self.described(on_op=False), self.device
        for row, times in zip(self.rows.kernels, self.times(self.rows.kernels, by_ends=False), strict=True):
            yield (
                f'{{"ph":"X","cat":"kernel","name":"{row.name}","pid":{device},"tid":{row.stream},{times},'
                f'"args":{{{self.external(row.op, row.correlation)}"device":{device},"stream":{row.stream},"context":1,'
                f'"correlation":{row.correlation},"grid":[80,1,1],"block":[128,1,1]{comms[row.comm]}}}}}'
            )

    def calls(self) -> Iterator[str]:
        pid = self.pid
        for row, times in zip(self.rows.calls, self.times(self.rows.calls, by_ends=False), strict=True):
            yield (
                f'{{"ph":"X","cat":"cuda_runtime","name":"{row.name}","pid":{pid},"tid":{pid},{times},'
                f'"args":{{{self.external(row.op, row.correlation)}"cbid":{CBID[row.name]},"correlation":{row.correlation}}}}}'
            )

    def syncs(self) -> Iterator[str]:
        device = self.device
        for row, times in zip(self.rows.syncs, self.times(self.rows.syncs, by_ends=False), strict=True):
            awaited = ""
            if row.kind == "Stream Wait Event":
                awaited = f'"wait_on_stream":{row.record_stream},"wait_on_cuda_event_record_corr_id":{row.record},'
                awaited += f'"wait_on_cuda_event_id":{row.record_stream},'
            stream = self.dialect.no_stream if row.stream < 0 else row.stream
            external = "" if self.dialect.external_id is ExternalId.OP_OR_MISSING else f'"External id":{row.correlation},'
            yield (
                f'{{"ph":"X","cat":"cuda_sync","name":"{row.kind}","pid":{device},"tid":{row.stream},{times},'
                f'"args":{{{external}"cuda_sync_kind":"{row.kind}",{awaited}"stream":{stream},"correlation":{row.correlation},'
                f'"device":{device},"context":1}}}}'
            )


def _following(args: dict[str, Any]) -> str:
    return "," + json.dumps(args, separators=(",", ":"))[1:-1]


def kineto_text(run: ClusterRun, rows: RankRows, *, dialect: str, seq: bool, comm_args: bool, cuda_sync: bool) -> str:
    """The file of a rank; linear in rows."""
    written = usable_dialect(dialect)
    writer = _Writer(run, rows, written, seq=seq, comm_args=comm_args, cuda_sync=cuda_sync)
    beside = head(run, rows.rank)
    if not writer.comm_args:
        beside["distributedInfo"] = {key: beside["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    if written.clock is Clock.RELATIVE_US:
        beside["baseTimeNanoseconds"] = BASE_NS
    return json.dumps(beside, separators=(",", ":"))[:-1] + ',"traceEvents":[' + ",\n".join(writer.texts()) + "]}\n"


def write_text(text: str, path: Path) -> None:
    """Plain, or gzip without a time stamp where the name ends so."""
    path.write_bytes(gzip.compress(text.encode(), 1, mtime=0) if path.suffix == ".gz" else text.encode())
