"""What the execution trace of a rank lacks: that it is there, of the same run, of the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.link.names import common_names
from graphlink.link.provenance import differences
from graphlink.model import NOWHERE, Communication, HostTrace, Linked

_OBSERVER: Final = "profile(..., execution_trace_observer=ExecutionTraceObserver().register_callback('et_0.json'))"
_BOTH: Final = "the execution trace and the Kineto trace of one profile(): " + _OBSERVER

NO_ET = Kind(
    "no-et",
    "lost",
    "no execution trace",
    "{rows} host nodes lack what only it has: schema, tensors, scope, fw_parent; {unknown} of {comms} communication ops stay unknown",
    _OBSERVER,
    by_capture=True,
)
NO_KINETO = Kind(
    "no-kineto",
    "lost",
    "an execution trace without a Kineto trace",
    "there is no graph of it: its {nodes} nodes have no times and no device ops",
    "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) around the same steps",
    by_capture=True,
)
OTHER_RUN = Kind(
    "et-of-other-run",
    "lost",
    "the execution trace is of another run than the Kineto trace",
    "graphlink refuses the pair; what else is said here is of the Kineto trace alone",
    _BOTH,
    by_capture=True,
)
DIFFERS = Kind(
    "et-differs",
    "inferred",
    "the execution trace and the Kineto trace agree in names, but are of two runs of one program, it seems",
    "sizes, groups and tensors in the graph may be of the other run",
    _BOTH,
    by_capture=True,
)
PARTIAL = Kind(
    "et-partial",
    "lost",
    "the execution trace covers {covered} of {rows} host rows",
    "the other nodes lack what only it has, and communication among them may stay unknown",
    "the same steps in both: " + _OBSERVER,
    by_capture=True,
)
BEYOND = Kind(
    "et-beyond-window",
    "note",
    "{beyond} of {nodes} nodes of the execution trace are not in the Kineto trace",
    "they are in no graph",
    "the same steps in both: " + _OBSERVER,
    by_capture=True,
)
BY_ORDER = Kind(
    "matched-by-order",
    "inferred",
    "no record-function ids: the execution trace is matched by the order of names on each thread",
    "{matched} of {rows} host rows are matched so",
    "an ExecutionTraceObserver that is on while Kineto records (PyTorch numbers ops only then), and a PyTorch of mid 2024 or newer",
    by_capture=True,
)
NO_IDS = Kind(
    "no-record-function-ids",
    "note",
    "no record-function ids",
    "nothing now: an execution trace of this run could only be matched by order",
    "an ExecutionTraceObserver that is on while Kineto records (PyTorch numbers ops only then)",
    by_capture=True,
)
NAMES = Kind(
    "et-names-differ",
    "inferred",
    "some of the execution trace does not fit the Kineto trace",
    "{unmatched} host rows are left unmatched",
    _BOTH,
    by_capture=True,
)
BROKEN = Kind(
    "et-broken-rows",
    "lost",
    "{rows} nodes of the execution trace could not be read",
    "they are left out",
    "the file as the observer wrote it, after unregister_callback()",
    by_capture=True,
)


def without_et(linked: Linked, comm: Communication) -> Iterator[Finding]:
    """A rank of which there is no execution trace, or none that fits."""
    rows, unknown = len(linked.trace.host.start_ns), sum(comm.unknown.values())
    yield Finding(NO_ET, figures={"rows": rows, "unknown": unknown, "comms": len(comm.ops.row)})
    if rows and len(np.unique(linked.trace.host.rf_id)) < 2:
        yield Finding(NO_IDS, 0.0)


def alone(et: HostTrace) -> Finding:
    """An execution trace that no device recording belongs to."""
    return Finding(NO_KINETO, figures={"nodes": int(np.count_nonzero(et.rf_id > 0))})


def et_lacking(linked: Linked, comm: Communication, et: HostTrace) -> Iterator[Finding]:
    """What a rank's execution trace says less, or other than its device recording."""
    match, rows, nodes = linked.match, len(linked.match.et), int(np.count_nonzero(et.rf_id > 0))
    matched = int(np.count_nonzero(match.et != NOWHERE))
    if match.method == "order":
        yield Finding(BY_ORDER, matched / max(rows, 1), {"matched": matched, "rows": rows})
    said = (*differences(linked.trace, et), *(f"process group {text}" for text in comm.differing))
    if said:
        yield Finding(DIFFERS, told=said)
    names = common_names(linked.trace, et)
    in_kineto, in_et = ({names.text[code] for code in np.unique(codes).tolist()} for codes in (names.kineto, names.et[et.rf_id > 0]))
    if not in_et.isdisjoint(match.only_kineto):
        yield Finding(PARTIAL, 1 - matched / max(rows, 1), {"covered": matched, "rows": rows})
    beyond = sum(match.only_et.values())
    if not in_kineto.isdisjoint(match.only_et):
        yield Finding(BEYOND, beyond / max(nodes, 1), {"beyond": beyond, "nodes": nodes})
    if match.misfits:
        yield Finding(NAMES, (rows - matched) / max(rows, 1), {"unmatched": rows - matched}, told=match.misfits)
    broken = sum(et.left_out.values())
    yield from if_any(BROKEN, {"rows": broken}, broken + nodes, et.left_out)
