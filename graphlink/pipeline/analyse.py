"""The pipeline of a run, from what its ranks did: stages, schedule, idle time by cause, and what the schedule itself
must lose.

Every idle ns of every rank inside a step has one cause and its evidence. By position first: before a rank's first
forward works it is ``warmup`` (a host range may begin and wait), after its last phase ``cooldown``. Between, what
delayed the next work (``delays``) decides, and other ranks tell the rest (``between_ranks``). Each piece of idle time
is cut into up to four, in the order of time:

1. ``dependency_stall``: until the producer on another stage had ended. Where nothing recorded explains a wait right
   before a range, the schedule does as far as it can: until that producer has ended, and the least lag ever seen behind
   such a producer (no transfer was faster) has passed.
2. ``profiler_artefact``: as long as the profiler of the rank that came last kept it.
3. What the rank's own recording tells; else ``straggler_wait``, until the last side of a communication had come; else
   ``launch_starved``, for up to 20 us in which nothing is waited for: the device takes them from one kernel to the
   next. What is left is ``unknown``.
4. ``exposed_communication``: the transfer. Of communication with a rank that was not recorded NCCL's own records tell
   until when it waited for its peer, where a side file has them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
from msgspec import UNSET, structs

from graphlink import spans
from graphlink.causes import Cause
from graphlink.choices import LATENCY_NS
from graphlink.model import I64, NOWHERE, Bool, CommKind
from graphlink.pipeline.autograd import RULE
from graphlink.pipeline.between_ranks import (
    TOLERANCE_NS,
    PeerExchanges,
    Producers,
    clock_warnings,
    matched,
    producers,
)
from graphlink.pipeline.named_ranges import OPTIMIZER
from graphlink.pipeline.recognise import Recognised, recognise
from graphlink.pipeline.records import NO_TIME, Delays, Idle, PartsNs, Pass, RunPipeline, StageRun, StepEntry, Theory
from graphlink.pipeline.schedules import UNKNOWN
from graphlink.pipeline.stages import Pipes, members, peers_of, pipes, with_stages
from graphlink.pipeline.theory import measure, rates, theory
from graphlink.read.columns import Strings
from graphlink.spans import Spans
from graphlink.tables import MOST, how_many, least, sums, take, take_as, values_at

_ANY_TRAINING: Final = frozenset({"generic", "deepspeed", "vescale"})  # names that data-parallel training has, too


def analyse(runs: Sequence[StageRun | None], tolerance_ns: int = TOLERANCE_NS) -> RunPipeline | None:
    """Analyse the ranks that have pipeline ranges (None: one that has none); None where no rank has, or no step is on
    all of them.

    ``tolerance_ns``: how far the clocks of ranks are known to agree.
    Inferred ranges, and names that any training has, count only if every rank of the run has some: what cannot be
    recognised on one was maybe recognised wrongly on others. O(n log n).
    """
    present = [run for run in runs if run is not None and np.isin(run.ranges.phase, (Pass.F, Pass.B, Pass.I)).any()]
    missing = len(runs) - len(present)
    if not present or (missing and not all(map(_says_so, present))):
        return None
    recorded = pipes(present)
    if not recorded.steps or not _passes_on(recorded):
        return None
    if missing:
        text = f"{missing} of {len(runs)} ranks have no pipeline ranges and are left out"
        recorded = replace(recorded, warnings=(*recorded.warnings, text))
    return _analysed(recorded, tolerance_ns)


def _passes_on(recorded: Pipes) -> bool:
    """Tell whether there is a pipeline at all. Names that any training has, and inference, need activations that are
    passed on, from a first rank.

    In a ring (context parallelism) every rank receives before its first forward ends. Of inferred stages, a rank that
    was not recorded must lie at an end, or may close a ring.
    """
    runs = recorded.runs
    inferred = any(RULE in _rules(run) for run in runs)
    if not inferred and any(map(_says_so, runs)):
        return True
    ends = [rank for rank in recorded.missing if sum(rank in peers_of(run) for run in runs) == 1 < len(runs)]
    first = any(run.previous == NOWHERE for run in runs)
    closed = inferred and len(ends) < len(recorded.missing) and len(runs) > 1
    return any(map(_exchanges_messages, runs)) and (first or (not closed and any(r.previous in ends for r in runs)))


def _exchanges_messages(run: StageRun) -> bool:
    exchanges = run.exchanges
    messages = ["SEND" in name.upper() or "RECV" in name.upper() for name in exchanges.names]  # parameters unknown
    sends_or_receives = np.isin(exchanges.kind, (CommKind.SEND, CommKind.RECV))
    return bool(sends_or_receives.any() or np.array(messages, np.bool_)[exchanges.name].any())


def _rules(run: StageRun) -> list[str]:
    """Return the rules that a rank's ranges were recognised by."""
    return [run.ranges.rules[rule] for rule in np.unique(run.ranges.rule).tolist()]


def _says_so(run: StageRun) -> bool:
    """Return whether some range of a rank has a name that only pipelines give."""
    rules = {rule.removeprefix("inferred:order ") for rule in _rules(run)}
    return bool(rules - {*_ANY_TRAINING, OPTIMIZER.name, RULE})


def _analysed(recorded: Pipes, tolerance_ns: int) -> RunPipeline:
    """Analyse the pipeline. ``recorded``: with the stages of the recording, which the schedule may show better."""
    groups = [members(recorded, pipe) for pipe in range(max(recorded.pipe) + 1)]
    numbers = recorded.steps if min(recorded.steps) >= 0 else ()
    each = [
        recognise([recorded.runs[i].ranges for i in group], [recorded.runs[i].rank for i in group], numbers)
        for group in groups
    ]
    found = each[0]
    if len({other.schedule for other in each}) > 1:
        names = ", ".join(other.schedule for other in each[:4])
        found = replace(found, schedule=UNKNOWN, nearest="", difference=f"pipelines differ: {names}", steps=())
    elif recorded.missing:
        why = "not compared, as ranks of it were not recorded"
        found = replace(found, schedule=UNKNOWN, nearest="", difference=why, steps=())
    known = found.schedule != UNKNOWN
    placed = known or all((run.ranges.stage[run.ranges.phase != Pass.OPT] != NOWHERE).all() for run in recorded.runs)
    whole = with_stages(recorded, each if known else [replace(other, steps=()) for other in each])
    steps, idle = account(whole)
    microbatches = found.microbatches or max(int(run.ranges.microbatch.max(initial=-1)) for run in whole.runs) + 1
    chunks = found.chunks if known else whole.chunks
    ratio = (whole.length - 1) / (chunks * microbatches) if microbatches and not whole.missing else UNSET
    makespans_ns = [step.end_ns - step.start_ns for step in steps]
    nearest = ": ".join(filter(None, (found.nearest, found.difference)))
    left_out = dict.fromkeys(
        f"step {step} was not compared with schedules: {why}" for other in each for step, why in other.left_out.items()
    )
    pipeline = RunPipeline(
        runs=whole.runs,
        recorded=whole.recorded,
        pipe=whole.pipe,
        steps=steps,
        stages=whole.length,
        microbatches=microbatches,
        chunks=chunks,
        schedule=found.schedule,
        nearest="" if known else nearest,
        idle=idle,
        rates=rates(makespans_ns, [step.work_ns for step in steps], [step.own_ns for step in steps], ratio),
        theory=_theory(whole, groups, each, steps) if known else None,
        warnings=(
            *whole.warnings,
            *left_out,
            *clock_warnings(whole, tolerance_ns, placed=placed),
            *_unknown_exchanges(whole),
        ),
    )
    return _as_numbered(pipeline, numbers) if numbers else pipeline


def _as_numbered(pipeline: RunPipeline, steps: Sequence[int]) -> RunPipeline:
    """Number steps as the recording does, not from 0."""
    number = np.array(steps, np.int64)
    return replace(
        pipeline,
        runs=tuple(replace(run, ranges=replace(run.ranges, step=number[run.ranges.step])) for run in pipeline.runs),
        steps=tuple(structs.replace(step, number=steps[step.number]) for step in pipeline.steps),
        idle=replace(pipeline.idle, step=number[pipeline.idle.step]),
    )


def _unknown_exchanges(whole: Pipes) -> list[str]:
    """Warn of communication of which nobody knows with whom it was."""
    unknown = sum(how_many(run.exchanges.kind == CommKind.UNKNOWN) for run in whole.runs)
    if not unknown:
        return []
    return [
        f"{unknown} communication kernels have no recorded parameters: beside them, waiting for a late rank counts as "
        "exposed_communication"
    ]


def _theory(
    whole: Pipes, groups: Sequence[Sequence[int]], each: Sequence[Recognised], steps: Sequence[StepEntry]
) -> Theory | None:
    """Compute theory; of several pipelines the parts are added up, and the rates are those of the first."""
    theories = []
    for group, recognised in zip(groups, each, strict=True):
        runs = [whole.runs[i] for i in group]
        measured = measure(
            [run.ranges for run in runs], recognised, waits_inside=not all(run.sees_device for run in runs)
        )
        own = [
            structs.replace(
                step, work_ns=tuple(step.work_ns[i] for i in group), own_ns=tuple(step.own_ns[i] for i in group)
            )
            for step in steps
        ]
        computed = theory(recognised, measured, own)
        if computed is None:
            return None
        theories.append(computed)
    parts = {name: sum(getattr(one.parts_ns, name) for one in theories) for name in PartsNs.__struct_fields__}
    return structs.replace(theories[0], parts_ns=PartsNs(**parts))


# every idle ns of every rank inside a step, with one cause and its evidence

_Row = tuple[int, int, int, int, int, int]  # rank, step, start, end, cause and evidence of a piece of idle time


def account(pipes: Pipes) -> tuple[tuple[StepEntry, ...], Idle]:
    """Return the steps, and all idle time: per step and rank, work and idle time inside the makespan add up to the
    makespan (asserted).

    O(n log n) in ranges, idle intervals and communication of all ranks: each step looks only at its own.
    """
    runs = pipes.runs
    steps = tuple(_step(number, runs) for number in range(len(pipes.steps)))
    next_starts_ns = [*(step.start_ns for step in steps[1:]), MOST]
    rows, texts = list[_Row](), Strings()
    recorded_from_ns = {run.rank: run.recorded_from_ns for run in runs}
    profiled = {run.rank: take(run.delays, run.delays.cause == Cause.PROFILER_ARTEFACT) for run in runs}
    for run, needs, peers, together in zip(runs, producers(pipes), matched(runs), pipes.together, strict=True):
        idle_rank = _IdleRank(run, needs, peers, together, recorded_from_ns, profiled, texts, lacks=bool(pipes.missing))
        for step, next_ns in zip(steps, next_starts_ns, strict=True):
            idle_rank.explain(step, next_ns)
        rows += idle_rank.rows
    idle = _idle(rows, texts)
    _assert_complete(runs, steps, idle)
    return steps, idle


def _step(number: int, runs: Sequence[StageRun]) -> StepEntry:
    passes = [take(run.ranges, _rows(run, number, optimizer=False)) for run in runs]
    work = [_work(run, number) for run in runs]
    return StepEntry(
        number=number,
        start_ns=min(int(ranges.start_ns.min()) for ranges in passes),
        end_ns=max(int(ranges.end_ns.max()) for ranges in passes),
        work_ns=tuple(int((inside.end_ns - inside.start_ns).sum()) for inside in work),
        own_ns=tuple(int(inside.end_ns[-1] - inside.start_ns[0]) if len(inside.start_ns) else 0 for inside in work),
    )


def _work(run: StageRun, step: int) -> Spans:
    part = slice(*np.searchsorted(run.work.key, [step, step + 1]).tolist())
    return Spans(run.work.start_ns[part], run.work.end_ns[part])


def _rows(run: StageRun, step: int, *, optimizer: bool) -> I64:
    """Return the ranges of a step, those of the optimizer or the others."""
    low, high = np.searchsorted(run.ranges.step, [step, step + 1]).tolist()
    return np.asarray(low + np.flatnonzero((run.ranges.phase[low:high] == Pass.OPT) == optimizer))


class _IdleRank:
    """One rank, prepared to explain the idle time of its steps.

    ``recorded_from_ns``, ``profiled``: of all ranks, when their recordings begin and when profilers kept them.
    ``lacks``: some were not recorded.
    """

    def __init__(
        self,
        run: StageRun,
        needs: Producers,
        peers: PeerExchanges,
        together: I64,
        recorded_from_ns: dict[int, int],
        profiled: dict[int, Delays],
        texts: Strings,
        *,
        lacks: bool,
    ) -> None:
        self.run, self.needs, self.peers, self.texts = run, needs, peers, texts
        self.rows = list[_Row]()
        self.recorded_from_ns, self.profiled = recorded_from_ns, profiled
        self.stalled = cache(self._stalled)
        ranges = run.ranges
        by_start = np.argsort(ranges.start_ns, kind="stable")
        self.passes = by_start[ranges.phase[by_start] != Pass.OPT]
        self.passing = take_as(ranges, self.passes, Spans)
        self.decides = self._deciding(together)[self.passes]
        starts_ns = np.where(ranges.phase == Pass.OPT, MOST, ranges.start_ns)
        # from each range on, in the order of steps
        self.first_start_ns = np.append(np.minimum.accumulate(starts_ns[::-1])[::-1], MOST)
        # receives of unknown parameters, among other calls: where a rank was not recorded, maybe from that
        receives = np.array(["RECV" in name.upper() for name in run.exchanges.names], np.bool_)[run.exchanges.name]
        self.hidden = lacks & receives & (run.exchanges.kind == CommKind.UNKNOWN)
        self.came_ns = np.full(len(run.exchanges.start_ns), NO_TIME)
        self.words: dict[int, str] = {}
        if run.witness is not None:
            self.came_ns[run.witness.exchange] = run.witness.came_ns
            self.words = dict(zip(run.witness.exchange.tolist(), run.witness.words, strict=True))
        self.busy = spans.union(
            np.append(run.work.start_ns, run.optimizer.start_ns), np.append(run.work.end_ns, run.optimizer.end_ns)
        )

    def explain(self, step: StepEntry, next_ns: int) -> None:
        """Explain the idle time of a step. ``next_ns``: when the next one begins, to which what is idle from then on
        belongs.
        """
        ranges, work = self.run.ranges, _work(self.run, step.number)
        passes = _rows(self.run, step.number, optimizer=False)
        last = int(passes[np.argmax(ranges.end_ns[passes])])
        forward = passes[ranges.phase[passes] == Pass.F]
        first_forward_ns = ranges.start_ns[forward[0] if len(forward) else passes[0]]
        first_work_ns = work.start_ns[0] if len(work.start_ns) else step.start_ns
        begin_ns = int(max(first_forward_ns, first_work_ns))
        end_ns = max(begin_ns, int(ranges.end_ns[last]))
        idle = spans.complement(work, step.start_ns, step.end_ns)
        before, after = spans.within(idle, step.start_ns, begin_ns), spans.within(idle, end_ns, step.end_ns)
        self._add(step, before, Cause.WARMUP, lambda _: f"before {self._name(int(passes[0]))}")
        self._explain_inside(step, spans.within(idle, begin_ns, end_ns))
        self._add(step, after, Cause.COOLDOWN, lambda _: f"after {self._name(last)}")
        optimizer = _rows(self.run, step.number, optimizer=True)
        if len(optimizer):
            until_ns = max(int(ranges.end_ns[optimizer].max()), self._last_collective_ns(step))
            outside = spans.complement(self.busy, step.end_ns, max(step.end_ns, min(until_ns, next_ns)))
            self._add(step, outside, Cause.OPTIMIZER_SYNC, lambda _: "around the optimizer")

    def _add(self, step: StepEntry, idle: Spans, cause: I64 | Cause, evidence: Callable[[int], str]) -> None:
        """Add the spans that are not empty, each with its cause and evidence."""
        causes = np.broadcast_to(cause, idle.start_ns.shape)
        for i in np.flatnonzero(idle.start_ns < idle.end_ns).tolist():
            start_ns, end_ns, text = int(idle.start_ns[i]), int(idle.end_ns[i]), self.texts[evidence(i)]
            self.rows.append((self.run.rank, step.number, start_ns, end_ns, int(causes[i]), text))

    def _last_collective_ns(self, step: StepEntry) -> int:
        """Return when the last collective ended that began after the step and before the rank's next one: parameters
        are gathered there.
        """
        exchanges = self.run.exchanges
        until_ns = self.first_start_ns[np.searchsorted(self.run.ranges.step, step.number, side="right")]
        low = np.searchsorted(exchanges.start_ns, step.end_ns)
        high = np.searchsorted(exchanges.start_ns, until_ns, side="right")
        ends_ns = exchanges.end_ns[low:high]
        in_time = (exchanges.kind[low:high] == CommKind.COLLECTIVE) & (ends_ns <= until_ns)
        return int(ends_ns[in_time].max(initial=step.end_ns))

    def _explain_inside(self, step: StepEntry, idle: Spans) -> None:
        """Cut idle time inside a rank's step by what delayed the next work, and each piece by what other ranks tell."""
        if not len(idle.start_ns):
            return
        delays = spans.within(self.run.delays, int(idle.start_ns[0]), int(idle.end_ns[-1]))
        pieces = spans.cut(idle, delays.start_ns, delays.end_ns)
        start, end = pieces.start_ns, pieces.end_ns
        cause = values_at(delays.cause, pieces.by, Cause.UNKNOWN)
        evidence = values_at(delays.evidence, pieces.by, 0)
        exchange = values_at(delays.exchange, pieces.by)
        own = cause != Cause.UNKNOWN  # the rank's own recording tells
        waits = (exchange != NOWHERE) & ~own
        known = values_at(self.peers.known, exchange, 0) > 0  # all sides were recorded
        late_rank = values_at(self.peers.late_rank, exchange)
        resumed = idle.end_ns[pieces.of]
        # in which, or with which, work goes on
        range_after = values_at(self.decides, spans.holding(self.passing, resumed))
        needs, produced, arrived = self._inputs_ns(step, range_after, start, resumed)

        kind = values_at(self.run.exchanges.kind, exchange, CommKind.UNKNOWN)
        inputs = ~needs & (values_at(self.run.ranges.start_ns, range_after, 0) == resumed)
        kind[inputs & (values_at(self.hidden, exchange, 0) > 0)] = CommKind.RECV
        transfer = np.clip(self._transfer_ns(start, end, exchange, kind, waits, produced), start, end)
        unrecorded = (kind == CommKind.RECV) & ~known & ~own  # only NCCL's own records tell waiting from transfer
        no_stall = own | (kind == CommKind.COLLECTIVE)
        stall = np.select([no_stall, unrecorded & ~needs, exchange == NOWHERE], [start, end, arrived], produced)
        stall = np.clip(stall, start, transfer)
        not_recording = known & self._before_recording(exchange, late_rank)
        profiler = np.select([own, not_recording], [stall, transfer], self._profiled_ns(late_rank, stall, transfer))
        starved = (exchange == NOWHERE) & ~own & (evidence == 0) & (transfer - profiler <= LATENCY_NS)
        starved &= self.run.sees_device & self.run.sees_causes

        def stalled(i: int) -> str:
            return self._with_words(self.stalled(int(range_after[i]), bool(unrecorded[i])), int(exchange[i]))

        def came_last(i: int) -> str:
            return self._came_last(int(late_rank[i]), int(exchange[i]))

        def delayed(i: int) -> str:
            if waits[i]:
                return came_last(i)
            return "from one kernel to the next" if starved[i] else delays.texts[evidence[i]]

        delayed_by = np.select([waits, starved], [Cause.STRAGGLER_WAIT, Cause.LAUNCH_STARVED], cause)
        self._add(step, Spans(start, stall), Cause.DEPENDENCY_STALL, stalled)
        self._add(step, Spans(stall, profiler), Cause.PROFILER_ARTEFACT, lambda i: f"{came_last(i)}, in its profiler")
        self._add(step, Spans(profiler, transfer), delayed_by, delayed)
        transferred = Spans(transfer, end)
        self._add(step, transferred, Cause.EXPOSED_COMMUNICATION, lambda i: self._came_last(NOWHERE, int(exchange[i])))

    def _deciding(self, group: I64) -> I64:
        """Return of each range the one whose input decides when it starts: the last to come, of those of a group."""
        produced = self.needs.end_ns
        begun = least(len(group), group, self.run.ranges.start_ns)[group]
        order = np.lexsort((np.where(produced <= begun, produced, NO_TIME), group))
        return order[np.searchsorted(group[order], group, side="right") - 1]

    def _inputs_ns(self, step: StepEntry, needing: I64, start_ns: I64, resumed_ns: I64) -> tuple[Bool, I64, I64]:
        """Return for pieces of idle time whether the range ``needing`` after each needs another stage, when that one
        had produced what it needs, and when that had arrived at the earliest; ``start_ns`` where nothing tells.

        A host range may begin and wait, and what it waits for later is none of its inputs.
        """
        produced = values_at(self.needs.end_ns, needing, NO_TIME)
        needs = produced != NO_TIME
        began_ns = values_at(self.run.ranges.start_ns, needing, 0)
        begins = spans.overlap_ns(_work(self.run, step.number), began_ns, resumed_ns) == 0
        arrived = np.where(needs & begins, produced + values_at(self.needs.lag_ns, needing, 0), start_ns)
        return needs, np.where(needs, produced, start_ns), arrived

    def _transfer_ns(self, start_ns: I64, end_ns: I64, exchange: I64, kind: I64, waits: Bool, produced_ns: I64) -> I64:
        """Return from when on each piece of idle time is transfer: as all sides tell, else NCCL's own records. Of
        unknown parameters it transfers once there is something to.
        """
        by_nccl = values_at(self.came_ns, exchange, NO_TIME)
        known = values_at(self.peers.known, exchange, 0) > 0
        return np.select(
            [known, by_nccl != NO_TIME, ~waits | (kind == CommKind.RECV), kind == CommKind.UNKNOWN],
            [values_at(self.peers.transfer_from_ns, exchange, 0), by_nccl, end_ns, produced_ns],
            start_ns,
        )

    def _before_recording(self, exchange: I64, rank: I64) -> Bool:
        """Return which are the first collective of their group, and began before the recording of ``rank`` does."""
        exchanges = self.run.exchanges
        recorded_ns = np.array([self.recorded_from_ns.get(r, NO_TIME) for r in rank.tolist()], np.int64)
        collective = values_at(exchanges.kind, exchange, CommKind.UNKNOWN) == CommKind.COLLECTIVE
        first = collective & (values_at(self.run.ordinal, exchange) == 0)
        return np.asarray(first & (recorded_ns > values_at(exchanges.start_ns, exchange, 0)))

    def _profiled_ns(self, rank: I64, start_ns: I64, end_ns: I64) -> I64:
        """Return up to when, of each wait for a late rank, that one's profiler kept it: so much of the wait counts as
        the profiler's.
        """
        until_ns = start_ns.copy()
        for late in np.unique(rank[rank != NOWHERE]).tolist():
            waiting = np.flatnonzero(rank == late)
            start, end = start_ns[waiting], end_ns[waiting]
            kept = spans.within(self.profiled[late], int(start.min()), int(end.max()))
            until_ns[waiting] += spans.overlap_ns(kept, start, end)
        return until_ns

    def _name(self, row: int) -> str:
        ranges = self.run.ranges
        return f"{Pass(int(ranges.phase[row])).name}{ranges.microbatch[row]} of stage {ranges.stage[row]}"

    def _stalled(self, row: int, unrecorded: bool) -> str:
        """Name what range ``row`` waited for."""
        if row == NOWHERE:
            return "a peer that was not recorded" if unrecorded else ""
        needs = self.needs
        if needs.rank[row] == NOWHERE:
            return f"{self._name(row)} waited for a peer that was not recorded"
        action = f"{Pass(int(needs.phase[row])).name}{self.run.ranges.microbatch[row]}"
        return f"{self._name(row)} waited for {action} of stage {needs.stage[row]} on rank {needs.rank[row]}"

    def _came_last(self, rank: int, exchange: int) -> str:
        """Name an exchange, and the rank that came last."""
        exchanges = self.run.exchanges
        name = "" if exchange == NOWHERE else exchanges.names[exchanges.name[exchange]]
        return self._with_words(name if rank == NOWHERE else f"{name}: rank {rank} came last", exchange)

    def _with_words(self, text: str, exchange: int) -> str:
        words = self.words.get(exchange, "")
        return f"{text}; {words}" if words else text


def _idle(rows: Sequence[_Row], texts: Strings) -> Idle:
    """Return the pieces of all ranks, those that touch and say the same as one."""
    table = np.array(rows, np.int64).reshape(-1, 6)
    rank, step, start, end, cause, evidence = table[np.lexsort((table[:, 2], table[:, 0]))].T
    first, last = spans.continued(start, end, rank, step, cause, evidence)
    columns = (start[first], end[last], cause[first].astype(np.uint8), evidence[first].astype(np.int32))
    return Idle(*columns, rank[first], step[first], tuple(texts))


def _assert_complete(runs: Sequence[StageRun], steps: Sequence[StepEntry], idle: Idle) -> None:
    inside = idle.cause != Cause.OPTIMIZER_SYNC
    place = np.searchsorted([run.rank for run in runs], idle.rank) * len(steps) + idle.step
    idle_ns = sums(len(runs) * len(steps), place[inside], (idle.end_ns - idle.start_ns)[inside])
    work_ns = np.array([step.work_ns for step in steps]).T.ravel()
    makespan_ns = np.tile([step.end_ns - step.start_ns for step in steps], len(runs))
    wrong = np.flatnonzero(work_ns + idle_ns != makespan_ns)
    assert not len(wrong), (
        f"rank {runs[wrong[0] // len(steps)].rank}, step {steps[wrong[0] % len(steps)].number}: "
        f"{(work_ns + idle_ns)[wrong[0]]} ns accounted for"
    )
