"""CUDA graphs with branches on a simulated device that runs nodes on whatever stream is free, recorded as PyTorch's own
recorder of CUDA does: as JSON or ``.pftrace``, with dependencies, lanes and counters. Times are ns.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

Row = dict[str, Any]
BASE, PID, TID, MAIN, GRAPH = 1_790_857_026_000_000_000, 77, 78, 7, 2
FIRST_LANE, FIRST_FLOW = 100_000, 1 << 40
SAMPLE_NS, COUNTER = 20_000, "SM Active (%)"
_LATE_NS = 1_000  # from what an op waits for to its start
_JITTER_NS = 300  # more, so that no two nodes of a lane begin together in all replays
_EXTRA = {"stream": "stream id", "context": "context id"}  # as .pftrace names them


@dataclass
class Program:
    """Kernels and replays of one graph, one after the other on ``MAIN``. Node k waits for the nodes ``after[k]``, takes
    ``took_ns[k]`` and is of ``layer[k]``."""

    after: list[list[int]]
    took_ns: list[int]
    layer: list[int]
    streams: int = 8
    what: str = "krkrrk"  # kernels and replays

    @classmethod
    def random(cls, seed: int) -> Program:
        """Return a program whose last node joins all others: of one behind it that nothing ties to the rest nobody can
        tell whether it is of this graph, or of one inside it."""
        choose = random.Random(seed)
        count = choose.randint(2, 24)
        after = [sorted(choose.sample(range(k), min(k, choose.choice((0, 1, 1, 2, 3))))) for k in range(count)]
        after.append(sorted({*range(count)} - {other for before in after for other in before}))
        count += 1
        took = [choose.randint(2_000, 60_000) for _ in range(count)]
        return cls(after, took, [choose.randrange(4) for _ in range(count)])


@dataclass
class Recorded:
    """``device``: rows with start, end, stream and, of nodes, their number; ``end_ns`` of all."""

    program: Program
    calls: list[Row] = field(default_factory=list)
    device: list[Row] = field(default_factory=list)
    end_ns: int = 0


def run(program: Program, factor: float = 1.0) -> Recorded:
    """Run a program with all device work ``factor`` times as long. The host is far ahead of the device."""
    out, done, host_ns, choose = Recorded(program), 100_000, 1_000, random.Random(len(program.after))
    for number, what in enumerate(program.what, start=1):
        name = "cudaGraphLaunch" if what == "r" else "cudaLaunchKernel"
        out.calls.append({"name": name, "start": host_ns, "end": host_ns + 1_000, "correlation": number})
        host_ns += 2_000
        ends: list[int] = []
        free = dict.fromkeys([MAIN, *range(142, 141 + program.streams)], 0)
        nodes = zip(program.after, program.took_ns, strict=True) if what == "r" else [([], 4_000)]
        for node, (before, took_ns) in enumerate(nodes):
            start = max([done, *(ends[other] for other in before)]) + _LATE_NS + choose.randrange(_JITTER_NS)
            stream = next((one for one, until in free.items() if until <= start), min(free, key=free.__getitem__))
            start = max(start, free[stream])
            free[stream] = start + round(took_ns * factor)
            ends.append(free[stream])
            row = {"name": "kernel" if what == "k" else f"n{node}", "start": start, "end": free[stream]}
            out.device.append(row | {"stream": stream, "correlation": number, "node": node if what == "r" else None})
        done = max(ends)
    sync = len(out.calls) + 1
    out.end_ns = done + 5_000
    out.calls.append({"name": "cudaDeviceSynchronize", "start": host_ns, "end": out.end_ns, "correlation": sync})
    return out


def document(recorded: Recorded, *, deps: bool = True, lanes: bool = False, busy_pct: float = 0.0) -> Row:
    """Return the recording as JSON. ``busy_pct``: what a counter shows while the device works; 0: none is recorded."""
    rows = [_span("cpu_op", "op", 0, recorded.end_ns + 1_000), _span("cpu_op", "next", recorded.end_ns + 2_000, 9_000)]
    rows[1]["dur"] = 1.0
    for call in recorded.calls:
        args = {"cbid": 1, "correlation": call["correlation"]}
        rows.append(_span("cuda_runtime", call["name"], call["start"], call["end"], args))
    last = recorded.calls[-1]
    args = {"cuda_sync_kind": "Context Sync", "stream": -1, "correlation": last["correlation"], "device": 0}
    rows.append(_span("cuda_sync", "Context Sync", last["start"], last["end"], args) | {"pid": 0, "tid": -1})
    flow = FIRST_FLOW
    replay: list[Row] = []
    for one in recorded.device:
        layer = recorded.program.layer[one["node"]] if lanes and one["node"] is not None else None
        line = one["stream"] if layer is None else FIRST_LANE + layer
        args = {"device": 0, "context": 1, "stream": line, "correlation": one["correlation"], "queued": 0}
        if one["node"] is not None:
            args |= {"graph id": GRAPH, "graph node id": one["node"]}
            args |= {} if layer is None else {"original_stream": one["stream"], "name": f"layer {layer}"}
            replay = [] if one["node"] == 0 else replay
        row = _span("kernel", one["name"], one["start"], one["end"], args) | {"pid": 0, "tid": line}
        rows.append(row)
        before = recorded.program.after[one["node"]] if deps and one["node"] is not None else []
        for other in before:
            rows += _flow(flow, replay[other], row)
            flow += 1
        if not before:
            rows.append(_flow(one["correlation"], row, row)[1])
        replay.append(row)
    rows += _counters(recorded, busy_pct) if busy_pct else []
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE, "traceEvents": rows}


def _span(cat: str, name: str, start: int, end: int, args: Row | None = None) -> Row:
    ts, dur = start / 1000, (end - start) / 1000
    return {"ph": "X", "cat": cat, "name": name, "pid": PID, "tid": TID, "ts": ts, "dur": dur, "args": args or {}}


def _flow(number: int, source: Row, target: Row) -> list[Row]:
    ends = (("s", source, source["ts"] + source["dur"]), ("f", target, target["ts"]))
    common = {"id": number, "cat": "ac2g", "name": "ac2g"}
    return [common | {"ph": ph, "pid": 0, "tid": row["tid"], "ts": round(ts, 3), "bp": "e"} for ph, row, ts in ends]


def _counters(recorded: Recorded, busy_pct: float) -> list[Row]:
    """Return samples, each at its begin: a part of ``busy_pct`` as large as that of it in which anything ran."""
    spans = [(row["start"], row["end"]) for row in recorded.device]
    rows = []
    for start in range(0, recorded.end_ns, SAMPLE_NS):
        marks = sorted(
            {start, start + SAMPLE_NS, *(at for span in spans for at in span if start < at < start + SAMPLE_NS)}
        )
        worked = sum(
            high - low
            for low, high in itertools.pairwise(marks)
            if any(begin <= low and high <= end for begin, end in spans)
        )
        args = {"": busy_pct * worked / SAMPLE_NS}
        rows.append({"ph": "C", "name": COUNTER, "pid": "GPU 0 Counters", "ts": start / 1000, "args": args})
    return rows


def write(path: Path, recording: Row) -> Path:
    """Write a recording as ``.pftrace`` or JSON, by the name of the file."""
    path.write_bytes(pftrace(recording) if path.suffix == ".pftrace" else json.dumps(recording).encode())
    return path


def pftrace(recording: Row) -> bytes:
    """Return what the recorder writes of the same window as Perfetto's packets: all begins before all ends."""
    trace, rows = pb.Trace(), recording["traceEvents"]

    def packet(us: float = 0.0) -> Any:
        return trace.packet.add(timestamp=BASE + round(us * 1000))

    snapshot = packet().clock_snapshot.clocks
    snapshot.add(clock_id=6, timestamp=BASE)
    snapshot.add(clock_id=1, timestamp=BASE)
    for uuid, pid, name in ((1, PID, "python3"), (3, 0, "GPU 0")):
        track = packet().track_descriptor
        track.uuid, track.process.pid, track.process.process_name = uuid, pid, name
    for uuid, pid, tid in ((2, PID, TID), (4, 0, MAIN)):
        track = packet().track_descriptor
        track.uuid, track.thread.pid, track.thread.tid, track.thread.thread_name = uuid, pid, tid, f"thread {tid}"
    words, spans = packet().interned_data, [row for row in rows if row["ph"] == "X"]
    names = {name: k for k, name in enumerate(dict.fromkeys(row["name"] for row in spans), start=1)}
    cats = {name: k for k, name in enumerate(("cpu_op", "cuda_runtime"), start=1)}
    lines = {row["tid"]: k for k, row in enumerate((r for r in spans if r["cat"] == "kernel"), start=100)}
    for table, entries in ((words.event_names, names), (words.event_categories, cats)):
        for name, iid in entries.items():
            table.add(iid=iid, name=name)
    words.gpu_specifications.add(iid=1, name="Kernel")
    for line, iid in lines.items():
        label = f"stream {line}" if line < FIRST_LANE else f"layer {line - FIRST_LANE}"
        words.gpu_specifications.add(iid=iid, name=f"[{line:06d}] {label}")
    specs = words.gpu_counter_descriptors.add(iid=1, gpu_id=0).counter_descriptor.specs
    specs.add(counter_id=1, name=COUNTER)
    slices = [row for row in spans if row["cat"] != "kernel"]
    for kind in (pb.TrackEvent.TYPE_SLICE_BEGIN, pb.TrackEvent.TYPE_SLICE_END):
        for row in slices:
            begins = kind == pb.TrackEvent.TYPE_SLICE_BEGIN
            event = packet(row["ts"] if begins else row["ts"] + row["dur"]).track_event
            event.type, event.track_uuid = kind, 2 if row["pid"] == PID else 4
            if begins:
                event.name_iid = names[row["name"]]
                event.category_iids.extend([cats[row["cat"]]] if row["cat"] in cats else [])
                for key, value in row["args"].items():
                    kept = {"string_value": value} if isinstance(value, str) else {"int_value": value}
                    event.debug_annotations.add(name=key, **kept)
    _stages([row for row in spans if row["cat"] == "kernel"], rows, packet, lines, names)
    for row in rows:
        if row["ph"] == "C":
            sample = packet(row["ts"]).gpu_counter_event
            sample.counter_descriptor_iid = 1
            sample.counters.add(counter_id=1).double_value = row["args"][""]
    return bytes(trace.SerializeToString())


def _stages(kernels: list[Row], rows: list[Row], packet: Any, lines: dict[int, int], names: dict[str, int]) -> None:
    idents = {(row["tid"], round(row["ts"] + row["dur"], 3), row["name"]): k for k, row in enumerate(kernels, start=1)}
    by_end: dict[Any, list[Row]] = {}
    by_start: dict[Any, list[Row]] = {}
    for row in kernels:
        by_end.setdefault((row["tid"], round(row["ts"] + row["dur"], 3)), []).append(row)
        by_start.setdefault((row["tid"], row["ts"]), []).append(row)
    flows: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["ph"] in "sf" and row["id"] >= FIRST_FLOW:
            flows.setdefault(row["id"], {})[row["ph"]] = row
    waits: dict[int, list[int]] = {}
    for ends in flows.values():
        (source,) = by_end[ends["s"]["tid"], ends["s"]["ts"]]
        (target,) = by_start[ends["f"]["tid"], ends["f"]["ts"]]
        ident = idents[target["tid"], round(target["ts"] + target["dur"], 3), target["name"]]
        waits.setdefault(ident, []).append(
            idents[source["tid"], round(source["ts"] + source["dur"], 3), source["name"]]
        )
    for ident, row in enumerate(kernels, start=1):
        stage = packet(row["ts"]).gpu_render_stage_event
        stage.event_id, stage.duration, stage.hw_queue_iid = ident, round(row["dur"] * 1000), lines[row["tid"]]
        stage.stage_iid, stage.name_iid = 1, names[row["name"]]
        stage.event_wait_ids.extend(waits.get(ident, []))
        args = dict(row["args"])
        args["stream"] = args.pop("original_stream", args["stream"])
        for key, value in args.items():
            stage.extra_data.add(name=_EXTRA.get(key, key), value=str(value))
