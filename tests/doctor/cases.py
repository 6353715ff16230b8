"""Recordings that each lack one thing, and the findings that are true of them, no more and no less."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.doctor.recordings import (
    CALLS,
    DEVICE,
    HOST,
    Document,
    both,
    rows,
    without,
    without_args,
    without_first_calls,
)
from tests.simulator import Variation, faults
from tests.simulator.changes import Changed


@dataclass(frozen=True)
class Case:
    """``how``: arguments of ``write_run``."""

    name: str
    findings: set[str]
    how: dict[str, Any] = field(default_factory=dict)


def _no_steps(document: Document) -> None:
    document["traceEvents"] = [
        event for event in document["traceEvents"] if not event["name"].startswith("ProfilerStep")
    ]


def _first_step(document: Document) -> None:
    """Keeps what began in the first step alone, without its mark."""
    (first, *_) = (event for event in document["traceEvents"] if event["name"].startswith("ProfilerStep"))
    _no_steps(document)
    until = first["ts"] + first["dur"]
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("ts", 0) < until]


def _empty(document: Document) -> None:
    document["traceEvents"] = []


def _without_correlation(document: Document) -> None:
    for kernel in rows(document, "kernel")[:5]:
        del kernel["args"]["correlation"]


def _syncs_without_correlation(document: Document) -> None:
    for row in rows(document, "cuda_sync"):
        del row["args"]["correlation"]


def _lost_kernels(document: Document) -> None:
    """The kernels of the middle of the run, which no call waited for, are gone."""
    lost = [id(row) for row in rows(document, "kernel")[40:43]]
    document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in lost]


def _unknown_device(document: Document) -> None:
    """A row of the call of a kernel that says neither stream nor device, beside rows of the host."""
    kernel = copy.deepcopy(rows(document, "kernel")[5])
    kernel["args"] = {"correlation": kernel["args"]["correlation"]}
    document["traceEvents"].append(kernel | {"cat": "dsp_op", "pid": rows(document, "cpu_op")[0]["pid"]})


def _early(document: Document) -> None:
    """The first kernel starts 150 us before its launch call: further than clocks are apart."""
    kernel = rows(document, "kernel")[0]
    (call,) = [row for row in rows(document, *CALLS) if row["args"]["correlation"] == kernel["args"]["correlation"]]
    kernel["ts"] = call["ts"] - 150


def _lost_calls(document: Document) -> None:
    lost = [row["args"]["correlation"] for row in rows(document, "kernel")[40:43]]
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") not in CALLS or event["args"]["correlation"] not in lost
    ]


def _repeated(document: Document) -> None:
    """A call of another recording, with a correlation id of this one, after all others."""
    last = max(rows(document, *CALLS), key=lambda row: row["ts"])
    args = {"correlation": rows(document, *CALLS)[0]["args"]["correlation"]}
    again = {"name": "cudaGetDevice", "ts": last["ts"] + last["dur"], "dur": 0.1, "args": args}
    document["traceEvents"].append(copy.deepcopy(last) | again)


def _overrun(document: Document) -> None:
    kernels = sorted(rows(document, "kernel"), key=lambda row: (row["pid"], row["tid"], row["ts"]))
    threes = zip(kernels, kernels[1:], kernels[2:], strict=False)
    first, _, last = next(three for three in threes if len({(row["pid"], row["tid"]) for row in three}) == 1)
    first["dur"] = last["ts"] + last["dur"] + 5 - first["ts"]


def _late(document: Document) -> None:
    """An op inside another one ends 1 us after it, before the next begins."""
    ops = sorted(rows(document, "cpu_op"), key=lambda row: (row["tid"], row["ts"], -row["dur"]))
    for outer, inner, after in zip(ops, ops[1:], ops[2:], strict=False):
        end = outer["ts"] + outer["dur"]
        same = outer["tid"] == inner["tid"] == after["tid"]
        if same and inner["ts"] + inner["dur"] <= end and after["ts"] > end + 2:
            inner["dur"] = end + 1 - inner["ts"]
            return


def _outlasting(document: Document) -> None:
    """An op inside another one of the first step lasts for 9 s."""
    ops = sorted(rows(document, "cpu_op"), key=lambda row: (row["tid"], row["ts"], -row["dur"]))
    next(inner for outer, inner in itertools.pairwise(ops) if outer["ts"] + outer["dur"] > inner["ts"] + inner["dur"])[
        "dur"
    ] = 9e6


def _marks_overlap(document: Document) -> None:
    marks = [row for row in rows(document, "user_annotation") if row["name"].startswith("ProfilerStep")]
    marks.sort(key=lambda row: row["ts"])
    for mark, after in itertools.pairwise(marks):
        mark["dur"] = after["ts"] + 0.5 - mark["ts"]


def _in_place(fault: Callable[[Document], Changed]) -> Callable[[Document], None]:
    def change(document: Document) -> None:
        document["traceEvents"] = fault(document).document["traceEvents"]

    return change


def _swapped(document: Document) -> None:
    """Two kernels that follow each other have each other's correlation id."""
    kernels = sorted(rows(document, "kernel"), key=lambda row: (row["pid"], row["tid"], row["ts"]))
    first, second = next((a, b) for a, b in itertools.pairwise(kernels) if (a["pid"], a["tid"]) == (b["pid"], b["tid"]))
    numbers = first["args"]["correlation"], second["args"]["correlation"]
    second["args"]["correlation"], first["args"]["correlation"] = numbers


def _backward_twice(document: Document) -> None:
    first, second = [row for row in rows(document, "cpu_op") if row["name"].startswith("autograd::engine")][:2]
    second["args"]["Sequence number"] = first["args"]["Sequence number"]


def _record_after(document: Document) -> None:
    waits = [row for row in rows(document, "cuda_sync") if "wait_on_cuda_event_record_corr_id" in row["args"]]
    name = "wait_on_cuda_event_record_corr_id"
    last = max(row["args"][name] for row in waits)
    next(row for row in waits if row["args"][name] < last)["args"][name] = last


def _over_early(document: Document) -> None:
    """A synchronisation that blocked for long returns when it has begun, and the next one waits for what it did."""
    calls = [row for row in rows(document, *CALLS) if row["name"] == "cudaStreamSynchronize"]
    call = max(calls, key=lambda row: row["dur"])
    for row in (call, *rows(document, "cuda_sync")):
        if row["args"]["correlation"] == call["args"]["correlation"]:
            row["dur"] = 1


def _sync_rows_alone(document: Document) -> None:
    of_rows = {row["args"]["correlation"] for row in rows(document, "cuda_sync")[:3]}
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") not in CALLS or event["args"]["correlation"] not in of_rows
    ]


def _damaged(document: Document) -> None:
    document["traceEvents"].append(copy.deepcopy(rows(document, "cpu_op")[0]) | {"tid": "main"})


def _overhead(document: Document) -> None:
    for row in rows(document, "overhead"):
        row["dur"] = 1000


def _no_info(document: Document) -> None:
    del document["distributedInfo"]


def _odd_rank(document: Document) -> None:
    document["distributedInfo"]["rank"] = "first"


def _other_process(document: Document) -> None:
    document["pid"] = 99


def _one_step(document: Document) -> None:
    """The nodes of the execution trace that end before the first ProfilerStep does."""
    nodes = document["nodes"]
    first = next(at for at, node in enumerate(nodes) if node["name"].startswith("ProfilerStep"))
    document["nodes"] = nodes[: first + 1] + [
        node for node in nodes[first + 1 :] if node["name"].startswith(("[pytorch", "##"))
    ]


def _one_more(document: Document) -> None:
    node = copy.deepcopy(next(node for node in document["nodes"] if node["name"] == "aten::mm"))
    node["id"] += 100_000
    for attribute in node["attrs"]:
        if attribute["name"] == "rf_id":
            attribute["value"] = 99_999
    document["nodes"].append(node)


def _renamed(document: Document) -> None:
    next(node for node in document["nodes"] if node["name"] == "aten::mm")["name"] = "aten::other"


def _without_one(document: Document) -> None:
    document["nodes"].remove(next(node for node in document["nodes"] if node["name"] == "aten::mm"))


def _other_run(document: Document) -> None:
    for node in document["nodes"]:
        if node["name"].startswith("aten::"):
            node["name"] = "aten::other"


def _idless_node(document: Document) -> None:
    node = copy.deepcopy(document["nodes"][5])
    del node["id"]
    document["nodes"].append(node)


def _no_groups(document: Document) -> None:
    """As before mid 2024: Kineto lists no groups, and nothing of a call but its name."""
    del document["distributedInfo"]["pg_config"]
    without_args("Process Group Ranks", "Global rank start", "Global rank stride")(document)


def _doubtful(document: Document) -> None:
    for kernel in rows(document, "kernel"):
        if "nccl" not in kernel["name"]:
            kernel["name"] = "moe_dispatch_kernel"


def _unlisted(document: Document) -> None:
    """A group of half the world whose members were cut off, as "[0, 1, ..." is."""
    _no_groups(document)
    document["distributedInfo"]["world_size"] = 4
    for event in document["traceEvents"]:
        if "Process Group Name" in event.get("args", {}):
            event["args"]["Process Group Description"] = "undefined"


def _nothing_of_calls(document: Document) -> None:
    without_args(
        "Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "In split size", "Out split size",
        "Process Group Name", "Process Group Description", "Process Group Ranks",
    )(document)  # fmt: skip


NO_ET = {
    "no-et",
    "no-shapes",
    "no-seq",
}  # rows of the dialect of 2024 have no sequence numbers and were recorded without shapes
CASES = (
    Case("nothing", set()),
    Case("nothing, 2026", set(), {"dialect": "2026"}),
    Case("empty", {"empty-recording"}, {"kineto": _empty}),
    Case("no host rows", {"no-host-rows", "no-seq"}, {"kineto": without(*HOST)}),
    Case("no device rows", {"no-device-rows", "host-comm", "standstill"}, {"kineto": without(*DEVICE, "cuda_sync")}),
    Case("a run on the CPU", {"host-only", "host-comm"}, {"kineto": without(*DEVICE, *CALLS, "cuda_sync")}),
    Case("no calls", {"no-calls", "cuda-sync-without-calls", "no-seq"}, {"kineto": without(*CALLS)}),
    Case(
        "began in the middle",
        {"launches-before-window", "cuda-sync-without-calls", "et-beyond-window", "no-seq"},
        {"kineto": without_first_calls(0.3)},
    ),
    Case("no correlation", {"calls-without-id"}, {"kineto": _without_correlation}),
    Case("no correlation of sync rows", {"syncs-without-id"}, {"kineto": _syncs_without_correlation}),
    Case("lost buffers", {"launches-without-ops"}, {"kineto": _lost_kernels}),
    Case("rows of a device nobody knows", {"unknown-device-rows"}, {"kineto": _unknown_device}),
    Case("starts early", {"starts-before-launch"}, {"kineto": _early}),
    Case("lost calls", {"launches-missing"}, {"kineto": _lost_calls}),
    Case("joined files", {"repeated-calls"}, {"kineto": _repeated}),
    Case("two kernels of each other's calls", {"calls-contradicted"}, {"kineto": _swapped}),
    Case("backward twice", {"backward-twice"}, {"kineto": _backward_twice}),
    Case("a record after its wait", {"records-after-waits"}, {"kineto": _record_after}),
    Case("a wait that is over too early", {"waits-impossible", "standstill"}, {"kineto": _over_early}),
    Case("rows twice", {"rows-twice"}, {"kineto": _in_place(lambda document: faults.rows_twice(document, 50))}),
    Case("calls twice", {"calls-twice"}, {"kineto": _in_place(faults.calls_twice)}),
    Case("an end too late", {"ends-overrun"}, {"kineto": _overrun}),
    Case("an op too long", {"ends-late"}, {"kineto": _late}),
    Case("an op without end", {"ends-beyond"}, {"kineto": _outlasting}),
    Case("marks overlap", {"steps-overlap"}, {"kineto": _marks_overlap}),
    Case("whole microseconds", {"integer-us", "matched-by-order"}, {"dialect": "2023"}),
    Case("a damaged row", {"broken-rows"}, {"kineto": _damaged}),
    Case(
        "neither flows nor numbers",
        {"no-backward-links", *NO_ET},
        {"vary": Variation(forward_flows=False), "kineto": without_args("Sequence number", "Fwd thread id"), "without_et": True},
    ),
    Case("Python frames", set(), {"vary": Variation(python_rows=True)}),
    Case("a slow profiler", {"profiler-overhead"}, {"kineto": _overhead}),
    Case("no marks of steps", set(), {"kineto": _no_steps}),
    Case("no steps", {"no-steps", *NO_ET}, {"kineto": _first_step, "without_et": True}),
    Case("no sync rows", {"no-cuda-sync"}, {"cuda_sync": False}),
    Case("no sync rows on ROCm", {"no-hip-sync"}, {"dialect": "rocm"}),
    Case("half of the sync rows", {"cuda-sync-gaps"}, {"vary": Variation(sync_rows_share=0.5)}),
    Case("CUDA 12.9", {"no-event-records"}, {"vary": Variation(record_ids="unresolved")}),
    Case("before September 2023", {"no-event-records"}, {"vary": Variation(record_ids="absent")}),
    Case("sync rows without calls", {"cuda-sync-without-calls"}, {"kineto": _sync_rows_alone}),
    Case("no distributedInfo", {"no-rank"}, {"kineto": _no_info}),
    Case("a rank that is none", {"no-rank", "odd-header"}, {"kineto": _odd_rank}),
    Case("no ET", NO_ET, {"without_et": True}),
    Case("neither ET nor ids", {*NO_ET, "no-record-function-ids"}, {"kineto": without_args("Record function id"), "without_et": True}),
    Case("no ET, Kineto of early 2024", {"no-et", "no-shapes", "comm-unknown"}, {"kineto": _nothing_of_calls, "without_et": True}),
    Case(
        "members cut off",
        {"no-et", "no-shapes", "comm-unknown", "groups-unknown", "missing-ranks"},
        {"kineto": _unlisted, "without_et": True},
    ),
    Case(
        "members not recorded",
        {"no-et", "no-shapes", "no-seq", "groups-assumed"},
        {"kineto": both(_no_groups, without_args("Group size")), "without_et": True},
    ),
    Case("kernels that may be either", {"comm-doubtful"}, {"kineto": _doubtful}),
    Case("no ids", {"matched-by-order"}, {"kineto": without_args("Record function id")}),
    Case("another process", {"et-differs"}, {"et": _other_process}),
    Case("ET of one step", {"et-partial", "no-seq"}, {"et": _one_step}),
    Case("ET of more", {"et-beyond-window"}, {"et": _one_more}),
    Case("an op of another name", {"et-partial", "et-names-differ"}, {"et": _renamed}),
    Case("an op that raised", {"et-raised"}, {"et": _without_one}),
    Case("another run", {"et-of-other-run", "no-shapes", "no-seq"}, {"et": _other_run}),
    Case("a damaged node", {"et-broken-rows"}, {"et": _idless_node}),
    Case("one rank of two", {"missing-ranks"}, {"ranks": (0,)}),
    Case("only the second", {"missing-ranks"}, {"ranks": (1,), "kineto": both()}),
)  # fmt: skip
