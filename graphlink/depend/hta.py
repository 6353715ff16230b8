"""Synchronisation edges as HTA finds them (package ``hta``: HolisticTraceAnalysis 0.5.0 or traceinsight 0.6.1).

HTA's critical path analysis runs in memory on our own rows (``graphlink.depend.hta_feed``), of its graph construction
only the nodes and the kernel loop: no file, no call stacks, no validation, no longest path. All its SYNC_DEPENDENCY
edges are taken, not only those on a critical path. They are findings as HTA makes them: where it is known to be wrong
(several threads, event queries), a later stage checks them against causality and the rows.

The only module that imports ``hta`` and ``pandas``. While HTA runs, five of its attributes are replaced, its logger
is silenced and the garbage collector is off, process-wide: one rank per process, never in threads.
"""

from __future__ import annotations

import functools
import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from graphlink.choices import HTA_LIMIT
from graphlink.depend.hta_feed import HtaFrame, choices, device_feed, frame, sync_calls, windows
from graphlink.model import I32, I64, NOWHERE, FoundBy, SyncKind, Trace, Waits
from graphlink.records import NOTE
from graphlink.tables import how_many, last_before, lookup, tuples

WINDOW_ROWS = (
    500_000  # about 0.2 GB in HTA where 5 % are sync rows; another window costs 50 ms and more with many streams
)
MOST_KEPT_ROWS = 2000  # of a frame that is kept with its edges: 0.2 MB
NO_ROWS = (
    f"{NOTE}HTA found no synchronisation edges: it makes them from cuda_sync rows only, and the trace has none "
    "(record with _ExperimentalConfig(enable_cuda_sync_events=True))"
)


def hta_waits(
    trace: Trace, device_call: I32, limit_events: int = HTA_LIMIT, window_rows: int = WINDOW_ROWS
) -> tuple[Waits, list[str]]:
    """Return HTA's SYNC_DEPENDENCY edges over all steps: device row -> sync call, or device row -> device row; and
    warnings.

    ``device_call[i]`` is the row in ``trace.calls`` that launched device row i, NOWHERE for an orphan. Traces of more
    than ``window_rows`` (or ``limit_events``) device, call and sync rows are looked at in windows of whole
    ProfilerSteps; a window with more than ``limit_events`` device rows and calls is skipped. The waits are unique and
    sorted by target, then source.

    Never raises for what HTA does: an exception in it, None and an empty result are three different warnings.
    """
    if not len(trace.syncs.kind):
        return _waits([]), [NO_ROWS]
    call, record = sync_calls(trace)
    placed = (call != NOWHERE) & (
        trace.syncs.stream_known | np.isin(trace.syncs.kind, (SyncKind.DEVICE, SyncKind.EVENT))
    )
    lone = how_many(call == NOWHERE)
    left_out = {
        "cuda_sync row without its call": lone,
        "cuda_sync row of an unknown stream": how_many(~placed & (call != NOWHERE)),
        "device row without its call": how_many(device_call == NOWHERE),
    }
    cut = windows(trace, min(window_rows, limit_events))
    edges: list[Waits] = []
    skipped: dict[str, int] = {}
    failures: dict[str, list[tuple[str, int]]] = {}  # by their text, with the windows and devices that they befell
    for device in np.unique(trace.syncs.device[placed]).tolist():
        sync = np.flatnonzero((trace.syncs.device == device) & placed)
        feed = device_feed(trace, device_call, device, sync, call[sync], record[sync])
        for window, choice in zip(cut, choices(feed, cut), strict=True):
            if not len(choice.sync) or not len(choice.op):
                continue  # nothing to be found
            if window.events > limit_events:
                skipped[window.name] = window.events
                continue
            outcome = _run(frame(feed, choice))
            if isinstance(outcome, str):
                failures.setdefault(outcome, []).append((window.name, device))
            else:
                edges.append(outcome)
    waits = _waits(edges)
    said = _skipped(skipped, len(cut), limit_events)
    for text, places in failures.items():
        (first, device), *_ = places
        said.append(f"{text} (in {len(dict(places))} of {len(cut)} windows, first: {first}, device {device})")
    if not len(waits.source) and (edges or not said):
        without = f", {lone:,} of them without their call" if lone else ""
        said.append(
            f"{NOTE}HTA found no synchronisation edges where it ran; the trace has {len(trace.syncs.kind):,} cuda_sync "
            f"rows{without}"
        )
    return waits, [*said, *(f"{NOTE}HTA was not given {n} rows: {reason}" for reason, n in left_out.items() if n)]


def _skipped(skipped: dict[str, int], of: int, limit_events: int) -> list[str]:
    if not skipped:
        return []
    largest = max(skipped, key=skipped.__getitem__)
    return [
        f"HTA skipped in {len(skipped)} of {of} windows with more than {limit_events:,} device and call events "
        f"(largest: {largest}, {skipped[largest]:,}); raise --hta-limit to include them"
    ]


def _waits(edges: list[Waits]) -> Waits:
    """Return each wait once, by target (calls first), then source."""
    found = np.concatenate(
        [np.empty((0, 3), np.int32), *(np.column_stack([e.device_op, e.call, e.source]) for e in edges)]
    )
    device_op, call, source = np.unique(found, axis=0).astype(np.int32).T
    return Waits(source, call, device_op, np.full(len(source), FoundBy.HTA, np.uint8))


def _run(frame: HtaFrame) -> Waits | str:
    """Run HTA once: return its edges, or why there are none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of HTA's import and of pandas in it
            pairs_of = _kept_pairs if len(frame.call) <= MOST_KEPT_ROWS else _kept_pairs.__wrapped__
            pairs = pairs_of(frame.symbols, *((name, column.tobytes()) for name, column in frame.columns.items()))
    except Exception as error:  # noqa: BLE001 - HTA raises whatever its pandas queries raise, and none of it may end the run
        first_line = (str(error).splitlines() or [""])[0]
        return f"HTA failed with {type(error).__name__}: {first_line[:200]}".rstrip(": ")
    if pairs is None:
        return "HTA returned None instead of a graph"
    source, target = pairs.T
    return Waits(
        source=frame.device_op[source].astype(np.int32),
        call=frame.call[target].astype(np.int32),
        device_op=frame.device_op[target].astype(np.int32),
        found_by=np.full(len(pairs), FoundBy.HTA, np.uint8),
    )


@functools.lru_cache(64)  # ranks of a run often give the same, and HTA costs a small one more than all other work
def _kept_pairs(symbols: tuple[str, ...], *columns: tuple[str, bytes]) -> I64 | None:
    """Return the positions (source, target) of the SYNC edges, shape (n, 2), or None where HTA returned None."""
    import hta.analyzers.critical_path_analysis as cpa
    import pandas as pd
    from hta.common.trace import Trace as HtaTrace

    rows = {name: np.frombuffer(column, np.int64) for name, column in columns}
    with _alone(cpa, pd, _finders(pd, symbols, rows)):
        recording = HtaTrace(trace_files={}, trace_dir=".")
        recording.symbol_table.add_symbols(symbols)
        recording.meta_data[0] = {}
        recording.traces[0] = pd.DataFrame(rows, index=rows["index"])
        recording.is_parsed = True
        found = cpa.CriticalPathAnalysis.critical_path_analysis(recording, 0, "", None)
        if found is None:
            return None
        graph = found[0]
        sync, event = cpa.CPEdgeType.SYNC_DEPENDENCY, [node.ev_idx for node in graph.node_list]
        # adjacency() and not edges: networkx caches the latter in the graph, a cycle that would keep every window's
        # graph alive
        edges = (data["object"] for _, targets in graph.adjacency() for data in targets.values())
        pairs = [(event[edge.begin], event[edge.end]) for edge in edges if edge.type is sync]
    return np.array(pairs, np.int64).reshape(-1, 2)


def _launches(symbols: tuple[str, ...], rows: dict[str, I64]) -> tuple[dict[str, I64], dict[int, dict[str, int]]]:
    """Return the last launch on its stream before each record that is awaited, and for each wait, by its call, the
    first launch behind it on its stream by its thread, ``NOWHERE`` for none: as HTA's ``_get_cuda_event_record_df`` and
    ``_get_cuda_stream_wait_event_df``, which sort and join all launches again for each stream and thread. n log n.
    """
    index, name, stream, correlation, ts, tid, partner = (
        rows[column] for column in ("index", "name", "stream", "correlation", "ts", "tid", "index_correlation")
    )
    launch, record, wait = (
        np.flatnonzero(name == (symbols.index(text) if text in symbols else NOWHERE))
        for text in ("cudaLaunchKernel", "cudaEventRecord", "cudaStreamWaitEvent")
    )
    awaited = np.flatnonzero(rows["wait_on_stream"] != NOWHERE)
    known = lookup(rows["wait_on_cuda_event_record_corr_id"][awaited], correlation[record])
    record, recorded_on = record[known != NOWHERE], rows["wait_on_stream"][awaited[known[known != NOWHERE]]]
    launched_on = stream[partner[launch] - 1]
    before = last_before((launched_on,), ts[launch], (recorded_on,), ts[record])
    behind = last_before((launched_on, tid[launch]), -ts[launch], (stream[partner[wait] - 1], tid[wait]), -ts[wait])
    place = np.append(index[launch], NOWHERE)
    next_launch = {call: {"index_next_launch": to} for call, to in tuples(index[wait], place[behind])}
    return {"correlation": correlation[record], "index_previous_launch": place[before]}, next_launch


def _finders(pd: Any, symbols: tuple[str, ...], rows: dict[str, I64]) -> dict[str, Callable[[Any], Any]]:
    """Return what takes the place of methods of HTA's graph, by their names: the answers of ``_launches``."""
    previous_launch, next_launch = _launches(symbols, rows)

    def records(graph: Any) -> Any:
        return pd.DataFrame(previous_launch) if len(previous_launch["correlation"]) else None

    def waits(graph: Any) -> Any:
        # the kernel loop, which follows, takes a number of each of these two for each wait, which pandas is slow at
        partner = dict(tuples(rows["index"], rows["index_correlation"]))
        graph.full_trace_df = SimpleNamespace(index_correlation=partner, ts=graph.full_trace_df["ts"])
        return SimpleNamespace(loc=next_launch)

    return {"_get_cuda_event_record_df": records, "_get_cuda_stream_wait_event_df": waits}


@contextmanager
def _alone(cpa: Any, pd: Any, finders: Mapping[str, Callable[[Any], Any]]) -> Iterator[None]:
    """Reduce HTA to nodes and kernel loop, with ``finders`` in place of its own, its logger silent and without garbage
    collection; all of it put back at the end.
    """

    def construct(graph: Any) -> None:
        graph._create_event_nodes()
        graph._construct_graph_from_kernels()

    def no_queue_lengths(cls: type, recording: Any, rank: int) -> Any:
        return pd.DataFrame({"queue_length": np.empty(0)}, index=pd.Index([], dtype="int64"))

    replaced: tuple[tuple[Any, str, Any], ...] = (
        (cpa.CPGraph, "_construct_graph", construct),
        (cpa.CPGraph, "critical_path", lambda graph: True),
        *((cpa.CPGraph, name, finder) for name, finder in finders.items()),
        (cpa.TraceCounters, "_get_queue_length_time_series_for_rank", classmethod(no_queue_lengths)),
    )
    logger = logging.getLogger("hta")
    with ExitStack() as restore:
        restore.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        # this cache is keyed by graph and holds 128 of them
        restore.callback(cpa.CPGraph._add_zero_weight_launch_edges.cache_clear)
        if gc.isenabled():
            restore.callback(gc.enable)
            gc.disable()
        for owner, name, new in replaced:
            restore.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, new)
        yield
