"""Worked examples of CUDA synchronisation with explicit times and the edges that are right, as Kineto documents.

Each is a place where tools go wrong: several waits before one op, chains through idle streams, other threads, other
devices, graph and cooperative launches, blocking copies, queries, rows without calls. Numbers as in the list of faults
known of HTA.

Text, times in us: ``L kA s20@10`` launches kA onto stream 20 at 10; ``G`` graph launch, ``C`` cooperative launch, ``S``
memset, ``M`` blocking cudaMemcpy, ``R r s7@16`` record of event r, ``W r s7@50`` stream 7 waits for r, ``SS
s7@30-125``, ``DS@230-240``, ``ES r@40-540``, ``EQ r@30-33`` stream, device, event synchronisation and query. Thread 1
and device 0 unless ``T2`` or ``d1`` says otherwise; a ``!`` at the end marks a ``cuda_sync`` row without its call.
Labels are the names; calls without one are named by kind (SS, SS2, ...).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.simulator.dialects import BASE_NS, EPOCH_NS

_CALL = re.compile(
    r"(?:T(?P<thread>\d) )?(?P<kind>[A-Z]+)(?: (?P<what>[a-z]\w*))??(?: d(?P<device>\d))?(?: s(?P<stream>\d+))?"
    r"@(?P<start>[\d.]+)(?:-(?P<end>[\d.]+))?(?P<no_call>!?)"
)
_OP = re.compile(r"(?P<what>\w+) (?P<start>[\d.]+)-(?P<end>[\d.]+)")
_NAME = {
    "L": "cudaLaunchKernel", "G": "cudaGraphLaunch", "C": "cudaLaunchCooperativeKernel", "S": "cudaMemsetAsync",
    "M": "cudaMemcpy", "R": "cudaEventRecord", "W": "cudaStreamWaitEvent", "SS": "cudaStreamSynchronize",
    "DS": "cudaDeviceSynchronize", "ES": "cudaEventSynchronize", "EQ": "cudaEventQuery",
}  # fmt: skip
_ROW = {"W": "Stream Wait Event", "SS": "Stream Sync", "DS": "Context Sync", "ES": "Event Sync", "EQ": "Event Sync"}
_CATEGORY = {"M": "gpu_memcpy", "S": "gpu_memset"}
LAUNCHES = ("L", "G", "C", "S", "M")
_PID = 1000


@dataclass(frozen=True, slots=True)
class ScenarioCall:
    """A call, or a sync row without one. ``what`` is the device op that a launch starts, or the event. Times in ns from
    0.
    """

    label: str
    kind: str
    what: str | None
    thread: int
    device: int
    stream: int
    start_ns: int
    end_ns: int
    has_call: bool


@dataclass(frozen=True, slots=True)
class ScenarioOp:
    """A device op; its device and stream are its launching call's."""

    label: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class HostSpan:
    thread: int
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Expected:
    """The right edges by label: ``waits`` (device op, call), ``event_edges`` (device op, device op), ``targets`` (call,
    next host op).
    """

    waits: frozenset[tuple[str, str]]
    event_edges: frozenset[tuple[str, str]]
    targets: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One worked example. ``correlation`` of a label joins it to the rows of ``document()``."""

    key: str
    title: str
    calls: tuple[ScenarioCall, ...]
    device: tuple[ScenarioOp, ...]
    expected: Expected
    ops: tuple[HostSpan, ...] = ()
    sync_rows: bool = True
    record_ids: bool = True
    event_row_ns: int | None = None  # 2026: a cuda_event row for each record, at this time

    def correlation(self, label: str) -> int:
        """Of a call, or of a device op by its launching call."""
        for i, call in enumerate(self.calls):
            if call.label == label or (call.kind in LAUNCHES and call.what == label):
                return 100 + i
        raise KeyError(label)

    def spans(self) -> tuple[HostSpan, ...]:
        """Host ops: the scenario's own, else one around each call and a last one on each thread after everything."""
        if self.ops:
            return self.ops
        ends = [row.end_ns for row in self.calls] + [op.end_ns for op in self.device]
        around = [
            HostSpan(call.thread, f"aten::op_{call.label}", call.start_ns - 200, call.end_ns + 200)
            for call in self.calls
            if call.has_call
        ]
        last = [
            HostSpan(t, "aten::last", max(ends) + 10_000, max(ends) + 12_000)
            for t in sorted({c.thread for c in self.calls})
        ]
        return (*around, *last)

    def document(self, *, ops: bool = True) -> dict[str, Any]:
        """A Kineto document of mid 2024 (exact ns), with or without host ops."""
        rows: list[dict[str, Any]] = []
        if ops:
            rows += [
                _row("cpu_op", s.name, _PID, 1000 + s.thread, s.start_ns, s.end_ns, {"External id": i + 1, "Ev Idx": i})
                for i, s in enumerate(self.spans())
            ]
        times = {op.label: op for op in self.device}
        for call in self.calls:
            correlation = self.correlation(call.label)
            args = {"External id": correlation, "correlation": correlation}
            if call.has_call:
                category = "cuda_runtime"
                rows.append(
                    _row(
                        category,
                        _NAME[call.kind],
                        _PID,
                        1000 + call.thread,
                        call.start_ns,
                        call.end_ns,
                        {"cbid": 1} | args,
                    )
                )
            if call.kind in LAUNCHES and call.what in times:
                op = times[call.what]
                args |= {"device": call.device, "context": 1, "stream": call.stream}
                category = _CATEGORY.get(call.kind, "kernel")
                rows.append(_row(category, op.label, call.device, call.stream, op.start_ns, op.end_ns, args))
            if call.kind in _ROW and (self.sync_rows or not call.has_call):
                rows.append(self._sync_row(call, args))
            if call.kind == "R" and self.event_row_ns is not None:
                args |= {"device": call.device, "stream": call.stream}
                at_ns = self.event_row_ns
                rows.append(_row("cuda_event", "cudaEvent", call.device, call.stream, at_ns, at_ns, args))
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0}, {"id": 1}],
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": rows,
        }

    def _sync_row(self, call: ScenarioCall, args: dict[str, Any]) -> dict[str, Any]:
        stream = call.stream if call.kind in ("SS", "W") else -1
        args = args | {"cuda_sync_kind": _ROW[call.kind], "stream": stream, "device": call.device, "context": 1}
        if call.what is not None:
            record = next(c for c in self.calls if c.kind == "R" and c.what == call.what)
            args["wait_on_stream"] = record.stream if self.record_ids else -1
            args["wait_on_cuda_event_record_corr_id"] = self.correlation(record.label) if self.record_ids else -1
            args["wait_on_cuda_event_id"] = 1 + sorted({c.what for c in self.calls if c.what and c.kind == "R"}).index(
                call.what
            )
        inset_ns = min(200, (call.end_ns - call.start_ns) // 4) if call.has_call else 0
        start_ns, end_ns = call.start_ns + inset_ns, call.end_ns - inset_ns
        return _row("cuda_sync", _ROW[call.kind], call.device, stream, start_ns, end_ns, args)


def _row(
    category: str, name: str, pid: int, tid: int, start_ns: int, end_ns: int, args: dict[str, Any]
) -> dict[str, Any]:
    ts = (EPOCH_NS - BASE_NS + start_ns) / 1000
    head = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": ts}
    return head | {"dur": (end_ns - start_ns) / 1000, "args": args}


def _ns(us: str) -> int:
    return round(float(us) * 1000)


def _calls(text: str) -> tuple[ScenarioCall, ...]:
    found, seen = [], Counter[str]()
    for part in text.split(", "):
        m = _CALL.fullmatch(part)
        assert m is not None, part
        kind, what, start_ns = m["kind"], m["what"], _ns(m["start"])
        label = kind if what is None or kind not in (*LAUNCHES, "R") else f"{kind}_{what}"
        seen[label] += 1
        if seen[label] > 1:
            label += str(seen[label])
        usual_ns = 5_000 if kind in LAUNCHES else 2_000
        end_ns = start_ns + usual_ns if m["end"] is None else _ns(m["end"])
        thread, device, stream = int(m["thread"] or 1), int(m["device"] or 0), int(m["stream"] or 7)
        found.append(ScenarioCall(label, kind, what, thread, device, stream, start_ns, end_ns, not m["no_call"]))
    return tuple(found)


def _device(text: str) -> tuple[ScenarioOp, ...]:
    matches = [_OP.fullmatch(part) for part in text.split(", ")] if text else []
    return tuple(ScenarioOp(m["what"], _ns(m["start"]), _ns(m["end"])) for m in matches if m is not None)


def _make(key: str, title: str, calls: str, device: str, edges: str = "", **more: Any) -> Scenario:
    """``edges``: ``kA->kC kC->SS``, device ops begin with a small letter, calls with a capital one."""
    pairs = [tuple(edge.split("->")) for edge in edges.split()]
    waits = frozenset((a, b) for a, b in pairs if b[0].isupper())
    event_edges = frozenset((a, b) for a, b in pairs if not b[0].isupper())
    targets: frozenset[tuple[str, str]] = more.pop("targets", frozenset())
    return Scenario(key, title, _calls(calls), _device(device), Expected(waits, event_edges, targets), **more)


def _spans(*spans: tuple[int, str, float, float]) -> tuple[HostSpan, ...]:
    return tuple(HostSpan(thread, name, round(a * 1000), round(b * 1000)) for thread, name, a, b in spans)


_TWO_WAITS = "L kA s20@10, R r1 s20@16, L kB s24@30, R r2 s24@36, W r1 s7@50, W r2 s7@55, L kC s7@60"

SCENARIOS: tuple[Scenario, ...] = (
    _make("1", "two waits before one op", _TWO_WAITS, "kA 20-120, kB 40-190, kC 200-220", "kA->kC kB->kC"),
    _make("2", "wait on the own stream", "L kA s7@10, R r s7@16, W r s7@30, L kB s7@40", "kA 20-120, kB 121-141"),
    _make(
        "3", "another thread enqueues during the synchronisation",
        "L kA s7@10, SS s7@30-125, T2 L kB s7@60", "kA 20-120, kB 121-321", "kA->SS",
    ),
    _make("4", "query that is not ready", "L kA s7@10, R r s7@16, EQ r@30-33, ES r@40-540", "kA 20-520", "kA->ES"),
    _make(
        "5", "chain through an idle stream",
        "L kA s20@10, R r1 s20@16, W r1 s24@30, R r2 s24@36, W r2 s7@45, L kC s7@60", "kA 20-120, kC 125-145", "kA->kC",
    ),
    _make(
        "6", "two devices with the same stream number",
        "L k0 s7@10, L k1 d1 s7@30, SS s7@60-72, DS@400-410, DS d1@420-430", "k0 20-70, k1 40-340",
        "k0->SS k0->DS k1->DS2",
    ),
    _make(
        "8", "synchronisations shorter than 1 us",
        "L kA s7@10.2, SS s7@30.2-31.1, L kB s7@40.1, SS s7@60.2-64.1", "kA 20.3-25.4, kB 50.3-55.4", "kA->SS kB->SS2",
    ),
    _make(
        "9", "source launched by a graph",
        "L kOld s20@10, G kA s20@20, R r s20@30, W r s7@40, L kC s7@60", "kOld 15-20, kA 30-130, kC 140-160", "kA->kC",
    ),
    _make(
        "10", "the next op of the stream comes from another thread",
        "L kA s20@10, R r s20@16, W r s7@30, T2 L kB s7@40, L kC s7@60", "kA 20-120, kB 121-141, kC 145-165", "kA->kB",
    ),
    _make("12", "cuda_event rows are no work", "L kA s7@10, R r s7@16, SS "
                                               "s7@130-135", "kA 20-120", "kA->SS", event_row_ns=121_000),
    _make("13", "record ids -1: rows do not "
                "tell", _TWO_WAITS, "kA 20-120, kB 40-190, kC 200-220", "", record_ids=False),
    _make("15", "no device rows", "L kA s7@10, SS s7@30-40", "", ""),
    _make(
        "16", "synchronisation rows without calls",
        "L kA s7@10, R r s7@16, ES r@50-130!, DS@140-145!", "kA 20-120", "",
    ),
    _make(
        "16b", "wait row without a call",
        "L kA s20@10, R r s20@16, W r s7@30!, L kB s7@40", "kA 20-120, kB 121-141", "kA->kB",
    ),
    _make(
        "17", "one record awaited on two devices",
        "L kA s20@10, R r s20@16, W r s7@30, L k0 s7@40, W r d1 s7@50, L k1 d1 "
        "s7@60", "kA 20-120, k0 121-141, k1 130-150",
        "kA->k0 kA->k1",
    ),
    _make(
        "18", "blocking copy",
        "L kA s7@10, M copy s7@30-133, L kB s7@140", "kA 20-120, copy 121-131, kB 150-155", "copy->M_copy",
    ),
    _make(
        "19", "calls without rows: inferred",
        "L kA s7@10, SS s7@30-125, L kB s7@140, DS@170-174", "kA 20-120, kB 150-155", "kA->SS kB->DS", sync_rows=False,
    ),
    _make(
        "20", "the snapshot is taken at the record",
        "L kA s7@10, R r s7@16, L kB s7@30, ES r@40-125", "kA 20-120, kB 121-221", "kA->ES",
    ),
    _make(
        "21", "consumer by a cooperative launch",
        "L kA s20@10, R r s20@16, W r s7@30, C kB s7@40, L kC s7@60", "kA 20-120, kB 121-141, kC 145-165", "kA->kB",
    ),
    _make(
        "22", "launch call shorter than 1 us",
        "L kA s7@10.2, S memset s7@20.2-20.9, SS s7@40.2-85.5", "kA 20.3-25.4, memset 30.3-80.4", "memset->SS",
    ),
    _make(
        "7.3", "two streams, two threads, mapped onto operators",
        "L kA s20@105, R r1 s20@115, L kB s21@140, R r2 s21@150, W r1 s7@170, W r2 s7@178, L kC s7@195, SS s7@220-505, "
        "L kD s7@545",
        "kA 120-420, kB 160-360, kC 420-500, kD 560-590", "kA->kC kB->kC kC->SS",
        targets=frozenset({("SS", "aten::item")}),
        ops=_spans(
            (1, "aten::mm", 100, 130), (1, "aten::add", 135, 165), (1, "aten::relu", 190, 215),
            (2, "aten::other_thread", 300, 310), (1, "aten::item", 510, 530), (1, "aten::mul", 540, 560),
        ),
    ),
)  # fmt: skip
