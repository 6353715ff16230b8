"""Gaps of a recording in its waits: which are inferred, and which nothing explains. The numbers are those of
``summary.json``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from graphlink.depend.build import Built, FoundWaits
from graphlink.depend.hostcomm import WAIT_RANGE
from graphlink.doctor.recording import bounds
from graphlink.doctor.records import Finding, if_any
from graphlink.graph_model import Graph, NodeKind
from graphlink.linking.call_roles import Role
from graphlink.model import NOWHERE, Bool, FoundBy, Linked, SyncKind
from graphlink.tables import marked

EXPLAINED_SHARE: Final = 0.95  # of calls, of threads and of the time, from which on the rest is not reported
AGAIN: Final = (
    "again on a machine that does nothing else (others take the cores from its threads), with stacks=True "
    "(graphlink.capture) or "
    "with_stack=True, which shows when Python ran; and what is said of each piece"
)
_BLOCKING: Final = (Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC)


def waits_lacking(linked: Linked, found: FoundWaits, built: Built, comms: int, *, nsys: bool) -> Iterator[Finding]:
    """Report what is missing to explain waits. ``comms``: host-side communication ops; ``nsys``: of an export, else of
    a Kineto trace.
    """
    trace, role = linked.trace, found.cuda.role
    calls, syncs = trace.calls, trace.syncs
    from_ns, until_ns = bounds(trace)
    if comms and (built.untold.comms or WAIT_RANGE not in trace.strings):
        late, late_ns = built.untold.comms, built.untold.comms_ns
        yield Finding(
            "host-comm", share_of(late_ns, until_ns - from_ns), {"comms": comms, "late": late, "late_ns": late_ns}
        )
    if not len(trace.device.start_ns):
        return
    blocking = np.isin(role, _BLOCKING)
    inferred_calls = found.dependencies.host.call[(found.dependencies.host.found_by & FoundBy.INFERRED) != 0]
    took_ns = int((calls.end_ns - calls.start_ns)[blocking].sum())
    figures = {
        "calls": int(np.count_nonzero(blocking)),
        "explained": int(np.count_nonzero(blocking & np.isin(np.arange(len(role)), inferred_calls))),
        "inferred": built.sync.by_source["inferred"],
        "unexplained": built.untold.calls,
        "unexplained_ns": built.untold.calls_ns,
        "waits": int(np.count_nonzero(role == Role.STREAM_WAIT)),
    }
    share = share_of(took_ns, until_ns - from_ns)
    if not len(syncs.kind):
        yield Finding(_no_rows(linked, nsys=nsys), share, figures, parts=_names(linked, blocking))
        return
    yield from if_any(
        "cuda-sync-without-calls", {"lone": found.cuda.rows_without_call, "rows": len(syncs.kind)}, len(syncs.kind)
    )
    of_event = np.isin(syncs.kind, (SyncKind.EVENT, SyncKind.STREAM_WAIT))
    unnamed = int(np.count_nonzero(of_event & ~syncs.record_known))
    if unnamed:
        rows = int(np.count_nonzero(of_event))
        kind = "nsys-no-event-records" if nsys else "no-event-records" if unnamed == rows else "event-records-outside"
        yield Finding(kind, unnamed / rows, {"unnamed": unnamed, "rows": rows, "inferred": figures["inferred"]})
    without = blocking & ~found.cuda.told_call
    if figures["unexplained"] or (figures["inferred"] and without.any()):
        missing = int(np.count_nonzero(without))
        yield Finding(
            "cuda-sync-gaps",
            missing / max(figures["calls"], 1),
            figures | {"without": missing},
            parts=_names(linked, without),
        )


def late_lacking(graph: Graph, linked: Linked) -> Iterator[Finding]:
    """Report device ops that began late for no reason that was recorded, where that is more than 5 % of the time of the
    rank.

    Ops without a launch of their own (not recorded, or behind that of a graph) are other findings.
    """
    first = marked(len(linked.device_call), np.unique(linked.device_call, return_index=True)[1])
    delay = np.flatnonzero(graph.kind == NodeKind.DEVICE_DELAY)
    row = graph.row[delay]
    ns = graph.duration_ns[delay[first[row] & (linked.device_call[row] != NOWHERE)]]  # they do not overlap
    share = share_of(int(ns.sum()), int(graph.end_ns.max(initial=0)))
    if share > 1 - EXPLAINED_SHARE:
        yield Finding("late-starts", share, {"delays": len(ns), "late_ns": int(ns.sum())})


def _no_rows(linked: Linked, *, nsys: bool) -> str:
    if nsys:
        return "nsys-no-sync"
    used = np.unique(linked.trace.calls.name)
    return "no-hip-sync" if any(linked.trace.strings[k].startswith("hip") for k in used.tolist()) else "no-cuda-sync"


def _names(linked: Linked, which: Bool) -> dict[str, int]:
    names = linked.trace.calls.name[which]
    return dict(Counter(linked.trace.strings[k] for k in names.tolist()).most_common())


def share_of(part_ns: int, whole_ns: int) -> float:
    return min(part_ns / whole_ns, 1.0) if whole_ns else 0.0
