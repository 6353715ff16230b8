"""Kineto's JSON trace of one rank -> ``model.Trace``. Format: github.com/pytorch/kineto, ``output_json.cpp``.

Time: one pass over the text, a few steps per row, then a sort of each table. Memory: the columns and a few blocks of
text.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from graphlink.errors import InputError
from graphlink.model import I64, CallRows, Comm, DeviceRows, EventRows, FrameRows, OverheadRows, SyncRows, Trace
from graphlink.process import gc_paused
from graphlink.read import kinds
from graphlink.read.columns import (
    MAX_NS,
    MISSING,
    ByteTexts,
    Parts,
    Strings,
    first_word,
    ints,
    is_time,
    loose,
    ns_of_us,
    to_int,
    to_int_or_none,
)
from graphlink.read.comms import JOB_KEY, P2P_OPS, distributed, job_of, process_groups
from graphlink.read.cuspy import NODE_FLOWS, bare_copies, foreign_args, graph_deps, unread
from graphlink.read.devices import (
    VERSIONS,
    device_processes,
    extent,
    fill_in,
    gpus_of,
    host_name,
    is_call,
    place,
    recorded,
    system_of,
)
from graphlink.read.kineto_rows import (
    ANNOTATIONS,
    CALL,
    COMM_FIELDS,
    COUNTER,
    DEVICE,
    DEVICE_KIND,
    EVENT,
    FLOW,
    FRAME,
    HOST,
    LAUNCHED,
    NO_ARGS,
    NO_NODES,
    OLD_OP,
    OPS,
    OTHER,
    OVERHEAD,
    SYNC,
    TABLE_OF,
    Args,
    Event,
    add_base,
    by_start,
    comm_of,
    flow_rows,
    host_rows,
    known,
    lanes_of,
    name_lanes,
    name_on_gpu,
    on_gpu,
    peer_of,
    refuse_span,
    streams_of,
    sync_columns,
    sync_kind,
)
from graphlink.read.mend import doubted, mend_calls, put_right, refuse_processes, repeated, without_calls
from graphlink.read.samples import MemoryRows, add_counters, counter_rows
from graphlink.read.stream import BLOCK_BYTES, MAX_BAD, ArrayReader, Block, open_array
from graphlink.tables import distinct

_OWN = frozenset(
    {"schemaVersion", "deviceProperties", "distributedInfo", "baseTimeNanoseconds"}
)  # keys that Kineto alone writes
_AROUND = frozenset({"baseTimeNanoseconds", "distributedInfo", "deviceProperties", "host_name", "traceName", *VERSIONS})
_INSTANT = ("cpu_instant_event", None)  # the latter in 2021
_LAUNCH_FLOWS = (LAUNCHED, "async_gpu", "async_cpu_to_gpu")  # the others of 2021 and 2022
_NODE_TABLES = (HOST, CALL, DEVICE, SYNC, EVENT, FLOW, OVERHEAD)
_UNSIGNED_US = 2**63 / 1000  # what a negative length is as an unsigned number of 64 bits
_EXACT_US = 2.0**43  # below, a float64 holds three decimals of a microsecond


def read_kineto(path: str | Path, *, block_bytes: int = BLOCK_BYTES) -> Trace:
    """Read the Kineto trace at ``path`` (plain, gzip or zstd, any dialect): a table of numpy columns a sort of row,
    times in int64 ns.

    Rows that are no nodes are counted in ``left_out`` by category. InputError: see ``stream``; a file of another kind;
    a node row whose time is no number or lies beyond 2**62 ns; rows more than 104 days apart. A peer of a ``c10d`` send
    or receive is as recorded: a rank of its group.
    """
    for flows in (False, True):  # which are read only where rows lack a correlation, or others contradict it
        with gc_paused(), open_array(path, ("traceEvents", "nodes"), block_bytes) as array:
            if array.key == "nodes":
                raise InputError(f"is {kinds.ET.what}, not a Kineto trace", path=path, todo=kinds.ET.todo)
            gathered = KinetoRows(str(path), flows=flows)
            for block in array.blocks(Event):
                gathered.add(block)
            gathered.refuse_foreign(array)
            told = any(gathered.left_out[category] for category in _LAUNCH_FLOWS)
            calls, device = gathered.parts[CALL], gathered.parts[DEVICE]
            if flows or not told:
                break
            lacking = without_calls(calls, device, gathered.strings).any()
            lacking |= (gathered.parts[OTHER].seen("correlation") <= 0).any()
            if not lacking and not repeated(calls).any() and not doubted(calls, device):
                break
    return gathered.trace(array)


class KinetoRows:
    """The rows that have been read so far. Times are ns without the base, which may follow the events."""

    def __init__(self, path: str, *, flows: bool = False):
        self.path = path
        self.flows = flows  # of all launches, not only of nodes of graphs
        self.processes: dict[str, int] = {}
        self.strings = Strings()
        self.json_texts = ByteTexts(self.strings)
        self.comms: dict[tuple[Any, ...], Comm] = {}
        self.memory = MemoryRows()
        self.parts = {name: Parts() for name in (*_NODE_TABLES, OTHER, FRAME, LAUNCHED, COUNTER)}
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.process_labels: dict[int, str] = {}
        self.process_names: dict[int, str] = {}
        self.pids: Counter[Any] = Counter()
        self.workers: set[str] = set()  # processes that run ops
        self.left_out: Counter[str] = Counter()
        self.highest_us, self.has_fraction = 0.0, False
        self.old = False  # rows of category Operator were seen
        self.has_graphs = False
        self.foreign: set[str] = set()  # arguments that are not known

    def add(self, block: Block[Event]) -> None:
        for index, text in block.bad.items():
            self._judge(index, text)
        self.foreign |= foreign_args(block.text, Args.__struct_encode_fields__)
        tables: dict[str, list[Event]] = {name: [] for name in _NODE_TABLES}
        others: dict[str | None, list[Event]] = defaultdict(list)
        append: dict[str | None, Callable[[Event], None]] = {
            category: tables[table].append for category, table in TABLE_OF.items()
        }
        for row in block.rows:
            (append.get(row.cat) or others[row.cat].append)(row)
        for category, rows in others.items():
            self._count_others(category, self._others(category, rows))
        for table, fill in (
            (HOST, self._host),
            (CALL, self._calls),
            (DEVICE, self._device),
            (SYNC, self._syncs),
            (EVENT, self._events),
            (FLOW, self._flows),
            (OVERHEAD, self._overhead),
        ):
            rows = tables[table] if table == FLOW else [row for row in tables[table] if row.ph == "X"]
            self.left_out["not a span (ph is not X)"] += len(tables[table]) - len(rows)
            if rows:
                fill(rows, block)
        self._launched([row for category in _LAUNCH_FLOWS for row in others.get(category, ())])

    def refuse_foreign(self, array: ArrayReader) -> None:
        """Raise InputError where neither the list nor what is around it holds anything of Kineto's, but there is
        something else.
        """
        other = kinds.NPU if self.left_out["async_npu"] else kinds.PADDLE if "span_indx" in array.around else None
        if other is not None:
            raise InputError(f"is {other.what}", path=self.path, todo=other.todo)
        known = any(self.parts[table].count for table in _NODE_TABLES)
        if known or NO_NODES & self.left_out.keys() or _OWN & array.around.keys():
            return
        texts = tuple(self.strings)
        categories = [texts[k] for k in np.unique(self.parts[OTHER].seen("category")).tolist() if not is_call(texts[k])]
        unreadable = bool(self.left_out["unreadable"])
        kinds.refuse_foreign(self.path, [*self.process_names.values()], categories, unreadable=unreadable)

    def _judge(self, index: int, text: bytes) -> None:
        """Judge a row that is no Event. One that should have a time and has none is an error, others are left out."""
        try:
            row = json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            row = None
        is_node = (
            isinstance(row, dict)
            and row.get("ph") == "X"
            and isinstance(row.get("cat"), str)
            and row["cat"] in TABLE_OF
        )
        if is_node and any(not is_time(row.get(key, 0)) for key in ("ts", "dur")):
            raise self._bad_time(index, f"ts {row.get('ts')!r:.40}, dur {row.get('dur')!r:.40}")
        self.left_out["unreadable"] += 1

    def _bad_time(self, index: int, what: str) -> InputError:
        todo = "record again, or remove it"
        return InputError(f"an event has no usable time: {what}", path=self.path, where=f"event {index}", todo=todo)

    def _count_others(self, category: str | None, rows: list[Event]) -> None:
        if category:
            self.left_out[category] += len(rows)
            return
        names = {"M": "metadata", "i": "instant", "I": "instant", "C": "counter"}
        for ph, count in Counter(row.ph for row in rows).items():
            self.left_out[names.get(ph or "", f"no category, ph {ph}")] += count
        if self.left_out["no category, ph None"] > MAX_BAD:
            todo = "check the file, or record it again"
            raise InputError(f"more than {MAX_BAD:,} of its elements are no events", path=self.path, todo=todo)

    def _others(self, category: str | None, rows: list[Event]) -> list[Event]:
        """Collect spans that may be of a device, and names of processes; return the other rows."""
        self._label([row for row in rows if row.ph == "M"])
        if category in _INSTANT:
            self.memory.add(rows)
            add_counters(self.parts[COUNTER], rows, self.strings)
        if category in NO_NODES and category != FRAME:
            return rows
        spans = [row for row in rows if row.ph == "X" and is_time(row.ts) and is_time(row.dur)]
        start, length = ns_of_us([row.ts for row in spans]), ns_of_us([row.dur or 0.0 for row in spans])
        usable = (start != MISSING) & (length != MISSING) & (length >= 0) & (np.abs(start + length) < MAX_NS)
        spans = [row for row, ok in zip(spans, usable.tolist(), strict=True) if ok]
        if not spans:
            return rows
        if category == FRAME:
            self.parts[FRAME].add(
                tid=ints([row.tid for row in spans]),
                start_ns=start[usable],
                end_ns=(start + length)[usable],
                name=self.strings.column([row.name or "" for row in spans]),
            )
            return rows
        args = [row.args or NO_ARGS for row in spans]
        self.parts[OTHER].add(
            start_ns=start[usable],
            end_ns=(start + length)[usable],
            category=self.strings.column([category or ""] * len(spans)),
            name=self.strings.column([row.name or "" for row in spans]),
            pid=ints([row.pid for row in spans]),
            tid=ints([row.tid for row in spans]),
            device=ints([a.device for a in args]),
            stream=ints([a.stream_id if a.stream is None else a.stream for a in args]),
            correlation=ints([a.correlation for a in args], 0),
            bytes=ints([a.bytes or a.size or first_word(a.mem_size) for a in args], 0),
            external=ints([a.external for a in args], 0),
            process=np.array([self.processes.setdefault(str(row.pid), len(self.processes)) for row in spans], np.int64),
            awaited=ints([a.wait_stream for a in args]),
            number=ints([a.wait_number for a in args]),
        )
        taken = set(map(id, spans))
        return [row for row in rows if id(row) not in taken]

    def _label(self, rows: list[Event]) -> None:
        for row in rows:
            pid = to_int_or_none(row.pid)
            if pid is None or row.args is None:
                continue
            if row.name == "process_labels":
                self.process_labels[pid] = str(row.args.labels or "")
            elif row.name == "process_name":
                self.process_names[pid] = str(row.args.label or "")
            elif row.name == "thread_name":
                self.thread_names[pid, to_int_or_none(row.tid)] = str(row.args.label or "")

    def _times(self, rows: list[Event], block: Block[Event]) -> tuple[I64, I64]:
        """Return the start and end of ``rows``, ns without base."""
        both_us = np.array([[row.ts for row in rows], [row.dur for row in rows]], np.float64)
        us, spans = both_us
        absent, negative = np.isnan(spans), (spans < 0) | (spans >= _UNSIGNED_US)
        self.left_out["no dur taken as 0"] += int(absent.sum())
        self.left_out["dur < 0 taken as 0"] += int(negative.sum())
        spans[absent | negative] = 0.0
        start, length = ns_of_us(both_us)
        wrong = (start == MISSING) | (length == MISSING) | (np.abs(start + length) >= MAX_NS)
        if wrong.any():
            row = rows[int(np.flatnonzero(wrong)[0])]
            index = next(index for index, other in zip(block.index, block.rows, strict=True) if other is row)
            raise self._bad_time(index, f"ts {row.ts}, dur {row.dur}")
        self.highest_us = max(self.highest_us, float(np.abs(us).max(initial=0.0)))
        self.has_fraction = self.has_fraction or bool((us != np.floor(us)).any())
        return start, start + length

    def _on_threads(self, rows: list[Event], what: str) -> tuple[list[Event], I64]:
        """Return rows with a thread number, counted for their process; the others are only counted."""
        rows, tid = self._with_number(rows, ints([row.tid for row in rows]), what)
        with suppress(TypeError):  # a list or an object in the place of the number
            self.pids.update([row.pid for row in rows])
            self.workers.update(map(str, {row.pid for row in rows if row.cat in OPS} - {None}))
        return rows, tid

    def _with_number(self, rows: list[Event], numbers: I64, what: str) -> tuple[list[Event], I64]:
        """Return rows whose number is there; count the others."""
        there = numbers != MISSING
        if there.all():
            return rows, numbers
        self.left_out[what] += int((~there).sum())
        return [row for row, ok in zip(rows, there.tolist(), strict=True) if ok], numbers[there]

    def _host(self, rows: list[Event], block: Block[Event]) -> None:
        rows, tid = self._on_threads(rows, "host row without thread number")
        self.old = self.old or any(row.cat == OLD_OP for row in rows)
        start, end = self._times(rows, block)
        args = [row.args or NO_ARGS for row in rows]
        table = self.parts[HOST]
        order = ints([a.order if a.order is not None else a.order_2022 for a in args])
        place = np.arange(table.count, table.count + len(rows))
        names = [row.name or "" for row in rows]
        for at, a in enumerate(args):
            if a.collective:
                table.comms[table.count + at] = self._comm(a)
            elif names[at] in P2P_OPS:
                table.comms[table.count + at] = peer_of(names[at], a)
        table.add(
            start_ns=start,
            end_ns=end,
            tid=tid,
            name=self.strings.column(names),
            annotation=np.array([row.cat in ANNOTATIONS for row in rows], np.bool_),
            order=np.where(order == MISSING, place, order),
            rf_id=ints([a.rf_id for a in args], 0),
            seq_id=ints([a.seq_id for a in args], -1),
            fw_tid=ints([a.fw_tid for a in args], 0),
            external=ints([a.external for a in args], 0),
            input_shapes=self.json_texts.column([a.shapes or a.shapes_2020 for a in args]),
            input_types=self.json_texts.column([a.types for a in args]),
        )

    def _calls(self, rows: list[Event], block: Block[Event]) -> None:
        rows, tid = self._on_threads(rows, "call without thread number")
        start, end = self._times(rows, block)
        self.parts[CALL].add(
            start_ns=start,
            end_ns=end,
            tid=tid,
            name=self.strings.column([row.name or "" for row in rows]),
            correlation=ints([(row.args or NO_ARGS).correlation for row in rows], 0),
            external=ints([(row.args or NO_ARGS).external for row in rows], 0),
            process=np.array([self.processes.setdefault(str(row.pid), len(self.processes)) for row in rows], np.int64),
        )

    def _device(self, rows: list[Event], block: Block[Event]) -> None:
        rows, stream = self._with_number(rows, streams_of(rows), "device row without stream")
        rows, device = self._with_number(rows, on_gpu(rows, "device", "pid"), "device row without device")
        if len(stream) != len(rows):
            stream = streams_of(rows)
        start, end = self._times(rows, block)
        args = [row.args or NO_ARGS for row in rows]
        table, graph = self.parts[DEVICE], np.maximum(ints([a.graph for a in args], 0), 0)
        graphs = bool(graph.any())
        self.has_graphs = self.has_graphs or graphs
        for at, a in enumerate(args):
            if a.collective:
                table.comms[table.count + at] = self._comm(a)
        table.add(
            start_ns=start,
            end_ns=end,
            device=device,
            stream=stream,
            graph=graph,
            pid=ints([row.pid for row in rows]) if graphs else graph,  # of nodes of graphs alone
            tid=ints([row.tid for row in rows]) if graphs else graph,
            graph_node=np.maximum(ints([a.graph_node for a in args], 0), 0),
            name=self.strings.column([row.name or "" if row.cat == "kernel" else name_on_gpu(row) for row in rows]),
            kind=np.fromiter((DEVICE_KIND[row.cat or ""] for row in rows), np.uint8, len(rows)),
            lane=lanes_of(rows, stream, self.strings) if graphs else np.zeros(len(rows), np.int32),
            correlation=known([a.correlation for a in args])[0],
            external=ints([a.external for a in args], 0),
            bytes=ints([a.bytes for a in args], 0),
            sm_share=recorded([a.blocks_per_sm for a in args]),
            blocks=ints([extent(bytes(a.grid)) if a.blocks_per_sm is None else 0 for a in args]),
            threads=ints([extent(bytes(a.block)) if a.blocks_per_sm is None else 0 for a in args]),
        )

    def _syncs(self, rows: list[Event], block: Block[Event]) -> None:
        kinds_of = [sync_kind(row) for row in rows]
        self.left_out["cuda_sync of unknown kind"] += kinds_of.count(None)
        rows = [row for row, kind in zip(rows, kinds_of, strict=True) if kind is not None]
        kind = np.array([kind for kind in kinds_of if kind is not None], np.uint8)
        start, end = self._times(rows, block)
        self.parts[SYNC].add(kind=kind, start_ns=start, end_ns=end, **sync_columns(rows, kind))

    def _events(self, rows: list[Event], block: Block[Event]) -> None:
        stream = ints([(row.args or NO_ARGS).stream for row in rows])
        rows, stream = self._with_number(rows, stream, "cuda_event without stream")
        device = on_gpu(rows, "device", "pid")
        self.parts[EVENT].add(
            correlation=ints([(row.args or NO_ARGS).correlation for row in rows], 0),
            device=np.where(device == MISSING, 0, device),
            stream=stream,
        )

    def _flows(self, rows: list[Event], block: Block[Event]) -> None:
        ns = ns_of_us([row.ts for row in rows])
        ident, tid = ints([row.id for row in rows]), ints([row.tid for row in rows])
        end = np.array([{"s": 0, "f": 1}.get(row.ph or "", 2) for row in rows], np.uint8)
        usable = (ns != MISSING) & (ident != MISSING) & (tid != MISSING) & (end < 2)
        self.left_out["fwdbwd without partner"] += int((~usable).sum())
        self.parts[FLOW].add(ns=ns[usable], ident=ident[usable], tid=tid[usable], end=end[usable])

    def _launched(self, rows: Sequence[Event]) -> None:
        """Collect what flows tell of the nodes of CUDA graphs: what they wait for, and which hang on the launch."""
        if not self.has_graphs and not self.flows:
            return
        rows = [row for row in rows if self.flows or row.ph == "f" or to_int(row.id, 0) >= NODE_FLOWS]
        rows, ident = self._with_number(rows, ints([row.id for row in rows]), "launch flow without id")
        self.parts[LAUNCHED].add(
            ns=ns_of_us([row.ts for row in rows]),
            ident=ident,
            pid=ints([row.pid for row in rows]),
            tid=ints([row.tid for row in rows]),
            end=np.array([row.ph == "f" for row in rows], np.bool_),
        )

    def _overhead(self, rows: list[Event], block: Block[Event]) -> None:
        self.left_out["overhead"] += len(rows)  # they are no nodes
        start, end = self._times(rows, block)
        self.parts[OVERHEAD].add(start_ns=start, end_ns=end, name=self.strings.column([row.name or "" for row in rows]))

    def _comm(self, a: Args) -> Comm:
        raw = COMM_FIELDS(a)
        try:
            comm = self.comms.get(raw)
        except TypeError:  # a list in the place of text
            return comm_of(a)
        if comm is None:
            comm = self.comms[raw] = comm_of(a)
        return comm

    def trace(self, array: ArrayReader) -> Trace:
        """Return the trace of all that was read, sorted, on the recording's clock."""
        around = {key: loose(raw) for key, raw in array.around.items() if key in _AROUND or JOB_KEY.search(key)}
        base = to_int(around.get("baseTimeNanoseconds", 0), 0)
        if abs(base) >= MAX_NS:
            what = f"baseTimeNanoseconds {base} is no time"
            raise InputError(what, path=self.path, todo="record again, or remove it")
        info, rank, world_size, warnings = distributed(around)
        pids = [pid for pid in map(to_int_or_none, (pid for pid, _ in self.pids.most_common())) if pid is not None]
        written_ns = int(np.spacing(self.highest_us) * 1000) if self.has_fraction else 1000
        parts, calls, device = self.parts, self.parts[CALL], self.parts[DEVICE]
        of_devices = device_processes(self.process_labels, self.process_names, parts[LAUNCHED]) - {*pids}
        unplaced, placed = place(parts[OTHER], parts, self.strings, of_devices, pids)
        self.left_out.update(unplaced)
        mended, told = mend_calls(parts, self.strings, 2 + 2 * written_ns)
        deps = graph_deps(parts[LAUNCHED], device, written_ns)
        refuse_processes(self.path, calls, device, [*self.processes], sorted(self.workers))
        warnings += [*told, *put_right(parts, self.strings, self.left_out), *placed]
        warnings += [*bare_copies(device, self.strings), *unread(self.foreign)]
        gpus = gpus_of(around.get("deviceProperties"))
        fill_in(device, calls, self.strings, gpus)
        exact = self.highest_us < _EXACT_US and self.has_fraction
        pid = pids[0] if pids else None
        add_base(parts.values(), base, self.path)
        name_lanes(device, self.thread_names, self.strings)
        trace = Trace(
            path=self.path,
            host=host_rows(parts[HOST], tuple(self.strings), old=self.old),
            calls=parts[CALL].table(CallRows, by_start(parts[CALL], longest_first=True)),
            device=device.table(DeviceRows, by_start(device), cut_ns=None),
            syncs=parts[SYNC].table(SyncRows, by_start(parts[SYNC])),
            events=parts[EVENT].table(EventRows, np.arange(parts[EVENT].count)),
            flows=flow_rows(parts[FLOW], self.left_out),
            overhead=parts[OVERHEAD].table(OverheadRows, by_start(parts[OVERHEAD])),
            strings=tuple(self.strings),
            pid=pid,
            rank=rank,
            world_size=world_size,
            process_groups=process_groups(info.get("pg_config")),
            resolution_ns=1 if exact else 1000,
            left_out={reason: count for reason, count in self.left_out.items() if count},
            warnings=tuple(warnings),
            frames=parts[FRAME].table(FrameRows, np.arange(parts[FRAME].count)) if parts[FRAME].count else None,
            gpus=gpus,
            system=system_of(around, info.get("nccl_version")),
            host_name=host_name(around, pid),
            job=job_of(around),
            graph_deps=deps,
            counters=counter_rows(parts[COUNTER]),
            mended=mended,
            memory=self.memory.found(around.get("deviceProperties")),
        )
        lanes = sum(len(distinct(column)) for column in (trace.host.tid, trace.calls.tid, trace.device.stream))
        refuse_span(self.path, (trace.host, trace.calls, trace.device, trace.syncs), lanes)
        return trace
