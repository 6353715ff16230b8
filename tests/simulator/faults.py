"""Faults that recorders write into a recording, and that change nothing in what happened: rows twice, ends that run on,
numbers that lack, marks that overlap, calls inside themselves, clocks that run apart. As ``changes``, each makes a new
document and leaves the one that it was given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from tests.simulator.changes import DEVICE_CLOCK, Changed, Document, Row, device_lanes, in_whole_us, with_rows

_WORK: Final = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS: Final = ("cuda_runtime", "cuda_driver")
_FLOWS: Final = ("ac2g",)


def drift(document: Document, ppm: float) -> Changed:
    """Let the device's clock run faster than the host's by ``ppm`` parts of a million, from its first row on."""
    lanes, digits = device_lanes(document), 0 if in_whole_us(document) else 3
    first = min(row["ts"] for row in _of(document, DEVICE_CLOCK) if row["ts"])

    def moved(row: Row) -> Row:
        flow = row.get("cat") in _FLOWS and (row.get("pid"), row.get("tid")) in lanes
        if (not flow and (row.get("cat") not in DEVICE_CLOCK or row.get("ph") != "X")) or not row["ts"]:
            return row
        times = {"ts": round(first + (row["ts"] - first) * (1 + ppm / 1e6), digits)}
        return row | times | ({} if flow else {"dur": round(row["dur"] * (1 + ppm / 1e6), digits)})

    return Changed(with_rows(document, map(moved, document["traceEvents"])))


def without_correlation(document: Document) -> Changed:
    """Take the correlation from the rows of devices, as ROCm's recorders did; flows tell the launch."""

    def bare(row: Row) -> Row:
        args = {key: value for key, value in row.get("args", {}).items() if key != "correlation"}
        return row | {"args": args} if row.get("cat") in _WORK else row

    return Changed(with_rows(document, map(bare, document["traceEvents"])))


def without_flows(document: Document) -> Changed:
    """Take away the flows that join calls and what they launched."""
    return Changed(with_rows(document, (row for row in document["traceEvents"] if row.get("cat") not in _FLOWS)))


def rows_twice(document: Document, every: int) -> Changed:
    """Write each so manieth row of a device twice."""
    again = {id(row) for row in _of(document, _WORK)[::every]}
    rows = document["traceEvents"]
    return Changed(with_rows(document, (row for one in rows for row in [one] * (1 + (id(one) in again)))))


def ends_overrun(document: Document, every: int) -> Changed:
    """Move the end of each so manieth kernel behind the next two of its stream.

    Only where the next one begins at once, so that what is known of its end is as before to 1 us.
    """
    streams: dict[Any, list[Row]] = defaultdict(list)
    for row in _of(document, _WORK):
        streams[row["pid"], row["tid"]].append(row)
    late: dict[int, float] = {}
    for rows in streams.values():
        rows.sort(key=lambda row: row["ts"])
        for row, after, last in list(zip(rows, rows[1:], rows[2:], strict=False))[::every]:
            alone = (row.get("args") or {}).get("graph id", 0) in (0, None)
            if alone and 0 <= after["ts"] - row["ts"] - row["dur"] <= 1 and after["dur"] > 0 and last["dur"] > 0:
                late[id(row)] = round(last["ts"] + last["dur"] + 1 - row["ts"], 3)
    rows = document["traceEvents"]
    return Changed(with_rows(document, (row | {"dur": late[id(row)]} if id(row) in late else row for row in rows)))


def marks_overlap(document: Document, by_us: float) -> Changed:
    """Lengthen the marks of steps."""

    def longer(row: Row) -> Row:
        mark = row.get("cat") == "user_annotation" and str(row.get("name", "")).startswith("ProfilerStep#")
        return row | {"dur": round(row["dur"] + by_us, 3)} if mark else row

    return Changed(with_rows(document, map(longer, document["traceEvents"])))


def calls_twice(document: Document) -> Changed:
    """Record each call of the runtime a second time, around itself."""

    def twice(row: Row) -> list[Row]:
        if row.get("cat") not in _CALLS or row.get("ph") != "X" or not (row.get("args") or {}).get("correlation"):
            return [row]
        return [row, row | {"name": f"{row['name']}_v3020", "cat": "cuda_driver"}]

    return Changed(with_rows(document, (row for one in document["traceEvents"] for row in twice(one))))


def ids_wrap(document: Document, share: float) -> Changed:
    """Let correlation ids begin anew after so much of the calls, as counters do that wrap; flows keep their own."""
    names = ("correlation", "wait_on_cuda_event_record_corr_id")
    calls = [row for category in _CALLS for row in _of(document, (category,))]
    used = sorted({int(row["args"]["correlation"]) for row in calls if (row.get("args") or {}).get("correlation")})
    count = max(1, round(share * len(used)))
    new = {number: used[k % count] for k, number in enumerate(used)}

    def again(row: Row) -> Row:
        args = row.get("args") or {}
        return row | {"args": args | {name: new.get(args[name], args[name]) for name in names if name in args}}

    return Changed(with_rows(document, map(again, document["traceEvents"])))


def ops_cross(document: Document, every: int) -> Changed:
    """Let each so manieth op that another one encloses end 0.2 us after it, where its thread begins nothing then."""
    ops = sorted(_of(document, ("cpu_op",)), key=lambda row: (row["tid"], row["ts"], -row["dur"]))
    late: dict[int, float] = {}
    for outer, inner, after in list(zip(ops, ops[1:], ops[2:], strict=False))[::every]:
        end = outer["ts"] + outer["dur"]
        if outer["tid"] == inner["tid"] == after["tid"] and inner["ts"] + inner["dur"] < end and after["ts"] > end + 1:
            late[id(inner)] = round(end + 0.2 - inner["ts"], 3)
    rows = document["traceEvents"]
    return Changed(with_rows(document, (row | {"dur": late[id(row)]} if id(row) in late else row for row in rows)))


def numbers_as_text(document: Document) -> Changed:
    """Write the numbers of rows as text."""

    def text(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: text(part) for key, part in value.items()}
        return repr(value) if type(value) in (int, float) else value

    return Changed(with_rows(document, (row | text(row) for row in document["traceEvents"])))


def merged(documents: Sequence[Document], *, marks: bool = False) -> Document:
    """Join the recordings of ranks one behind the other, as mergers do: with marks before the numbers of processes
    (SGLang), or as they are; all else is of the first.
    """
    rows = [
        row | {"pid": f"[TP{rank:02d}-DP00] {row.get('pid')}"} if marks else row
        for rank, document in enumerate(documents)
        for row in document["traceEvents"]
    ]
    return {"traceEvents": rows} | {key: value for key, value in documents[0].items() if key != "traceEvents"}


FAULTS: Final[dict[str, Callable[[Document], Changed]]] = {
    "drift": lambda document: drift(document, 100),
    "no-correlation": without_correlation,
    "no-flows": without_flows,
    "rows-twice": lambda document: rows_twice(document, 50),
    "ends-overrun": lambda document: ends_overrun(document, 40),
    "marks": lambda document: marks_overlap(document, 0.5),
    "calls-twice": calls_twice,
    "ops-cross": lambda document: ops_cross(document, 10),
    "text": numbers_as_text,
}


def _of(document: Document, categories: Collection[str]) -> list[Row]:
    return [row for row in document["traceEvents"] if row.get("ph") == "X" and row.get("cat") in categories]
