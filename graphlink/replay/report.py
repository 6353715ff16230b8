"""Replays graphs on a machine, with changes once more, and reports what was found; and lists the names in graphs that
``--scale`` takes: what their nodes take, and the text that takes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from graphlink.choices import COUPLED, IDEAL, JOINED
from graphlink.errors import InputError, UsageError
from graphlink.graph.critical import share
from graphlink.graph.families import PYTHON
from graphlink.graph_model import Graph, Groups
from graphlink.model import NOWHERE
from graphlink.patterns import OPERATOR, escaped
from graphlink.records import shortened
from graphlink.replay.assumptions import cannot, of_graphs
from graphlink.replay.band import Recorded, band, bare_steps_ns, recorded, step_ns
from graphlink.replay.changes import PATH, Changes
from graphlink.replay.cuda_graph import capturable
from graphlink.replay.folder import load, load_groups
from graphlink.replay.lateness import drifts, slot_waits, stuck
from graphlink.replay.loader import loaders_of
from graphlink.replay.machines import error_pct, gain_pct, play, usual_machine
from graphlink.replay.path import ReplayPath, by_work, critical_path, families, own_times
from graphlink.replay.played import SLOT, Played
from graphlink.replay.records import Listed, PathEntry, RankEntry, Report, Run, ScalableName, WhatIf
from graphlink.replay.selection import NodeOperations, Selection
from graphlink.replay.whatif import Changed, fit, refuse_unfit
from graphlink.replay.workload import DELAY_NAME, Work, Workload, has_times, measured_ns, workload
from graphlink.tables import how_many, sums
from graphlink.wings import node_operations

TOP_FAMILIES: Final = 8
TOP_GRAPHS: Final = 8
_LONG: Final = 60  # characters of a name; of a longer one the ends are enough where no other name has them
_HEAD, _TAIL = 40, 17


class Known(NamedTuple):
    """What is known of a run beside its graphs: the members of its communicators, by rank the operation of each node,
    which changes choose paths and lines by, and what the summary records."""

    groups: Groups
    operations: Mapping[int, NodeOperations] | None = None
    recorded: Mapping[int, Recorded] = {}

    def selection(self, work: Workload) -> Selection:
        """Return what chooses nodes of ``work``."""
        costs_ns = {rank: record.recorder_ns for rank, record in self.recorded.items()}
        return Selection(work, self.operations or {}, recorder_ns=costs_ns)

    @staticmethod
    def of(
        folder: Path,
        files: Mapping[int, Path],
        changes: Changes,
        ranks: Iterable[Any],
        others: Mapping[str, Iterable[Any]],
    ) -> Known:
        """Return what is known of the run in ``folder`` for ``changes`` of the graphs ``files``. ``ranks`` and
        ``others``: as ``recorded``.

        Raises:
            GraphlinkError: a file of the run cannot be read, or as ``recorded``.
        """
        operations = node_operations(folder, files) if changes.of_operations else None
        return Known(load_groups(folder), operations, recorded(ranks, others) if changes.any or others else {})


class Unchanged(NamedTuple):
    """Graphs as they are, and what a machine made of them: what all what-ifs of them begin with."""

    files: dict[int, Graph]
    work: Workload
    played: Played
    run: Run


Before = Callable[[Mapping[int, Path], str, Groups, bool], Unchanged]


def unchanged(files: Mapping[int, Path], machine: str, groups: Groups, together: bool) -> Unchanged:
    """Read graphs and replay them without changes. Raises InputError: a graph cannot be read, or holds no nodes."""
    graphs = load(files)
    work = _workload(graphs)
    played = play(work, groups, machine, together=together)
    return Unchanged(graphs, work, played, _run(work, played))


def kept(most: int) -> Before:
    """Return ``unchanged`` that keeps the ``most`` latest of what it made: a sweep reads and replays its graphs
    once.
    """
    keep = lru_cache(most)(
        lambda files, machine, groups, together: unchanged(dict(files), machine, dict(groups), together)
    )

    def before(files: Mapping[int, Path], machine: str, groups: Groups, together: bool) -> Unchanged:
        members = tuple((group, tuple(ranks)) for group, ranks in groups.items())
        return keep(tuple(files.items()), machine, members, together)

    return before


def report(
    files: Mapping[int, Path],
    machine: str | None,
    known: Known,
    changes: Changes,
    *,
    together: bool = False,
    before: Before = unchanged,
) -> Report:
    """Replay the graphs of a run, by rank: all at once on a machine of ``JOINED``, else one after the other, and with
    ``changes`` again.

    ``machine``: None is the usual one, and where ranks wait there for each other for ever, each of them alone.
    ``before``: ``unchanged``, or one that ``kept`` made for many reports of the same graphs.

    Raises:
        InputError: a graph cannot be read, or holds no nodes.
        UsageError: a change names nothing, or is one of several waits.
    """
    chosen = machine or usual_machine(len(files))
    batches = [files] if chosen in JOINED else [{rank: path} for rank, path in files.items()]
    out = Report(machine=chosen, runs=[], what_if=[], cannot=[])
    refused: list[tuple[Sequence[int], Mapping[str, UsageError]]] = []
    for batch in batches:
        still = before(batch, chosen, known.groups, together)
        out.runs.append(still.run)
        if changes.any:
            changed = fit(still.work, changes, known.groups, known.selection(still.work))
            after = play(changed.work, known.groups, chosen, together=together)
            out.what_if.append(_what_if(still, changed, after, changes, known.recorded))
            out.cannot.extend(line for line in cannot(still.files, chosen, changes) if line not in out.cannot)
            refused.append(([*batch], changed.refused))
    refuse_unfit(refused, changes)
    stuck = out.runs[0].stuck
    if machine is not None or chosen != COUPLED or not stuck:
        return out
    first = stuck[0]
    why = (
        f"rank {first.rank} would wait for ever in node {first.node.id} ({shortened(first.node.name)}) for "
        f"{first.waits_for}: --machine {COUPLED} replays all together"
    )
    alone = report(files, IDEAL, known, changes, together=together, before=before)
    return replace(alone, why_alone=why)


def listed(
    files: Mapping[int, Path],
    machine: str | None,
    groups: Groups,
    sort: str | None,
    top: int,
    *,
    together: bool = False,
    operations: Mapping[int, NodeOperations] | None = None,
) -> Listed:
    """List the ``top`` names that take longest, with ``sort`` of that sort of work, and what of it is on the critical
    path of a replay; and of host work what can be a CUDA graph.

    Raises:
        InputError: a graph cannot be read, or holds no nodes.
    """
    chosen, work, path = machine or usual_machine(len(files)), _workload(load(files)), None
    if chosen in JOINED or len(files) == 1:
        played = play(work, groups, chosen, together=together)
        path = critical_path(work, played) if played.ran.all() else None
    names = [name for name in scalable(work, path) if sort in (None, name.sort)]
    length_ns = None if path is None else path.length_ns
    whole_ns = sum(name.ns for name in names)
    selection = Selection(work, operations or {})
    graphs = [*capturable(work, selection, TOP_GRAPHS)] if sort in (None, "host") else []
    return Listed(
        machine=chosen,
        sort=sort,
        path_ns=length_ns,
        of=len(names),
        ns=whole_ns,
        names=names[:top],
        ranges=ranges(selection, path)[:TOP_GRAPHS] if sort is None else [],
        cuda_graphs=graphs,
    )


def _workload(files: Mapping[int, Graph]) -> Workload:
    empty = next((file.file.path for file in files.values() if not len(file.id)), None)
    if empty is not None:
        raise InputError("holds no nodes", path=empty)
    return workload(files)


def _run(work: Workload, played: Played) -> Run:
    measured = played.match.clock.measured_ns if all(map(has_times, work.files)) else None
    return Run(
        ranks=list(_ranks(work, played)),
        total_ns=played.total_ns,
        measured_ns=measured,
        error_pct=error_pct(played.total_ns, measured) if measured is not None and played.ran.all() else None,
        path=_path(work, critical_path(work, played)),
        drifts=drifts(work, played),
        slot_waits=slot_waits(work, played),
        stuck=stuck(work, played),
        notes=[*played.match.notes, *of_graphs(work.files)],
    )


def _what_if(
    still: Unchanged, changed: Changed, after: Played, changes: Changes, records: Mapping[int, Recorded]
) -> WhatIf:
    work, before_ns, path_ns = changed.work, still.played.total_ns, still.run.path.length_ns
    path = critical_path(work, after)
    finished = still.played.ran.all() and after.ran.all()
    a_step_ns = step_ns(still.work, still.played, records)
    changed_ns = step_ns(work, after, records) if finished else None
    steps_ns = None if a_step_ns is None or changed_ns is None else [a_step_ns, changed_ns]
    return WhatIf(
        ranks=list(_ranks(work, after)),
        before_ns=before_ns,
        after_ns=after.total_ns,
        path_ns=path_ns,
        steps_ns=steps_ns,
        bare_ns=None
        if steps_ns is None
        else bare_steps_ns(
            (still.work, still.played),
            (work, path),
            steps_ns,
            records,
            loaders_of(still.work)[0] != NOWHERE if changes.dataloader else None,
        ),
        gain_pct=gain_pct(before_ns - after.total_ns, path_ns) if finished else None,
        band=band(changes, still.work, work, before_ns, after, path, records) if finished else None,
        path=_path(work, path),
        done=list(changed.done),
        not_here=list(changed.refused),
        stuck=stuck(work, after),
    )


def _ranks(work: Workload, played: Played) -> Iterator[RankEntry]:
    for i, (rank, file, (low, high)) in enumerate(zip(work.ranks, work.files, work.bounds, strict=True)):
        begin_ns = int(played.rank_begin_ns[i])
        replayed_ns = int(played.end_ns[low:high].max(initial=begin_ns)) - begin_ns
        measured = measured_ns(file)
        ran = how_many(played.ran[low:high])
        finished = ran == len(file.id)
        yield RankEntry(
            rank=rank,
            nodes=len(file.id),
            ran=ran,
            measured_ns=measured,
            replayed_ns=replayed_ns,
            finished=finished,
            error_pct=error_pct(replayed_ns, measured) if finished and measured is not None else None,
        )


def _path(work: Workload, path: ReplayPath) -> PathEntry:
    work_ns = by_work(work, path)
    return PathEntry(
        length_ns=path.length_ns,
        nodes=len(path.node),
        work_ns=work_ns,
        gap_share=share(work_ns["gap"], path.length_ns),
        delay_share=share(work_ns["delay"], path.length_ns),
        slot_waits=how_many(path.kind == SLOT),
        top=families(work, path, TOP_FAMILIES),
    )


def scalable(work: Workload, path: ReplayPath | None) -> list[ScalableName]:
    """Return each name of each sort of work, the one that takes longest first; ``path``: where there is one, the
    critical path of a replay.

    ``ns`` is what ``--scale`` with factor 0 takes off. A name with start delays is of sort ``delay`` as well, as they
    are scaled apart from the work behind them. Linear in nodes, n log n in names.
    """
    code, texts = work.names()
    delayed = np.flatnonzero((work.fixed_ns > 0) & (work.work != Work.DELAY))
    own_key, delay_key = code * len(Work) + work.work, code * len(Work) + Work.DELAY
    ns = np.append(work.cost_ns - work.fixed_ns, work.fixed_ns[delayed])
    keys, place, nodes = np.unique(np.append(own_key, delay_key[delayed]), return_inverse=True, return_counts=True)
    rests, own_place = Selection(work).carried, place[: len(work)]
    whole_ns = sums(len(keys), place, ns)
    whole_ns += sums(len(keys), own_place[rests.column], rests.less_ns)
    whole_ns -= sums(len(keys), own_place[rests.node], rests.less_ns)
    path_ns = np.zeros(len(keys), np.int64)
    if path is not None:
        node, own_ns = own_times(work, path)
        path_ns += sums(len(keys), own_place[node], own_ns)
        # a launch can delay a node by its latency although it was recorded to start in time
        known = np.isin(delay_key[path.node], keys)
        path_ns += sums(len(keys), np.searchsorted(keys, delay_key[path.node[known]]), path.fixed_ns[known])
    pairs = [(Work(key % len(Work)).name.lower(), texts[key // len(Work)]) for key in keys.tolist()]
    delays = np.flatnonzero(work.work == Work.DELAY)
    before = work.before_what(delays, work.cost_ns[delays])
    names = [
        ScalableName(
            sort=sort,
            name=name,
            nodes=count,
            ns=took,
            path_ns=None if path is None else on_path,
            scale=scale,
            before=before if (sort, name) == ("delay", DELAY_NAME) else [],
        )
        for (sort, name), scale, count, took, on_path in zip(
            pairs, _patterns(pairs), nodes.tolist(), whole_ns.tolist(), path_ns.tolist(), strict=True
        )
    ]
    return sorted(names, key=lambda name: (-name.ns, name.name, name.sort))


def ranges(selection: Selection, path: ReplayPath | None) -> list[ScalableName]:
    """Return the ranges and modules in which something runs, the one that takes longest with it first; ``ns``,
    ``nodes``, ``path_ns``: of all inside of them, on all threads. Linear in nodes."""
    work = selection.work
    which, names = selection.inside()
    nodes, path_ns = np.bincount(which, minlength=len(names)), None
    ns = sums(len(names), which, work.cost_ns - work.fixed_ns)
    if path is not None:
        path_ns = sums(len(names), which[path.node], path.own_ns - path.fixed_ns)
    outer = {name for parts in names for part in parts for name in part[:-1]} - {PYTHON, ""}
    rows: dict[str, list[int]] = {name: [] for name in sorted(outer) if not OPERATOR.fullmatch(name)}
    wide = {name.count("/") + 1 for name in rows}  # a name may have "/", and is chosen by the pieces between
    for k, parts in enumerate(names):
        pieces = ["/".join(part).split("/") for part in parts]
        texts = {"/".join(part[i : i + count]) for part in pieces for count in wide for i in range(len(part))}
        for name in rows.keys() & texts:
            rows[name].append(k)
    out = [
        ScalableName(
            sort=PATH,
            name=name,
            nodes=int(nodes[row].sum()),
            ns=int(ns[row].sum()),
            path_ns=None if path_ns is None else int(path_ns[row].sum()),
            scale=f"{PATH}:(^|/){escaped(name)}(/|$)",
        )
        for name, row in rows.items()
    ]
    return sorted(out, key=lambda name: (-name.ns, name.name))


def _patterns(pairs: list[tuple[str, str]]) -> Iterator[str]:
    """Yield for each sort and name what ``--scale`` takes for it and nothing else, up to the factor."""
    names_of = Counter(sort for sort, _ in pairs)
    ends = Counter((sort, name[:_HEAD], name[-_TAIL:]) for sort, name in pairs if len(name) >= _HEAD + _TAIL)
    for sort, name in pairs:
        if names_of[sort] == 1:
            yield sort
        elif len(name) > _LONG and ends[sort, name[:_HEAD], name[-_TAIL:]] == 1 and "\n" not in name:
            yield f"{sort}:^{escaped(name[:_HEAD])}.*{escaped(name[-_TAIL:])}$"
        else:
            yield f"{sort}:^{escaped(name)}$"
