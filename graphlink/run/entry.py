"""A rank as ``summary.json`` has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from graphlink.graph import write_et as chakra
from graphlink.graph.critical import ShareNs
from graphlink.graph_model import EdgeKind, NodeKind
from graphlink.linking.provenance import MIN_EPOCH_NS
from graphlink.model import System, Trace
from graphlink.replay.ideal import error_pct, measured_ns
from graphlink.report import summary
from graphlink.run.records import PreparedRank, RankWork


def _recorded_inputs(prepared: PreparedRank) -> summary.Inputs:
    """Return where a rank came from."""
    inputs, trace, et, graph = prepared.inputs, prepared.linked.trace, prepared.linked.et, prepared.built.graph
    began_ns, ended_ns = graph.epoch_ns, graph.epoch_ns + int(graph.end_ns.max(initial=0))
    dated = began_ns >= MIN_EPOCH_NS
    return summary.Inputs(
        et=inputs.name_of(inputs.et) if inputs.et else None,
        kineto=inputs.name_of(inputs.kineto) if inputs.kineto else None,
        nsys=str(inputs.nsys) if inputs.nsys else None,
        device=int(trace.device.device[0]) if inputs.nsys and len(trace.device.device) else None,
        et_schema=et.schema if et else None,
        recorded_at=et.recorded_at if et else None,
        pid=trace.pid,
        resolution_ns=trace.resolution_ns,
        began_ns=began_ns if dated else None,
        ended_ns=ended_ns if dated else None,
        node=inputs.placed[0] if inputs.placed else None,
        local_rank=inputs.placed[1] if inputs.placed else None,
    )


def _machine(trace: Trace) -> summary.Machine | UnsetType:
    if not (trace.host_name or trace.gpus or trace.system != System()):
        return UNSET
    return summary.Machine(host=trace.host_name, gpus=[gpu.name for gpu in trace.gpus], system=trace.system)


def _left_out(prepared: PreparedRank) -> dict[str, int]:
    """Return how many recorded rows are no nodes, by reason."""
    trace, et = prepared.linked.trace, prepared.linked.et
    found = {**trace.left_out, **({f"ET: {k}": n for k, n in et.left_out.items()} if et else {})}
    found["ET ops that Kineto lacks"] = sum(prepared.linked.match.only_et.values())
    found["device rows of a merged ET"] = et.device_nodes_left_aside if et else 0
    found["host nodes folded into others (--host launches)"] = prepared.folded
    return {reason: n for reason, n in sorted(found.items()) if n}


def entry_of(work: RankWork, fields: Mapping[str, Any], extra: tuple[str, ...]) -> summary.Rank:
    """Return what ``summary.json`` says of a rank. ``fields``: of wings; ``extra``: warnings beside those of its
    graph.
    """
    prepared, linked, explained = work.prepared, work.linked, work.explained
    graph = prepared.built.graph
    trace, match, critical = linked.trace, linked.match, explained.path
    measured = measured_ns(graph)
    matched = int(np.count_nonzero(match.et >= 0))
    orphans = sum(linked.orphans.values())
    types = Counter(chakra.type_name(c.node_type) for c in prepared.plan.by_node.values())
    return summary.Rank(
        rank=prepared.rank,
        world_size=work.joined.world_size,
        inputs=_recorded_inputs(prepared),
        machine=_machine(trace),
        memory=list(trace.memory) or UNSET,
        graph_nodes=len(graph.kind),
        node_kinds={k.name.lower(): n for k in NodeKind if (n := int(np.count_nonzero(graph.kind == k)))},
        host=summary.Host(
            nodes=len(match.et),
            matched=matched,
            unmatched=len(match.et) - matched,
            method=match.method,
            only_kineto=summary.top(match.only_kineto),
            only_et=summary.top(match.only_et),
        ),
        device=summary.Device(
            ops=len(trace.device.start_ns), linked=len(trace.device.start_ns) - orphans, orphans=linked.orphans
        ),
        clock=summary.Clock(devices=list(trace.clocks.devices if trace.clocks else ())),
        edges={k.name.lower(): int(np.count_nonzero(graph.edge_kind == k)) for k in EdgeKind},
        sync=prepared.built.sync,
        communication=dict(sorted(types.items())),
        replaced=prepared.plan.replaced,
        replay=summary.Replay(
            measured_ns=measured,
            replayed_ns=work.played.total_ns,
            error_pct=error_pct(work.played.total_ns, measured),
            gap_share=critical.gap_share,
            delay_share=critical.delay_share,
        ),
        critical_path=summary.CriticalPath(
            length_ns=critical.length_ns, share_ns=ShareNs(**critical.share_ns), nodes=len(critical.node)
        ),
        top_gain=next(iter(explained.gains.families), UNSET),
        left_out=_left_out(prepared),
        warnings=[*prepared.warnings, *extra],
        **fields,
    )
