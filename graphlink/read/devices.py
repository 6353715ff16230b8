"""Devices as recordings describe them, how much of one a kernel can fill, and rows of those that are no CUDA or HIP.

What a kernel can fill is its blocks over SMs (compute units), 1 at most; 0 where no recording tells.

Kineto gives each backend categories of its own (``ActivityType.cpp``): ``mtia_runtime`` and ``mtia_ccp_events``,
``xpu_runtime``, ``privateuse1_driver``, ``hpu_op``, ... What all have in common: calls are of a category ``*_runtime``
or ``*_driver``, a row of a device has the correlation of its call, and lies in a process that metadata label as a
device (``process_labels``: "MTIA 17"; the host's is "CPU").
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from graphlink.model import F64, I64, Bool, DeviceKind, Gpu, SyncKind, System
from graphlink.patterns import fits
from graphlink.read.columns import MISSING, Columns, Parts, Strings, loose, to_int_or_none
from graphlink.records import shortened
from graphlink.spans import around_others
from graphlink.tables import how_many, marked, numbered_values, tuples

_OF_THREADS: Final = re.compile(
    r"hip(?:Ext|Hcc)ModuleLaunchKernel"
)  # take the number of threads in all, and that is their ``grid``
_MOST: Final = 1 << 40  # blocks or threads of a launch; more is damage
# as torch.profiler's tensorboard_trace_handler names its files
_WORKER: Final = re.compile(r"(?:.*[/\\])?(?P<host>[^/\\]+)_(?P<pid>\d{1,10})\.\d+\.pt\.trace\.json(?:\.gz)?")


@lru_cache(maxsize=1 << 16)
def extent(text: bytes) -> int:
    """Count the elements of a grid or block that is recorded as ``[x, y, z]``; 0 for what is none."""
    sizes = loose(text.decode("utf-8", "replace"))
    whole = (
        isinstance(sizes, list) and bool(sizes) and all(type(size) is int and 0 < size < _MOST for size in sizes[:4])
    )
    number = math.prod(sizes) if whole and len(sizes) <= 3 else 0
    return number if number < _MOST else 0


def recorded(blocks_per_sm: Sequence[Any]) -> F64:
    """Return the share that Kineto's ``blocks per SM`` tell."""
    return np.array([min(n, 1.0) if type(n) in (int, float) and n > 0 else 0.0 for n in blocks_per_sm], np.float64)


def sm_share(blocks: I64, device: I64, gpus: Sequence[Gpu]) -> F64:
    """Return the share of launches of so many ``blocks`` (0 and less: unknown), by the SMs of their ``device``; of one
    that is numbered otherwise than its rows by those of all, where they agree."""
    known = {gpu.device: gpu.sms for gpu in gpus if gpu.sms is not None}
    common = next(iter(known.values())) if len({*known.values()}) == 1 else 0
    numbers, which = numbered_values(device)
    sms = np.array([known.get(number, common) for number in numbers.tolist()], np.int64)[which]
    told = (blocks > 0) & (sms > 0)
    return np.where(told, np.minimum(blocks / np.maximum(sms, 1), 1.0), 0.0)


def fill_in(device: Parts, calls: Parts, strings: Strings, gpus: Sequence[Gpu]) -> None:
    """Put the share of rows that have a grid in place of ``blocks per SM``, in place. AMD's recordings are such.
    Linear, and a sort.
    """
    share, blocks = device.seen("sm_share"), device.seen("blocks")
    if not ((share == 0) & (blocks > 0)).any():
        return
    of_threads = [code for text, code in strings.items() if _OF_THREADS.fullmatch(text)]
    ids = calls.seen("correlation")[np.isin(calls.seen("name"), of_threads)]
    by_threads: Bool = np.isin(device.seen("correlation"), ids)
    threads = np.maximum(device.seen("threads"), 1)
    blocks = np.where(by_threads, -(-blocks // threads), blocks)
    open_ = share == 0
    share[open_] = sm_share(blocks, device.seen("device"), gpus)[open_]


# ends the reason in ``left_out`` of rows that no warning-free graph has
UNPLACED: Final = ", of a device, without its stream or device"
VERSIONS: Final = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version", "hip_driver_version")
_VERSION: Final = re.compile(r"[0-9.]{1,20}")
_CALLS: Final = re.compile(r".*_(?:runtime|driver)")
_DEVICE: Final = re.compile(r"(?i).*\b(?:gpu|xpu|npu|hpu|mlu|tpu|dcu|mtia|gaudi|ascend|accelerator|device)\b.*")
_SYNC: Final = re.compile(r"(?i).*(?<!a)sync.*")
_WAIT: Final = re.compile(r"(?i).*(?:event|notify|stream)_?wait.*|.*wait_?(?:on_?)?(?:event|notify).*")
_COPY: Final = re.compile(r"(?i).*(?:mem_?cpy|dma|[hd]to[hd]|[hd]2[hd]).*")
_SET: Final = re.compile(r"(?i).*mem_?set.*")


def device_processes(labels: dict[int, str], names: dict[int, str], flows: Parts) -> set[int]:
    """Return the processes that stand for a device, by what metadata call them, ``process_labels`` and
    ``process_name``, or as flows of launches end there and none begins.

    Kineto names the process of each GPU like the program, and labels it "GPU 0".
    """
    labelled = {pid for pid, text in labels.items() if text not in ("", "CPU")}
    named = {pid for pid, text in names.items() if pid not in labels and _DEVICE.fullmatch(text)}
    pid, ends = flows.seen("pid"), flows.seen("end").astype(np.bool_)
    return labelled | named | ({*pid[ends].tolist()} - {*pid[~ends].tolist(), MISSING})


def cuda_version(number: object) -> str:
    """Format a version of CUDA: 12040 is 12.4. "" for what is none."""
    found = to_int_or_none(number)
    return f"{found // 1000}.{found % 1000 // 10}" if found is not None and 0 < found < 10**6 else ""


def hip_version(number: object) -> str:
    """Format a version of HIP: 60443483 is 6.4.43483. "" for what is none."""
    found = to_int_or_none(number)
    return (
        f"{found // 10**7}.{found // 10**5 % 100}.{found % 10**5}" if found is not None and 0 < found < 10**10 else ""
    )


def system_of(around: dict[str, Any], nccl: object) -> System:
    """Return the versions that Kineto's keys around the events record, and that of NCCL."""
    cuda, cuda_driver, hip, hip_driver = (around.get(name) for name in VERSIONS)
    return System(
        cuda=cuda_version(cuda),
        cuda_driver=cuda_version(cuda_driver),
        hip=hip_version(hip),
        hip_driver=hip_version(hip_driver),
        nccl=nccl if isinstance(nccl, str) and _VERSION.fullmatch(nccl) else "",
    )


def host_name(around: dict[str, Any], pid: int | None) -> str:
    """Return the host name as recorded, else from the file name that PyTorch gives by default,
    ``<host>_<pid>.<ns>.pt.trace.json``, if the pid is this one."""
    recorded, file = around.get("host_name"), around.get("traceName")
    if isinstance(recorded, str) and recorded:
        return recorded
    named = _WORKER.fullmatch(file) if isinstance(file, str) else None
    return named["host"] if named and int(named["pid"]) == pid else ""


def gpus_of(recorded: Any) -> tuple[Gpu, ...]:
    """Return the devices that ``deviceProperties`` of Kineto describe; what is no device among them is passed over."""
    rows = [row for row in recorded if isinstance(row, dict)] if isinstance(recorded, list) else []
    return gpus(tuple(row.get(key) for key in ("id", "name", "computeMajor", "computeMinor", "numSms")) for row in rows)


def gpus(rows: Iterable[Sequence[Any]]) -> tuple[Gpu, ...]:
    """Return a device for each (number, name, major, minor, SMs) whose number is one; a capability is there in full or
    not at all.
    """
    out = []
    for number, name, *capability, sms in rows:
        device, (major, minor) = to_int_or_none(number), map(to_int_or_none, capability)
        known = None if major is None or minor is None else (major, minor)
        if device is not None:
            count = to_int_or_none(sms)
            out.append(
                Gpu(device, name if isinstance(name, str) else "", known, count if count and count > 0 else None)
            )
    return tuple(out)


def is_call(category: str) -> bool:
    """Tell whether rows of a category are calls of a runtime or driver, whatever the device."""
    return _CALLS.fullmatch(category) is not None


def place(
    others: Parts,
    tables: dict[str, Parts],
    strings: Strings,
    of_devices: Collection[int],
    of_hosts: Collection[int] = (),
) -> tuple[Counter[str], tuple[str, ...]]:
    """Put each row of ``others`` where it belongs: among the calls, ranges (host), device ops or waits (sync) of
    ``tables``.

    ``others`` are the rows of categories that are not known, ``of_devices`` the processes that stand for devices. One
    that has what calls launched, and is none of ``of_hosts``, which have host rows, stands for a device, too. What is
    of no device is left out by category, what is of a device but does not say on which stream with a warning: both are
    returned. A row of a call's category around other rows of its thread, that launched nothing, is a range: it is not
    the call that took the time. What a device's queue waits for another stream is no work: such a row is of no length
    where the wait ended. O(n log n).
    """
    if not others.count:
        return Counter(), ()
    rows = others.columns()
    category, name, correlation = rows["category"], rows["name"], rows["correlation"]
    texts = tuple(strings)
    call_like = fits(_CALLS, texts)[category]
    known = np.concatenate([tables["call"].seen("correlation"), correlation[call_like]])
    launched = np.isin(correlation, known)
    hosts = np.array([*of_hosts] or rows["pid"][call_like], np.int64)
    apart = rows["pid"][launched & (correlation > 0) & ~call_like & ~np.isin(rows["pid"], hosts)]
    on_device = np.isin(rows["pid"], np.append(apart, np.array([*of_devices], np.int64)))
    calls = _calls(rows, call_like, ~on_device & (rows["tid"] != MISSING), tables, known)
    call_ids = np.concatenate([tables["call"].seen("correlation"), correlation[calls]])
    of_call = (correlation > 0) & np.isin(correlation, call_ids)
    related = ~call_like & ~calls & (on_device | of_call)
    stream = np.where((rows["stream"] == MISSING) & on_device, rows["tid"], rows["stream"])
    device = np.where((rows["device"] == MISSING) & on_device, rows["pid"], rows["device"])
    told = (stream != MISSING) & (device != MISSING)
    work, waits = related & told, call_like & on_device & told & of_call & fits(_SYNC, texts)[name]
    ranges = _ranges(rows, calls, tables, correlation[work])
    columns = ("start_ns", "end_ns", "tid", "name", "correlation", "external", "process")
    tables["call"].add(**_of(rows, calls & ~ranges, *columns))
    _add_host(tables["host"], rows, calls & ranges)
    foreign = Counter(texts[k] for k in category[work].tolist()) if tables["device"].count else {}
    _add_work(tables["device"], rows, work, device, stream, texts)
    _add_waits(tables["sync"], rows, waits, device, stream, SyncKind.STREAM)
    _add_waits(
        tables["sync"],
        rows,
        work & of_call & (rows["awaited"] != MISSING) & fits(_WAIT, texts)[name],
        device,
        stream,
        None,
    )
    lost = (related | call_like) & ~calls & ~work & ~waits
    left_out = Counter(texts[k] or "no category, ph X" for k in category[~(lost | calls | work | waits)].tolist())
    left_out.update(texts[k] + UNPLACED for k in category[lost].tolist())
    taken = [
        f"rows of category {shortened(name)} ({count}), which is not known, count as work of the device"
        for name, count in foreign.items()
    ]
    return left_out, (*_warnings(rows, lost, texts), *taken)


def _calls(rows: Columns, call_like: Bool, on_thread: Bool, tables: dict[str, Parts], known: I64) -> Bool:
    """Mark the calls. Where no category says so, they are the rows of one of which a row shares a correlation, which no
    ``known`` call has, with a device row.
    """
    category, correlation = rows["category"], rows["correlation"]
    placed = (rows["stream"] != MISSING) & (rows["device"] != MISSING) & (correlation > 0)
    works = np.concatenate(
        [*(tables[of].seen("correlation") for of in ("device", "sync")), correlation[placed & ~call_like]]
    )
    possible = on_thread & ~placed & (correlation > 0)
    paired = possible & np.isin(category, category[possible & np.isin(correlation, np.setdiff1d(works, known))])
    return np.asarray((call_like & on_thread) | paired)


def _of(rows: Columns, which: Bool, *names: str) -> Columns:
    """Return some columns of the rows that ``which`` marks."""
    return {name: rows[name][which] for name in names}


def _ranges(rows: Columns, calls: Bool, tables: dict[str, Parts], launched: I64) -> Bool:
    """Mark the rows of names of which one encloses another row of its thread, but for those that launched something."""
    known = [tables["host"], tables["call"]]
    start, end, tid = (
        np.concatenate([rows[column][calls], *(table.seen(column) for table in known)])
        for column in ("start_ns", "end_ns", "tid")
    )
    count = how_many(calls)
    launches = np.isin(rows["correlation"], np.concatenate([launched, tables["device"].seen("correlation")])) & (
        rows["correlation"] > 0
    )
    around = marked(len(calls), np.flatnonzero(calls)[around_others(start, end, tid)[:count]])
    return np.isin(rows["name"], np.unique(rows["name"][around & ~launches])) & ~launches


def _around_ends(start: I64, tid: I64, host: Parts) -> I64:
    """Return when the last of the ``host`` rows ended that a thread had begun by each start; the least number where it
    had begun none.
    """
    began, ended, threads = host.seen("start_ns"), host.seen("end_ns"), host.seen("tid")
    order = np.lexsort((began, threads))
    out = np.full(len(start), np.iinfo(np.int64).min)
    for thread in np.unique(tid).tolist():
        low, high = np.searchsorted(threads[order], [thread, thread + 1])
        mine, asked = order[low:high], tid == thread
        latest = np.concatenate([[np.iinfo(np.int64).min], np.maximum.accumulate(ended[mine])])
        out[asked] = latest[np.searchsorted(began[mine], start[asked], side="right")]
    return out


def _add_host(table: Parts, rows: Columns, which: Bool) -> None:
    """Add ranges, no longer than the op they began in: where a profiler stops, open ops end, and what a device's
    runtime writes runs on.
    """
    count = how_many(which)
    start, end, tid = rows["start_ns"][which], rows["end_ns"][which], rows["tid"][which]
    around = _around_ends(start, tid, table)
    nothing, no_text = np.zeros(count, np.int64), np.zeros(count, np.int32)
    table.add(
        start_ns=start,
        end_ns=np.where((around > start) & (around < end), around, end),
        tid=tid,
        name=rows["name"][which],
        annotation=np.ones(count, np.bool_),
        order=table.count + np.arange(count),
        rf_id=nothing,
        seq_id=nothing - 1,
        fw_tid=nothing,
        external=nothing,
        input_shapes=no_text,
        input_types=no_text,
    )


def _add_work(table: Parts, rows: Columns, which: Bool, device: I64, stream: I64, texts: Sequence[str]) -> None:
    copies = fits(_COPY, texts)[rows["name"]] | fits(_COPY, texts)[rows["category"]]
    kind = np.where(
        fits(_SET, texts)[rows["name"]], DeviceKind.MEMSET, np.where(copies, DeviceKind.MEMCPY, DeviceKind.KERNEL)
    )
    start = np.where(fits(_WAIT, texts)[rows["name"]], rows["end_ns"], rows["start_ns"])
    table.add(
        start_ns=start[which],
        device=device[which],
        stream=stream[which],
        graph=np.zeros(how_many(which), np.int64),
        graph_node=np.zeros(how_many(which), np.int64),
        kind=kind[which].astype(np.uint8),
        lane=np.zeros(how_many(which), np.int32),
        sm_share=np.zeros(how_many(which)),
        blocks=np.zeros(how_many(which), np.int64),
        threads=np.zeros(how_many(which), np.int64),
        **_of(rows, which, "end_ns", "name", "correlation", "bytes", "external", "pid", "tid"),
    )


def _add_waits(table: Parts, rows: Columns, which: Bool, device: I64, stream: I64, kind: SyncKind | None) -> None:
    """Add waits of calls for a stream (``kind`` STREAM), else of a stream for the record of the same number on the
    stream it names.
    """
    count = how_many(which)
    record = np.zeros(count, np.int64) if kind is not None else _recorded(rows, which, device, stream)
    awaited = np.where(rows["awaited"][which] == MISSING, 0, rows["awaited"][which])
    of_event = np.full(count, kind is None)
    table.add(
        kind=np.full(count, SyncKind.STREAM_WAIT if kind is None else kind, np.uint8),
        **_of(rows, which, "start_ns", "end_ns", "correlation"),
        device=device[which],
        stream=stream[which],
        stream_known=np.ones(count, np.bool_),
        record=record,
        record_known=of_event & (record > 0),
        record_stream=awaited,
        record_stream_known=of_event,
        event=np.zeros(count, np.int64),
        event_known=np.zeros(count, np.bool_),
    )


def _recorded(rows: Columns, waits: Bool, device: I64, stream: I64) -> I64:
    """Return the correlation of the record that each wait names by device, stream and number; 0 where none has
    a call.
    """
    records = np.flatnonzero((rows["number"] != MISSING) & (rows["awaited"] == MISSING) & (rows["correlation"] > 0))
    place = tuples(device[records], stream[records], rows["number"][records])
    call = dict(zip(place, rows["correlation"][records].tolist(), strict=True))
    wanted: Iterable[tuple[int, int, int]] = tuples(device[waits], rows["awaited"][waits], rows["number"][waits])
    return np.array([call.get(key, 0) for key in wanted], np.int64)


def _warnings(rows: Columns, lost: Bool, texts: Sequence[str]) -> Iterable[str]:
    length = rows["end_ns"] - rows["start_ns"]
    for category in np.unique(rows["category"][lost]).tolist():
        mine = lost & (rows["category"] == category)
        named = f"of category {texts[category]}" if texts[category] else "without category"
        yield (
            f"{how_many(mine)} rows {named} ({int(length[mine].sum()) / 1e6:,.3f} ms) are of a device, "
            "but do not say on "
            "which stream or device they ran, or are calls without a thread: left out"
        )
