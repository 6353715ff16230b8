"""The text of ``graphlink replay``: what changes gain, how the recording replays, and the names that can be scaled."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from graphlink.records import (
    Lines,
    Table,
    apart,
    before_what,
    counted,
    in_ms,
    joined,
    path_words,
    percent,
    share_word,
    shortened,
)

if TYPE_CHECKING:
    from graphlink.replay.records import Listed, NodeAt, PathEntry, RankEntry, Report, Run, StuckEntry, WhatIf

MOST_LANES: Final = 8
_ABOUT: Final = {
    "ideal": "dependencies only, each rank alone",
    "astra-sim": "one CPU, one GPU and one communication slot for each rank, lowest id first",
    "ranks": "ASTRA-sim's slots on all ranks; collectives wait for all members, receives for their send",
    "coupled": "dependencies only, on all ranks; collectives wait for all members, receives for their send",
}


def listing(found: Listed, what: str) -> Lines:
    """Return the names that can be scaled, for people."""
    sort = "" if found.sort is None else f" of sort {found.sort}"
    head = (
        f"{what}: {counted(found.of, 'name')}{sort} can be scaled: {in_ms(found.ns)}, added up over threads, streams "
        "and ranks"
    )
    path = "" if found.path_ns is None else f" of {in_ms(found.path_ns)}, on machine {found.machine}"
    if not (found.names or found.ranges):
        return [f"{what}: no work{sort} was recorded that can be scaled"]
    rows, inside = (
        [
            (
                in_ms(name.ns),
                "" if name.path_ns is None else in_ms(name.path_ns),
                f"{name.nodes:,}",
                name.sort,
                short + before_what(name.before),
                "--scale " + shlex.quote(f"{name.scale}=0.5"),
            )
            for name, short in zip(names, apart([name.name for name in names]), strict=True)
        ]
        for names in (found.names, found.ranges)
    )
    left = found.of - len(found.names)
    lines: Lines = [head]
    heads = ("time", "on path", "nodes", "sort", "name", "half as long")
    if rows:
        lines.append(Table(rows, heads, ">>><<<"))
    if found.path_ns is None:
        lines.append("  on path: no one path, as no machine has replayed all ranks together to their end")
    elif rows:
        lines.append(f"  on path: what they take of the critical path{path}")
    lines += [f"  ... and {left:,} more: --top N shows so many"] if left else []
    if inside:
        lines += ["", "ranges and modules, with all that is inside them", Table(inside, heads, ">>><<<")]
    graphs = [
        (
            f"{one.launches:,}",
            f"{one.nodes:,}",
            shortened(one.name),
            one.why_not or f"--cuda-graph {shlex.quote(one.cuda_graph)}",
        )
        for one in found.cuda_graphs
    ]
    if graphs:
        head = (
            "ops and ranges that launch most, as CUDA graphs (--cuda-graph auto: each step, or its parts between waits)"
        )
        lines += ["", head, Table(graphs, ("launches", "nodes", "name", "as a graph"), ">><<")]
    return lines


def text(report: Report, what: str, *, verbose: bool = False) -> Lines:
    """Return the report for people: the gain of changes before all else. ``verbose``: with the replay of the recording
    where there are changes, and where that replay and the recording drift apart.
    """
    from msgspec import UNSET

    on = f"machine {report.machine}: {_ABOUT[report.machine]}"
    alone = [] if report.why_alone is UNSET else [f"  each rank alone, since {report.why_alone}"]
    runs = joined(_run(run, verbose=verbose) for run in report.runs)
    if not report.what_if:
        return [f"{what} on {on}", *alone, "", *runs, *_notes(report), *([] if verbose else _more(report))]
    gains = [*_gains(report, what), *alone, *_answers(report)]
    verbose = verbose or any(run.stuck for run in report.runs)  # what there is of it says why nothing is gained
    return [*gains, "", *(["as recorded, on " + on, *runs, *_notes(report)] if verbose else _more(report))]


def _more(report: Report) -> list[str]:
    """Name what is left out without ``-v``."""
    drifts, waits, notes = (
        sum(len(getattr(run, name)) for run in report.runs) for name in ("drifts", "slot_waits", "notes")
    )
    changed = bool(report.what_if)
    parts = [
        *(["the replay of the recording itself"] if changed else []),
        *([f"{counted(drifts, 'place')} where replay and recording drift apart"] if drifts else []),
        *([f"{waits:,} threads and streams that waited for a slot"] if waits else []),
        *([counted(notes, "note")] if changed and notes else []),
    ]
    return [f"  with -v        {', '.join(parts)}"] if parts else []


def _notes(report: Report) -> list[str]:
    """Return each note once; where runs are of a rank each, with the number of those that have it."""
    noted = Counter(note for run in report.runs for note in run.notes)
    return [
        f"  note           {'' if len(report.runs) == 1 else counted(n, 'rank') + ': '}{note}"
        for note, n in noted.items()
    ]


def _run(run: Run, *, verbose: bool) -> Lines:
    lines: Lines = [
        f"rank {r.rank}: {_replayed(r)}, {'' if r.finished else f'{r.ran:,} of '}{r.nodes:,} nodes" for r in run.ranks
    ]
    lines += _stuck(run.stuck)
    if len(run.ranks) > 1:
        lines.append(f"  all ranks      {_all(run)}")
    lines += _path(run.path)
    return [*lines, *_drifts(run), *_slot_waits(run)] if verbose else lines


def _drifts(run: Run) -> Lines:
    if not run.drifts:
        return []
    behind = (f"{d.edge}{f' <- {_node(d.held_by, run)}' if d.held_by else ''}" for d in run.drifts)
    rows = [
        (_us(d.change_ns), "to", _us(d.drift_ns), f"{_node(d.node, run)}  <- {edge}")
        for d, edge in zip(run.drifts, behind, strict=True)
    ]
    head = "  replay and recording drift apart most (replayed - recorded start; change since what held the node back):"
    return [head, Table(rows, align="><><", indent=4)]


def _slot_waits(run: Run) -> Lines:
    if not run.slot_waits:
        return []
    waits = [
        (
            _us(w.waited_ns),
            f"{f'rank {w.rank} ' * (len(run.ranks) > 1)}{w.lane}: {w.nodes:,} nodes for the {w.slot} slot, "
            f"{_us(w.behind_ns)} of it behind {w.behind}",
        )
        for w in run.slot_waits[:MOST_LANES]
    ]
    left = len(run.slot_waits) - MOST_LANES
    more = [f"    ... and {left} more"] if left > 0 else []
    return ["  ready, but the slot was taken:", Table(waits, align="><", indent=4), *more]


def _replayed(r: RankEntry) -> str:
    measured = "no recorded times" if r.measured_ns is None else f"measured {in_ms(r.measured_ns)}"
    if not r.finished:
        return f"{measured}, replayed until nothing could run, at {in_ms(r.replayed_ns)}"
    error = "" if r.error_pct is None else f", {r.error_pct:+.3f} % (self-consistency)"
    return f"{measured}, replayed {in_ms(r.replayed_ns)}{error}"


def _all(run: Run) -> str:
    measured = "" if run.measured_ns is None else f"measured {in_ms(run.measured_ns)}, "
    error = "" if run.error_pct is None else f", {run.error_pct:+.3f} % (self-consistency)"
    apart = "; no time was measured over all ranks: see each" if run.measured_ns is None else ""
    ran, nodes = sum(r.ran for r in run.ranks), sum(r.nodes for r in run.ranks)
    return f"{measured}replayed {in_ms(run.total_ns)}{error}, {ran:,} of {nodes:,} nodes run{apart}"


def _path(path: PathEntry) -> Lines:
    """Return the path in the words of ``graphlink critical-path``, the largest part first."""
    whole, spent = path.length_ns, Counter[str]()
    for sort, ns in path.work_ns.items():
        spent[share_word(sort)] += ns
    parts = path_words(spent, whole, path.gap_share, path.delay_share)
    slots = f", {path.slot_waits:,} of them waited for a slot" if path.slot_waits else ""
    top = [
        (
            percent(f.ns, whole),
            in_ms(f.ns),
            f"{f.nodes:,}",
            share_word(f.work),
            shortened(f.name) + before_what(f.before),
        )
        for f in path.top
    ]
    return [
        f"  critical path  {in_ms(path.length_ns)} in {path.nodes:,} nodes{slots}: {parts or 'nothing'}",
        *([Table(top, align=">>><<", indent=4)] if top else []),
    ]


def _gains(report: Report, what: str) -> Lines:
    """Return what the changes gain, in all and of each rank, and what they did."""
    head, rows = f"{what} on machine {report.machine}, what if", []
    for run, w in zip(report.runs, report.what_if, strict=True):
        if len(run.ranks) > 1:
            rows.append(_row("all", (w.before_ns, w.after_ns), w.path_ns, finished=w.gain_pct is not None))
        for a, b in zip(run.ranks, w.ranks, strict=True):
            rows.append(
                _row(f"rank {a.rank}", (a.replayed_ns, b.replayed_ns), w.path_ns, finished=a.finished and b.finished)
            )
        if w.steps_ns is not None:
            rows.append(_row("a step", w.steps_ns, w.steps_ns[0], finished=True))
        if w.bare_ns is not None:
            rows.append(_row("a bare step", w.bare_ns, w.bare_ns[0], finished=True))
    if len(report.what_if) == 1:
        head += f": {_answer(report.what_if[0])}"
    return [
        head,
        Table(rows, ("", "before", "after", "gain", "of path" if len(report.runs[0].ranks) > 1 else ""), "<>>>>"),
        *(f"  {d}" for d in _done(report)),
        *_sure(report),
    ]


def _sure(report: Report) -> Lines:
    """Return between which times a second run with the changes is; of several runs, of each."""
    from graphlink.replay.band import band_head, band_words

    rows = []
    for w in report.what_if:
        if w.band is not None:
            head = f"{band_head(w.band)}{'' if len(report.what_if) == 1 else f' of rank {w.ranks[0].rank}'}"
            lines = band_words(w.band, w.before_ns, w.path_ns)
            rows += [
                (head if not k else "", line) for k, line in enumerate(lines if len(report.what_if) == 1 else lines[:1])
            ]
    return [Table(rows)] if rows else []


def _answer(w: WhatIf) -> str:
    """Return the gain in words."""
    if w.gain_pct is None:
        return "it does not finish"
    gain = w.before_ns - w.after_ns
    return f"{'costs' if gain < 0 else 'saves'} {in_ms(abs(gain))} ({percent(abs(gain), w.path_ns)})"


def _answers(report: Report) -> Lines:
    """Return the path after the changes, and what they do not answer."""
    lines = [
        line
        for w in report.what_if
        for line in (
            "",
            f"  then, on rank {w.ranks[0].rank}:" if len(w.ranks) == 1 else "  then:",
            *_path(w.path),
            *_stuck(w.stuck),
        )
    ]
    rests = dict.fromkeys(
        f"{one.kind.replace('_', ' ')}: {one.rests_on} {one.cannot_know}" for w in report.what_if for one in w.done
    )
    lines += ["", "  this rests on:", *(f"  - {line}" for line in rests)] if rests else []
    return [*lines, *(["", "  not answered:"] if report.cannot else []), *(f"  - {c}" for c in report.cannot)]


def _done(report: Report) -> list[str]:
    """Describe what was changed, where several ranks were replayed one by one with the ranks of which that is true."""
    from graphlink.replay.whatif import told_ranks
    from graphlink.tables import grouped

    if len(report.what_if) == 1:
        return [one.what for one in report.what_if[0].done]
    ranks = grouped(
        (line, one.rank)
        for w in report.what_if
        for line in (
            *(one.what for one in w.done),
            *(f"as recorded, nothing there is named by {n}" for n in w.not_here),
        )
        for one in w.ranks
    )
    return [f"{told_ranks(of)}: {line}" for line, of in ranks.items()]


def _row(name: str, times_ns: Sequence[float], path_ns: float, *, finished: bool) -> tuple[str, ...]:
    before_ns, after_ns = times_ns
    gain = before_ns - after_ns
    gained = (in_ms(gain), percent(gain, path_ns)) if finished else ("does not finish", "")
    return name, in_ms(before_ns), in_ms(after_ns), *gained


def _stuck(entries: Sequence[StuckEntry]) -> list[str]:
    return [
        f"  rank {s.rank} does not finish: {s.left:,} nodes left; node {s.node.id} ({shortened(s.node.name)}) waits "
        f"for {s.waits_for}"
        for s in entries
    ]


def _node(node: NodeAt, run: Run) -> str:
    rank = f"rank {node.rank} " if len(run.ranks) > 1 else ""
    return f"{rank}{node.id} {shortened(node.name)}"


def _us(ns: int) -> str:
    return f"{ns / 1e3:+,.1f} us"
