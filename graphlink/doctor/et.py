"""Gaps of the execution trace of a rank: whether it is there, of the same run, of the same steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphlink.doctor.records import Finding, if_any
from graphlink.linking.names import common_names
from graphlink.linking.provenance import differences
from graphlink.model import NOWHERE, Communication, HostTrace, Linked


def without_et(linked: Linked, comm: Communication) -> Iterator[Finding]:
    """Report a rank of which there is no execution trace, or none that fits."""
    rows, unknown = len(linked.trace.host.start_ns), sum(comm.unknown.values())
    yield Finding("no-et", figures={"rows": rows, "unknown": unknown, "comms": len(comm.ops.row)})
    if rows and len(np.unique(linked.trace.host.rf_id)) < 2:
        yield Finding("no-record-function-ids", 0.0)


def alone(et: HostTrace) -> Finding:
    """Report an execution trace that no device recording belongs to."""
    return Finding("no-kineto", figures={"nodes": int(np.count_nonzero(et.rf_id > 0))})


def et_lacking(linked: Linked, comm: Communication, et: HostTrace) -> Iterator[Finding]:
    """Report where a rank's execution trace has less, or other, than its device recording."""
    match, rows, nodes = linked.match, len(linked.match.et), int(np.count_nonzero(et.rf_id > 0))
    matched = int(np.count_nonzero(match.et != NOWHERE))
    if match.method == "order":
        yield Finding("matched-by-order", matched / max(rows, 1), {"matched": matched, "rows": rows})
    said = (*differences(linked.trace, et), *(f"process group {text}" for text in comm.differing))
    if said:
        yield Finding("et-differs", told=said)
    names = common_names(linked.trace, et)
    in_kineto, in_et = (
        {names.text[code] for code in np.unique(codes).tolist()} for codes in (names.kineto, names.et[et.rf_id > 0])
    )
    if not in_et.isdisjoint(match.only_kineto):
        yield Finding("et-partial", 1 - matched / max(rows, 1), {"covered": matched, "rows": rows})
    beyond = sum(match.only_et.values())
    if not in_kineto.isdisjoint(match.only_et):
        yield Finding("et-beyond-window", beyond / max(nodes, 1), {"beyond": beyond, "nodes": nodes})
    if match.misfits:
        yield Finding(
            "et-names-differ", (rows - matched) / max(rows, 1), {"unmatched": rows - matched}, told=match.misfits
        )
    broken = sum(et.left_out.values())
    yield from if_any("et-broken-rows", {"rows": broken}, broken + nodes, et.left_out)
