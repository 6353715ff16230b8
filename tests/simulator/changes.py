"""Changes of a recording that change nothing in its meaning: another device clock, other numbers, another order,
another dialect.

A change takes the document of a Kineto trace, or the path of an nsys export, and makes a new one; what it was given
stays as it is.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.simulator.dialects import COPY, cuspy_kinds

Document = dict[str, Any]
Row = dict[str, Any]

_OPS: Final = frozenset({"cpu_op", "Operator"})
_CALLS: Final = frozenset({"cuda_runtime", "cuda_driver", "mtia_runtime", "xpu_runtime", "Runtime"})
_HOST: Final = frozenset({"user_annotation", "python_function"}) | _OPS | _CALLS
_ON_DEVICE: Final = frozenset({"gpu_user_annotation", "mtia_ccp_events", "Kernel", "Memcpy", "Memset"})
DEVICE_CLOCK: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "cuda_event"}) | _ON_DEVICE
_LAUNCH_FLOWS: Final = frozenset({"ac2g", "async", "async_gpu", "async_cpu_to_gpu"})
_STEP: Final = re.compile(r"ProfilerStep\s?#(\d+)")
_NO_STREAM: Final = 4294967295
_SYNC_ROW_TIDS: Final = 1_000_000  # stream sync rows of 2026 stand on tid = stream + 1000000
# Who makes the device -> the categories of Kineto's ActivityType for it, and its calls. PyTorch's XPU and PrivateUse1
# keep the categories of device rows; "npu" stands for what nobody knows yet.
MAKERS: Final[dict[str, tuple[dict[str, str], dict[str, str]]]] = {
    "mtia": (
        dict.fromkeys(("cuda_runtime", "cuda_driver"), "mtia_runtime")
        | dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset"), "mtia_ccp_events"),
        {
            "cudaLaunchKernel": "runFunction - job_prep_and_submit_for_execution", "cudaEventRecord": "recordEvent",
            "cudaStreamWaitEvent": "enqueueCommand waitOnEvent", "cudaStreamSynchronize": "synchronizeStream",
            "cudaMemcpyAsync": "enqueueCommand memcpyDtoHAsync",
        },
    ),
    "xpu": (
        dict.fromkeys(("cuda_runtime", "cuda_driver"), "xpu_runtime"),
        {
            "cudaLaunchKernel": "urEnqueueKernelLaunch", "cudaMemcpyAsync": "urEnqueueUSMMemcpy", "cudaMemsetAsync": "urEnqueueUSMFill",
            "cudaStreamSynchronize": "urQueueFinish", "cudaEventSynchronize": "urEventWait",
        },
    ),
    "privateuse1": ({"cuda_runtime": "privateuse1_runtime", "cuda_driver": "privateuse1_driver"}, {}),
    "npu": (
        {
            "cuda_runtime": "npu_host_api", "cuda_driver": "npu_host_api", "kernel": "npu_task", "gpu_memcpy": "npu_copy",
            "gpu_memset": "npu_copy",
        },
        {},
    ),
}  # fmt: skip
_NSYS_DEVICE: Final = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET")
_LOW_24: Final = 0xFFFFFF  # of a globalTid: the thread


@dataclass(frozen=True, slots=True)
class Numbers:
    """What became of numbers: old -> new. What is not here kept its number."""

    tid: dict[int, int] = field(default_factory=dict)
    stream: dict[int, int] = field(default_factory=dict)
    correlation: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changed:
    document: Document
    numbers: Numbers = field(default_factory=Numbers)


def device_clock(document: Document, shift_us: int, since_us: float = float("-inf")) -> Changed:
    """Move all rows of the device that start at ``since_us`` or later by ``shift_us``; ``cuda_sync`` rows are on the
    host's clock, and what stands at 0 has no time.
    """
    lanes = device_lanes(document)

    def moved(row: Row) -> Row:
        mine = row.get("cat") in DEVICE_CLOCK if row.get("ph") == "X" else _is_flow(row) and _lane(row) in lanes
        if not mine or row["ts"] < since_us or not row["ts"]:
            return row
        return row | {"ts": row["ts"] + shift_us if isinstance(row["ts"], int) else round(row["ts"] + shift_us, 3)}

    return Changed(with_rows(document, map(moved, document["traceEvents"])))


def middle_us(document: Document) -> float:
    """Find the middle between the first start and the last end of rows of the device."""
    spans = [row for row in document["traceEvents"] if row.get("ph") == "X" and row.get("cat") in DEVICE_CLOCK]
    low = min(row["ts"] for row in spans)
    return float(low + (max(row["ts"] + row.get("dur", 0) for row in spans) - low) / 2)


def shuffled(document: Document, seed: int = 0) -> Changed:
    """Put the rows in any order."""
    rows = list(document["traceEvents"])
    random.Random(seed).shuffle(rows)
    return Changed(with_rows(document, rows))


def rounded(document: Document) -> Changed:
    """Round all starts and ends to whole microseconds, as writers up to 2023 do."""

    def whole(row: Row) -> Row:
        if not isinstance(row.get("ts"), int | float):
            return row
        start = _nearest(row["ts"])
        out = row | {"ts": start}
        if "dur" in row:
            out["dur"] = max(0, _nearest(row["ts"] + row["dur"]) - start)
        return out

    return Changed(with_rows(document, map(whole, document["traceEvents"])))


def renumbered(document: Document, seed: int = 0) -> Changed:
    """Give threads, streams and correlations other numbers, in no order that says anything; the process keeps
    its own.
    """
    numbers = _new_numbers(document, random.Random(seed))
    lanes = {pid for pid, _ in device_lanes(document)}

    def new(row: Row) -> Row:
        out = dict(row)
        on_device = row.get("cat") in DEVICE_CLOCK or row.get("cat") == "cuda_sync"
        if row.get("ph") != "X" and isinstance(row.get("tid"), int | str):
            on_device = row.get("pid") in lanes
        if "tid" in row:
            out["tid"] = _new_lane(row["tid"], numbers.stream if on_device else numbers.tid, on_device=on_device)
        if row.get("cat") in _LAUNCH_FLOWS and "id" in row:
            out["id"] = numbers.correlation.get(row["id"], row["id"])
        if isinstance(row.get("args"), dict):
            out["args"] = _new_args(row["args"], numbers)
        return out

    return Changed(with_rows(document, map(new, document["traceEvents"])), numbers)


def without_sync_rows(document: Document) -> Changed:
    """Leave out what says which call waited for what."""
    return Changed(with_rows(document, (row for row in document["traceEvents"] if row.get("cat") != "cuda_sync")))


def step_numbers(document: Document) -> list[int]:
    """List the steps that the recording has marks of, ascending."""
    names = {row["name"] for row in document["traceEvents"] if row.get("ph") == "X" and row.get("cat") in _HOST}
    return sorted(int(found[1]) for found in map(_STEP.fullmatch, names) if found)


def only_step(document: Document, step: int) -> Changed:
    """Cut the recording to a step: host rows and calls that start in it, device and synchronisation rows of these
    calls.
    """
    rows = document["traceEvents"]
    marks = [
        row
        for row in rows
        if row.get("cat") in _HOST and (found := _STEP.fullmatch(row.get("name", ""))) and int(found[1]) == step
    ]
    low, high = min(row["ts"] for row in marks), max(row["ts"] + row["dur"] for row in marks)

    def within(row: Row) -> bool:
        return bool(low <= row["ts"] < high)

    calls = [row for row in rows if row.get("cat") in _CALLS]
    every = {_correlation(row) for row in calls} - {0}
    mine = {_correlation(row) for row in calls if within(row)} - {0}

    def stays(row: Row) -> bool:
        category = row.get("cat")
        if (
            row.get("ph") == "X"
            and (category in DEVICE_CLOCK or category == "cuda_sync")
            and _correlation(row) in every
        ):
            return _correlation(row) in mine
        return row.get("ph") == "M" or category not in _HOST | DEVICE_CLOCK | {"cuda_sync", "fwdbwd"} or within(row)

    return Changed(with_rows(document, filter(stays, rows)))


def as_2021(document: Document) -> Changed:
    """Write the recording as PyTorch 1.9 did: whole us, ranges among the ops, text for threads, no order, no waits, no
    parameters.
    """
    category = {
        "cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime", "cuda_driver": "Runtime",
        "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "ac2g": "async",
    }  # fmt: skip
    kept = ("Input Dims", "Input type", "Call stack", "Fwd thread id", "Sequence number")
    about = ("device", "context", "stream", "correlation", "bytes", "grid", "block", "registers per thread", "cbid")
    base_us = int(document.get("baseTimeNanoseconds", 0)) // 1000

    def then(row: Row) -> Row:
        out, args = _in_whole_us(row, base_us), row.get("args") or {}
        if row.get("cat") in category:
            out["cat"] = category[row["cat"]]
        if row.get("ph") != "X" or row.get("cat") not in category:
            return out
        if row["cat"] in ("cpu_op", "user_annotation"):
            out["tid"] = str(row["tid"])
            out["args"] = {"Device": row["pid"], "External id": args.get("External id", 0)} | _some(args, kept)
            out["args"] |= {"Trace name": "PyTorch Profiler", "Trace iteration": 0}
        else:
            out["tid"] = (
                str(row["tid"]) if row["cat"].startswith("cuda") else f"stream {args.get('stream', row['tid'])}"
            )
            out["args"] = _some(args, about) | {"external id": args.get("External id", 0)}
        return out

    gone = {
        "gpu_user_annotation",
        "cuda_sync",
        "cuda_event",
        "python_function",
        "overhead",
        "fwdbwd",
        "cpu_instant_event",
    }
    rows = (then(row) for row in document["traceEvents"] if row.get("cat") not in gone)
    around = {
        key: value for key, value in document.items() if key in ("schemaVersion", "deviceProperties", "distributedInfo")
    }
    return Changed(around | {"traceEvents": list(rows)})


def as_2023(document: Document) -> Changed:
    """Write the recording as PyTorch 2.0 did: whole us, External ids that are correlations, no record-function ids, no
    parameters.
    """
    base_us = int(document.get("baseTimeNanoseconds", 0)) // 1000
    since = re.compile(
        r"Record function id|Collective name|dtype|(In|Out) |Group size|Process Group|Rank|.* Rank$|Seq$|Comms Id|Global rank"
    )

    def then(row: Row) -> Row:
        out = _in_whole_us(row, base_us)
        if isinstance(row.get("args"), dict):
            out["args"] = {key: value for key, value in row["args"].items() if not since.match(key)}
            if row.get("cat") not in _HOST - _CALLS and _correlation(row):
                out["args"]["External id"] = _correlation(row)
        return out

    rows = [then(row) for row in document["traceEvents"] if row.get("cat") not in ("cuda_event", "overhead")]
    around = {
        key: value
        for key, value in document.items()
        if key not in ("traceEvents", "baseTimeNanoseconds", "displayTimeUnit")
    }
    info = document.get("distributedInfo")
    if isinstance(info, dict):
        around["distributedInfo"] = _some(info, ("backend", "rank", "world_size"))
    return Changed(around | {"traceEvents": rows})


def is_of_cuda(document: Document) -> bool:
    """Tell whether device rows are those that CUPTI gives, by the names of copies."""
    rows = [row for row in document["traceEvents"] if row.get("cat") in ("kernel", "gpu_memcpy")]
    return bool(rows) and all(COPY.fullmatch(row["name"]) for row in rows if row["cat"] == "gpu_memcpy")


def as_cuspy(document: Document) -> Changed:
    """Write the recording as PyTorch's own recorder of CUDA does: kinds of copies in the place of their names, rows of
    devices and calls without External id, waits without the stream of their record, no rows of events.
    """
    since = re.compile(r"External id|.* per SM|.*occupancy.*|memory bandwidth.*")

    def theirs(row: Row) -> Row:
        out = dict(row)
        if row.get("cat") in DEVICE_CLOCK | _CALLS | {"cuda_sync"}:
            out["args"] = {key: value for key, value in row["args"].items() if not since.fullmatch(key)}
        if row.get("cat") in ("gpu_memcpy", "gpu_memset"):
            out["name"], kinds = cuspy_kinds(row["name"])
            out["args"] |= kinds
        if row.get("cat") == "cuda_sync" and "wait_on_stream" in out["args"]:
            out["args"]["wait_on_stream"] = -1
        return out

    rows = (theirs(row) for row in document["traceEvents"] if row.get("cat") != "cuda_event")
    return Changed(with_rows(document, rows))


def on_device_of(document: Document, maker: str) -> Changed:
    """Write the recording as that of a device that is neither CUDA's nor HIP's: a key of ``MAKERS``."""
    category, names = MAKERS[maker]

    def theirs(row: Row) -> Row:
        out = dict(row)
        if row.get("cat") in _CALLS:
            out["name"] = names.get(row["name"], row["name"].replace("cuda", maker, 1))
        if row.get("cat") in category:
            out["cat"] = category[row["cat"]]
        if out.get("cat") not in DEVICE_CLOCK | _CALLS and row.get("cat") in DEVICE_CLOCK:
            out["args"] = {
                key: value for key, value in row["args"].items() if key in ("correlation", "stream", "device")
            }
        return out

    gone = {"cuda_sync", "cuda_event"} | ({"gpu_user_annotation"} if "kernel" in category else set())
    return Changed(with_rows(document, (theirs(row) for row in document["traceEvents"] if row.get("cat") not in gone)))


def is_of_2022_or_later(document: Document) -> bool:
    """Tell whether the recording can be written in an older dialect: later than 2021, and with no device but CUDA's and
    HIP's.
    """
    categories = {row.get("cat") for row in document["traceEvents"]}
    return categories.isdisjoint({"Operator", "Runtime", "Kernel", "mtia_runtime", "xpu_runtime"})


def in_whole_us(document: Document) -> bool:
    """Tell whether the recording has lost its ns."""
    spans = [row for row in document["traceEvents"] if row.get("ph") == "X" and row.get("cat") in _HOST | DEVICE_CLOCK]
    return all(float(row["ts"]).is_integer() and float(row.get("dur", 0)).is_integer() for row in spans)


# exports of nsys


def nsys_device_clock(path: Path, out: Path, shift_ns: int, since_ns: int | None = None) -> Numbers:
    """Write the export with kernels, copies and memsets that start at ``since_ns`` or later moved by ``shift_ns``."""
    shutil.copyfile(path, out)
    with closing(sqlite3.connect(out)) as data, data:
        for table in _tables(data, "start"):
            if table in _NSYS_DEVICE:
                when = "" if since_ns is None else f" WHERE start >= {since_ns}"
                data.execute(f'UPDATE "{table}" SET start = start + {shift_ns}, "end" = "end" + {shift_ns}{when}')
    return Numbers()


def nsys_middle_ns(path: Path) -> int:
    """Find the middle between the first start and the last end of device ops."""
    with closing(sqlite3.connect(path)) as data:
        found = [
            data.execute(f'SELECT MIN(start), MAX("end") FROM "{t}"').fetchone()
            for t in _tables(data, "start")
            if t in _NSYS_DEVICE
        ]
    return (
        int(min(low for low, _ in found if low is not None) + max(high for _, high in found if high is not None)) // 2
    )


def nsys_renumbered(path: Path, out: Path, seed: int = 0) -> Numbers:
    """Write the export with threads, streams and correlations under other numbers, and the rows of every table in
    another order.
    """
    shutil.copyfile(path, out)
    rng = random.Random(seed)
    with closing(sqlite3.connect(out)) as data, data:
        threads = _nsys_values(data, "globalTid")
        low = _fresh({value & _LOW_24 for value in threads}, rng, 1_000)
        tid = {value: value & ~_LOW_24 | low[value & _LOW_24] for value in threads}
        stream = _fresh(_nsys_values(data, "streamId"), rng, 1)
        correlation = _fresh(_nsys_values(data, "correlationId"), rng, 1)
        for column, new in (("globalTid", tid), ("streamId", stream), ("correlationId", correlation)):
            _nsys_replace(data, column, new)
        for table in _tables(data, "start"):
            data.execute(
                f'CREATE TEMP TABLE again AS SELECT * FROM "{table}" ORDER BY (rowid * 2654435761) % 4294967296'
            )
            data.execute(f'DELETE FROM "{table}"')
            data.execute(f'INSERT INTO "{table}" SELECT * FROM again')
            data.execute("DROP TABLE again")
    return Numbers({old & _LOW_24: new & _LOW_24 for old, new in tid.items()}, stream, correlation)


def _tables(data: sqlite3.Connection, column: str) -> list[str]:
    names = [name for (name,) in data.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return [name for name in names if column in {row[1] for row in data.execute(f'PRAGMA table_info("{name}")')}]


def _nsys_values(data: sqlite3.Connection, column: str) -> set[int]:
    found = (data.execute(f'SELECT DISTINCT {column} FROM "{table}"') for table in _tables(data, column))
    return {value for rows in found for (value,) in rows if isinstance(value, int) and value > 0}


def _nsys_replace(data: sqlite3.Connection, column: str, new: dict[int, int]) -> None:
    data.execute("CREATE TEMP TABLE numbers (old INTEGER PRIMARY KEY, new INTEGER)")
    data.executemany("INSERT INTO numbers VALUES (?, ?)", new.items())
    for table in _tables(data, column):
        known = f"{column} IN (SELECT old FROM numbers)"
        data.execute(f'UPDATE "{table}" SET {column} = (SELECT new FROM numbers WHERE old = {column}) WHERE {known}')
    data.execute("DROP TABLE numbers")


# rows


def with_rows(document: Document, rows: Iterable[Row]) -> Document:
    return document | {"traceEvents": list(rows)}


def _is_flow(row: Row) -> bool:
    return row.get("ph") in ("s", "f") and row.get("cat") in _LAUNCH_FLOWS


def _lane(row: Row) -> tuple[Any, Any]:
    return row.get("pid"), row.get("tid")


def device_lanes(document: Document) -> set[tuple[Any, Any]]:
    return {_lane(row) for row in document["traceEvents"] if row.get("cat") in DEVICE_CLOCK and row.get("ph") == "X"}


def _correlation(row: Row) -> int:
    value = (row.get("args") or {}).get("correlation", 0)
    return int(value) if isinstance(value, int) else 0


def _some(args: Row, keys: Iterable[str]) -> Row:
    return {key: args[key] for key in keys if key in args}


def _nearest(us: float) -> int:
    return round(us)


def _in_whole_us(row: Row, base_us: int) -> Row:
    """Kineto rounded starts down, host ops by their ends and activities of CUPTI by their length."""
    out = dict(row)
    if isinstance(row.get("ts"), int | float):
        out["ts"] = base_us + int(row["ts"] // 1)
        if "dur" in row:
            on_host = row.get("cat") in _HOST - _CALLS
            out["dur"] = int((row["ts"] + row["dur"]) // 1 - row["ts"] // 1) if on_host else int(row["dur"] // 1)
    return out


def _number(text: object) -> int | None:
    if isinstance(text, bool) or not isinstance(text, int | str):
        return None
    found = re.fullmatch(r"(?:stream )?(\d+)", str(text))
    return int(found[1]) if found else None


def _new_numbers(document: Document, rng: random.Random) -> Numbers:
    tids: set[int] = set()
    streams: set[int] = set()
    correlations: set[int] = set()
    for row in document["traceEvents"]:
        if row.get("ph") != "X":
            continue
        number, args = _number(row.get("tid")), row.get("args") or {}
        if row.get("cat") in DEVICE_CLOCK:
            streams |= {n for n in (number, _number(args.get("stream"))) if n is not None}
        elif row.get("cat") == "cuda_sync":
            streams |= {n for n in (_number(args.get("stream")), _number(args.get("wait_on_stream"))) if n is not None}
        elif number is not None and isinstance(row.get("pid"), int):
            tids.add(number)
            streams |= {n for n in (_number(args.get("stream_id")),) if n is not None}
        correlations.add(_correlation(row))
    correlations = {c for c in correlations if c > 0}
    return Numbers(_fresh(tids - {0}, rng, 1_000), _fresh(streams - {_NO_STREAM}, rng, 1), _fresh(correlations, rng, 1))


def _fresh(old: set[int], rng: random.Random, least: int) -> dict[int, int]:
    given = sorted(old)
    return dict(zip(given, rng.sample(range(least, least + 10 * len(given) + 100), len(given)), strict=True))


def _new_lane(lane: object, new: dict[int, int], *, on_device: bool) -> object:
    number = _number(lane)
    if number is None:
        return lane
    if on_device and number not in new and number - _SYNC_ROW_TIDS in new:
        return new[number - _SYNC_ROW_TIDS] + _SYNC_ROW_TIDS
    found = new.get(number, number)
    return found if isinstance(lane, int) else str(lane).replace(str(number), str(found))


def _new_args(args: Row, numbers: Numbers) -> Row:
    out = dict(args)
    own = args.get("correlation")
    for key in ("External id", "external id"):
        if key in args and args[key] == own:
            out[key] = numbers.correlation.get(args[key], args[key])
    keys: tuple[tuple[str, dict[int, int]], ...] = (
        ("correlation", numbers.correlation),
        ("wait_on_cuda_event_record_corr_id", numbers.correlation),
        ("stream", numbers.stream),
        ("wait_on_stream", numbers.stream),
        ("stream_id", numbers.stream),
    )
    for key, new in keys:
        if key in args:
            out[key] = _new_lane(args[key], new, on_device=False)
    return out
