"""Every idle ns of every rank inside a step, with one cause and its evidence.

By position first: before a rank's first forward works it is ``warmup`` (a host range may begin and wait), after its
last phase ``cooldown``. Between, what delayed the next work (``delays``) decides, and other ranks tell the rest: of a
communication the part before the producer on the peer ended is ``dependency_stall``, what then passed until the last
side had come ``straggler_wait``, and the transfer ``exposed_communication``. Of communication with a rank that was not
recorded NCCL's own records tell until when it waited for its peer, where a side file has them. Where nothing recorded
explains a wait right before a range, the schedule does as far as it can: until its producer on the stage before has
ended, and the least lag ever seen behind such a producer (no transfer was faster) has passed. Up to 20 us in which
nothing is waited for is what the device takes from one kernel to the next: ``launch_starved``. The rest is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np

from graphlink import spans
from graphlink.choices import LATENCY_NS
from graphlink.model import I32, I64, NOWHERE, U8, Bool, CommKind
from graphlink.pipeline.peers import PeerExchanges, Producers, matched, producers
from graphlink.pipeline.records import NO_TIME, Cause, Delays, Idle, Pass, StageRun, StepEntry
from graphlink.pipeline.stages import Pipes
from graphlink.spans import Spans
from graphlink.tables import take

_LATEST: Final = np.iinfo(np.int64).max


def account(pipes: Pipes) -> tuple[tuple[StepEntry, ...], Idle]:
    """Return the steps, and all idle time: per step and rank, work and idle time inside the makespan add up to the
    makespan (asserted).

    O(n log n) in ranges, idle intervals and communication of all ranks: each step looks only at its own.
    """
    runs = pipes.runs
    steps = tuple(_step(k, runs) for k in range(len(pipes.steps)))
    parts = _IdlePieces()
    from_ns = {run.rank: run.recorded_from_ns for run in runs}
    profiled = {run.rank: take(run.delays, run.delays.cause == Cause.PROFILER_ARTEFACT) for run in runs}
    for run, supply, meeting in zip(runs, producers(pipes), matched(runs), strict=True):
        delayed = _Delayed(run, supply, meeting, from_ns, profiled)
        for step in steps:
            _of_step(
                parts, run, step, delayed, steps[step.number + 1].start_ns if step.number + 1 < len(steps) else _LATEST
            )
    idle = parts.idle()
    _assert_complete(runs, steps, idle)
    return steps, idle


def _step(number: int, runs: Sequence[StageRun]) -> StepEntry:
    mine = [_rows(run, number, optimizer=False) for run in runs]
    start = min(int(run.ranges.start_ns[m].min()) for run, m in zip(runs, mine, strict=True))
    end = max(int(run.ranges.end_ns[m].max()) for run, m in zip(runs, mine, strict=True))
    inside = [_work(run, number) for run in runs]
    work = tuple(int((s.end_ns - s.start_ns).sum()) for s in inside)
    own = tuple(int(s.end_ns[-1] - s.start_ns[0]) if len(s.start_ns) else 0 for s in inside)
    return StepEntry(number=number, start_ns=start, end_ns=end, work_ns=work, own_ns=own)


def _work(run: StageRun, step: int) -> Spans:
    part = slice(*np.searchsorted(run.work.key, [step, step + 1]).tolist())
    return Spans(run.work.start_ns[part], run.work.end_ns[part])


def _rows(run: StageRun, step: int, *, optimizer: bool) -> I64:
    """Return the ranges of a step, those of the optimizer or the others."""
    low, high = np.searchsorted(run.ranges.step, [step, step + 1]).tolist()
    return np.asarray(low + np.flatnonzero((run.ranges.phase[low:high] == Pass.OPT) == optimizer))


def _of_step(parts: _IdlePieces, run: StageRun, step: StepEntry, delayed: _Delayed, next_ns: int) -> None:
    """Account for a step of a rank. ``next_ns``: when the next step begins; what is idle from then on is of
    that one.
    """
    r = run.ranges
    mine = _rows(run, step.number, optimizer=False)
    forward = mine[r.phase[mine] == Pass.F]
    work = _work(run, step.number)
    begins = int(
        max(
            r.start_ns[forward[0] if len(forward) else mine[0]],
            work.start_ns[0] if len(work.start_ns) else step.start_ns,
        )
    )
    ends = int(r.end_ns[mine].max())
    idle = spans.complement(work, step.start_ns, step.end_ns)
    head, tail = spans.within(idle, step.start_ns, begins), spans.within(idle, max(begins, ends), step.end_ns)
    parts.add(run, step, head, Cause.WARMUP, lambda _: f"before {delayed.name(int(mine[0]))}")
    delayed.explain(parts, step, spans.within(idle, begins, max(begins, ends)))
    parts.add(run, step, tail, Cause.COOLDOWN, lambda _: f"after {delayed.name(int(mine[np.argmax(r.end_ns[mine])]))}")
    optimizer = _rows(run, step.number, optimizer=True)
    if len(optimizer):
        until = max(step.end_ns, int(r.end_ns[optimizer].max()), delayed.last_collective_ns(step))
        outside = spans.complement(delayed.busy, step.end_ns, max(step.end_ns, min(until, next_ns)))
        parts.add(run, step, outside, Cause.OPTIMIZER_SYNC, lambda _: "around the optimizer")


class _Delayed:
    """The delays of one rank, prepared for its steps."""

    def __init__(
        self,
        run: StageRun,
        supply: Producers,
        meeting: PeerExchanges,
        from_ns: dict[int, int],
        profiled: dict[int, Delays],
    ) -> None:
        self.run, self.supply, self.meeting = run, supply, meeting
        self.from_ns, self.profiled = (
            from_ns,
            profiled,
        )  # of all ranks: when recordings begin, and when profilers kept their ranks
        r = run.ranges
        order = np.argsort(r.start_ns, kind="stable")
        self.order = order[r.phase[order] != Pass.OPT]
        self.starts_ns = r.start_ns[self.order]
        passes = np.where(r.phase == Pass.OPT, _LATEST, r.start_ns)
        self.earliest_ns = np.append(
            np.minimum.accumulate(passes[::-1])[::-1], _LATEST
        )  # from each range on, in order of steps
        self.stalled = cache(self._stalled)
        self.came_ns = np.full(len(run.exchanges.start_ns), NO_TIME)
        self.words: dict[int, str] = {}
        if run.witness is not None:
            self.came_ns[run.witness.exchange] = run.witness.came_ns
            self.words = dict(zip(run.witness.exchange.tolist(), run.witness.words, strict=True))
        both = [(s.start_ns, s.end_ns) for s in (run.work, run.optimizer)]
        self.busy = spans.union(*(np.concatenate(column) for column in zip(*both, strict=True)))

    def name(self, k: int) -> str:
        r = self.run.ranges
        return f"{Pass(int(r.phase[k])).name}{r.microbatch[k]} of stage {r.stage[k]}"

    def last_collective_ns(self, step: StepEntry) -> int:
        """Return when the last collective ended that began after the step and before the rank's next one: parameters
        are gathered there.
        """
        ex = self.run.exchanges
        until = self.earliest_ns[np.searchsorted(self.run.ranges.step, step.number, side="right")]
        low, high = np.searchsorted(ex.start_ns, step.end_ns), np.searchsorted(ex.start_ns, until, side="right")
        ends = ex.end_ns[low:high]
        return int(ends[(ex.kind[low:high] == CommKind.COLLECTIVE) & (ends <= until)].max(initial=step.end_ns))

    def explain(self, parts: _IdlePieces, step: StepEntry, idle: Spans) -> None:
        """Cut idle time inside a rank's step by what delayed it, and each piece by what other ranks tell."""
        if not len(idle.start_ns):
            return
        delays = self.run.delays
        low, high = (
            np.searchsorted(delays.end_ns, idle.start_ns[0], side="right"),
            np.searchsorted(delays.start_ns, idle.end_ns[-1]),
        )
        pieces = spans.cut(idle, delays.start_ns[low:high], delays.end_ns[low:high])
        x, y, by = pieces.start_ns, pieces.end_ns, np.where(pieces.by == NOWHERE, NOWHERE, pieces.by + low)
        exchange, cause = _taken(delays.exchange, by, NOWHERE), _taken(delays.cause, by, Cause.UNKNOWN)
        following = self._range_at(idle.end_ns[pieces.of])
        f = np.maximum(following, 0)
        made = (following != NOWHERE) & (self.supply.end_ns[f] != NO_TIME)
        produced = np.where(made, self.supply.end_ns[f], x)
        arrives = np.where(made & self._begins(step, f, idle.end_ns[pieces.of]), produced + self.supply.lag_ns[f], x)
        kind = _taken(self.run.exchanges.kind, exchange, CommKind.UNKNOWN)
        some, local = exchange != NOWHERE, cause != Cause.UNKNOWN
        known = _taken(self.meeting.known, exchange, 0).astype(np.bool_)  # all its sides were recorded
        late_rank = np.where(known, _taken(self.meeting.late_rank, exchange, NOWHERE), NOWHERE)
        # when the transfer began: else NCCL's own records may tell; of unknown parameters it transfers once there is
        # something to
        guess = np.where(~some | local | (kind == CommKind.RECV), y, np.where(kind == CommKind.UNKNOWN, produced, x))
        by_nccl = _taken(self.came_ns, exchange, NO_TIME)
        began = np.where(
            known, _taken(self.meeting.transfer_from_ns, exchange, 0), np.where(by_nccl != NO_TIME, by_nccl, guess)
        )
        middle = np.clip(began, x, y)
        # the peer was not recorded: only NCCL's own records tell waiting and transfer apart
        alone = some & (kind == CommKind.RECV) & ~known & ~local
        stall = np.where(some, np.where(kind == CommKind.COLLECTIVE, x, produced), arrives)
        stall = np.where(local, x, np.where(alone & ~made, y, stall))
        stall = np.clip(stall, x, middle)
        late = self._late_ns(late_rank, stall, middle)

        def stalled(i: int) -> str:
            return self._with_words(self.stalled(int(following[i]), bool(alone[i])), int(exchange[i]))

        parts.add(self.run, step, Spans(x, stall), Cause.DEPENDENCY_STALL, stalled)
        evidence = _taken(delays.evidence, by, 0)

        def came(i: int) -> str:
            return self._came_last(int(late_rank[i]), int(exchange[i]))

        late = np.where(
            known & ~local & self._before_recording(exchange, kind, late_rank), middle, np.where(local, stall, late)
        )
        parts.add(self.run, step, Spans(stall, late), Cause.PROFILER_ARTEFACT, lambda i: f"{came(i)}, in its profiler")
        waits = some & ~local
        then = np.where(waits, Cause.STRAGGLER_WAIT, cause)
        handed = (
            ~waits
            & ~local
            & (evidence == 0)
            & (middle - late <= LATENCY_NS)
            & self.run.sees_device
            & self.run.sees_causes
        )
        then = np.where(handed, Cause.LAUNCH_STARVED, then)

        def held(i: int) -> str:
            return came(i) if waits[i] else "from one kernel to the next" if handed[i] else delays.texts[evidence[i]]

        parts.add(self.run, step, Spans(late, middle), then, held)
        parts.add(
            self.run,
            step,
            Spans(middle, y),
            Cause.EXPOSED_COMMUNICATION,
            lambda i: self._came_last(NOWHERE, int(exchange[i])),
        )

    def _before_recording(self, exchange: I64, kind: I64, rank: I64) -> Bool:
        """Return which collectives are the first of their group, and began before the recording of ``rank`` does."""
        ex = self.run.exchanges
        begins = np.array([self.from_ns.get(r, NO_TIME) for r in rank.tolist()], np.int64)
        first = (kind == CommKind.COLLECTIVE) & (_taken(self.run.ordinal, exchange, NOWHERE) == 0)
        return np.asarray(first & (begins > _taken(ex.start_ns, exchange, 0)))

    def _late_ns(self, rank: I64, start: I64, end: I64) -> I64:
        """Return up to when, of each wait for a late rank, that one's profiler kept it: so much of the wait counts as
        the profiler's.
        """
        out = start.copy()
        for r in np.unique(rank[rank != NOWHERE]).tolist():
            at = np.flatnonzero(rank == r)
            kept = spans.within(self.profiled[r], int(start[at].min()), int(end[at].max()))
            out[at] += spans.overlap_ns(kept, start[at], end[at])
        return out

    def _range_at(self, at_ns: I64) -> I64:
        """Return the range in which, or with which, work goes on at each moment; ``NOWHERE`` between ranges."""
        k = self.order[np.maximum(np.searchsorted(self.starts_ns, at_ns, side="right") - 1, 0)]
        return np.asarray(
            np.where((self.run.ranges.start_ns[k] <= at_ns) & (at_ns < self.run.ranges.end_ns[k]), k, NOWHERE)
        )

    def _begins(self, step: StepEntry, k: I64, at_ns: I64) -> Bool:
        """Return whether the work of range ``k`` begins at each moment. In a run without device ops a range may wait
        before it works.
        """
        begins = self.run.ranges.start_ns[k]
        work = spans.within(_work(self.run, step.number), int(begins.min()), int(at_ns.max()))
        return np.asarray(spans.overlap_ns(work, begins, at_ns) == 0)

    def _stalled(self, k: int, alone: bool) -> str:
        if k == NOWHERE:
            return "a peer that was not recorded" if alone else ""
        s = self.supply
        if s.rank[k] == NOWHERE:
            return f"{self.name(k)} waited for a peer that was not recorded"
        made = f"{Pass(int(s.phase[k])).name}{self.run.ranges.microbatch[k]} of stage {s.stage[k]} on rank {s.rank[k]}"
        return f"{self.name(k)} waited for {made}"

    def _came_last(self, rank: int, exchange: int) -> str:
        name = "" if exchange == NOWHERE else self.run.exchanges.names[self.run.exchanges.name[exchange]]
        return self._with_words(name if rank == NOWHERE else f"{name}: rank {rank} came last", exchange)

    def _with_words(self, text: str, exchange: int) -> str:
        words = self.words.get(exchange, "")
        return f"{text}; {words}" if words else text


def _taken(column: I64 | I32 | U8 | Bool, at: I64, otherwise: int) -> I64:
    """Return ``column[at]``, or ``otherwise`` where ``at`` is ``NOWHERE``."""
    out = np.full(len(at), otherwise, np.int64)
    some = at != NOWHERE
    out[some] = column[at[some]]
    return out


class _IdlePieces:
    """Idle pieces being collected."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int, int, int]] = []
        self.texts: dict[str, int] = {"": 0}

    def add(
        self, run: StageRun, step: StepEntry, idle: Spans, cause: I64 | Cause, evidence: Callable[[int], str]
    ) -> None:
        """Add the spans that are not empty, each with its cause and evidence."""
        causes = np.broadcast_to(cause, idle.start_ns.shape)
        for i in np.flatnonzero(idle.start_ns < idle.end_ns).tolist():
            text = self.texts.setdefault(evidence(i), len(self.texts))
            self.rows.append((run.rank, step.number, int(idle.start_ns[i]), int(idle.end_ns[i]), int(causes[i]), text))

    def idle(self) -> Idle:
        table = np.array(self.rows, np.int64).reshape(-1, 6)
        table = _touching_joined(table[np.lexsort((table[:, 2], table[:, 0]))])
        rank, step, start, end, cause, evidence = table.T.copy()
        return Idle(rank, step, start, end, cause.astype(np.uint8), evidence.astype(np.int32), tuple(self.texts))


def _touching_joined(table: I64) -> I64:
    """Return rows of rank, step, start, end, cause and evidence, with pieces that touch and say the same put
    together.
    """
    same = (table[1:, [0, 1, 4, 5]] == table[:-1, [0, 1, 4, 5]]).all(axis=1) & (table[1:, 2] == table[:-1, 3])
    first = np.flatnonzero(np.append(True, ~same)[: len(table)])
    last = np.flatnonzero(np.append(~same, True)[: len(table)])
    out = table[first].copy()
    out[:, 3] = table[last, 3]
    return out


def _assert_complete(runs: Sequence[StageRun], steps: Sequence[StepEntry], idle: Idle) -> None:
    inside = idle.cause != Cause.OPTIMIZER_SYNC
    place = np.searchsorted([run.rank for run in runs], idle.rank) * len(steps) + idle.step
    length = np.where(inside, idle.end_ns - idle.start_ns, 0)
    spent = np.zeros(len(runs) * len(steps), np.int64)
    np.add.at(spent, place, length)
    for k, step in enumerate(steps):
        for i, work in enumerate(step.work_ns):
            total = work + int(spent[i * len(steps) + k])
            assert total == step.end_ns - step.start_ns, (
                f"rank {runs[i].rank}, step {step.number}: {total} ns accounted for"
            )
