"""What changed of the run as a whole: hardware, ranks, schedule, shapes and types, how often all is done; communication
between ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET

from graphlink.diff.facts import Basis, Operation, RankPair, RunFacts
from graphlink.diff.noise import Noise
from graphlink.diff.pairs import Both
from graphlink.diff.records import Change, GroupChange, PipelineChange, change
from graphlink.patterns import DIGITS
from graphlink.ranks.summary import Collectives
from graphlink.records import amount, counted, first_few, ms, short_path, times
from graphlink.tables import grouped

_MOST: Final = 0.5  # of the device time of what has shapes, or types
_SAME: Final = 0.0005  # of a number of collectives or bytes


def run_changes(both: Both) -> Iterator[Change]:
    """Yield the changes that all others may follow from."""
    before, after, repeats = both.before, both.after, both.matched.repeats
    if not both.matched.by_name:
        yield _structure(
            "hardware", f"other hardware: {_gpus(before)} -> {_gpus(after)}, so kernels are not compared by name"
        )
    world, recorded = (
        (of(before), of(after)) for of in (lambda run: run.side().world_size, lambda run: len(run.ranks))
    )
    if world[0] != world[1]:
        yield _structure("ranks", f"{counted(world[0], 'rank')} -> {world[1]:,}", world, "ranks")
    elif recorded[0] != recorded[1]:
        yield _structure("ranks", f"{recorded[0]:,} -> {counted(recorded[1], 'rank')} recorded", recorded, "ranks")
    one, other = pipeline_of(before), pipeline_of(after)
    yield from _pipeline(one, other)
    if repeats != 1.0 and not (one and other and one.microbatches != other.microbatches):
        what = (
            f"nearly all is done {repeats:.4g} times as often: more microbatches, gradient accumulation, or more "
            "was recorded"
        )
        yield _structure("repeats", what, (1.0, repeats), "times")
    yield from _inputs(both.ranks)


def _structure(kind: str, what: str, sides: tuple[float, float] | None = None, unit: str = "", **others: Any) -> Change:
    """Return a change of structure, of the run; ``sides``: before and after, in ``unit``."""
    before, after = (None, None) if sides is None else map(float, sides)
    return change("structure", kind, what, (before, after), unit, **others)


def _gpus(run: RunFacts) -> str:
    return ", ".join(run.gpus) or "a GPU that is not named"


def pipeline_of(run: RunFacts) -> Any:
    """Return the pipeline of a run; None where it is none, or nothing looks for one."""
    return getattr(run.summary, "pipeline", None)


def _pipeline(one: Any, other: Any) -> Iterator[Change]:
    if not one or not other:
        if one or other:
            found = "went" if one else "came"
            yield _structure("schedule", f"a pipeline was found in {'A' if one else 'B'} alone: it {found}")
        return
    for name in ("microbatches", "stages", "chunks"):
        values = getattr(one, name), getattr(other, name)
        if values[0] != values[1]:
            yield _structure(name, f"{values[0]:,} -> {values[1]:,} {name}", values, name)
    if one.schedule != other.schedule:
        yield _structure("schedule", f"schedule {one.schedule} -> {other.schedule}")


def pipeline_change(before: RunFacts, after: RunFacts) -> PipelineChange | None:
    """Return both pipelines side by side; None where neither run has one."""
    one, other = pipeline_of(before), pipeline_of(after)
    if not one and not other:
        return None
    names = ("schedule", "stages", "microbatches", "chunks", "bubble_rate_makespan")
    sides = {"before": one, "after": other}
    columns: dict[str, Any] = {
        f"{name.removesuffix('_makespan')}_{side}": value
        for side, pipeline in sides.items()
        for name in names
        if (value := getattr(pipeline, name, None)) is not UNSET
    }
    columns |= {f"causes_{side}_ns": pipeline.causes_ns if pipeline else {} for side, pipeline in sides.items()}
    return PipelineChange(**{"bubble_rate_before": None, "bubble_rate_after": None, **columns})


def _inputs(pairs: Sequence[RankPair]) -> Iterator[Change]:
    """Yield other shapes and other types of inputs, where most of the device time has them; of the first ranks, as all
    run one program.
    """
    for pair in pairs[:1]:
        one, other = (
            {tuple(operation.path): operation for operation in rank.file.operations}
            for rank in (pair.before, pair.after)
        )
        both = [(mine, other[path]) for path, mine in one.items() if path in other]
        shaped = [(mine, its) for mine, its in both if mine.shapes and its.shapes]
        reshaped = [(mine, its) for mine, its in shaped if mine.shapes[0] != its.shapes[0]]
        if reshaped and _time(reshaped) >= _MOST * _time(shaped):
            yield _reshaped(reshaped)
        typed = [(mine, its) for mine, its in both if mine.dtypes and its.dtypes]
        retyped = [(mine, its) for mine, its in typed if mine.dtypes[0] != its.dtypes[0]]
        if retyped and _time(retyped) >= _MOST * _time(typed):
            mine, its = max(retyped, key=lambda both: both[0].device_ns)
            what = f"other types: {mine.dtypes[0]} -> {its.dtypes[0]} in {counted(len(retyped), 'operation')}"
            yield _structure("types", what, path=mine.path, evidence=f"such as {short_path(mine.path)}")


def _time(both: Sequence[tuple[Operation, Operation]]) -> int:
    return sum(max(mine.device_ns, mine.host_ns, 1) for mine, _ in both)


def _reshaped(both: Sequence[tuple[Operation, Operation]]) -> Change:
    """Return other shapes; where the first number of most changed by one ratio, it is the batch."""
    weights: dict[tuple[int, int], int] = defaultdict(int)
    for mine, its in both:
        numbers = [DIGITS.findall(operation.shapes[0]) for operation in (mine, its)]
        if all(numbers) and len(numbers[0][0]) < 19 and len(numbers[1][0]) < 19:
            weights[int(numbers[0][0]), int(numbers[1][0])] += max(mine.device_ns, 1)
    one, other = max(weights, key=lambda ratio: weights[ratio], default=(0, 0))
    mine, its = max(both, key=lambda pair: pair[0].device_ns)
    such = f"such as {short_path(mine.path)}: {mine.shapes[0]} -> {its.shapes[0]}"
    if one and other and one != other and weights[one, other] >= _MOST * sum(weights.values()):
        size = "smaller" if other < one else "larger"
        return _structure(
            "batch",
            f"{size} inputs: first dimension {one:,} -> {other:,}",
            (one, other),
            "first dimension",
            path=mine.path,
            evidence=such,
        )
    return _structure(
        "shapes", f"other shapes of inputs in {counted(len(both), 'operation')}", path=mine.path, evidence=such
    )


def communication(before: RunFacts, after: RunFacts, basis: Basis) -> Iterator[GroupChange]:
    """Yield each function of each communicator of both runs, a step."""
    sides = [_collectives(run) for run in (before, after)]
    per = [len(run.steps_ns) if basis.per != "run" else 1 for run in (before, after)]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        one, other = (side.get(key) for side in sides)
        columns = {
            name: [getattr(found, name) / steps if found else 0 for found, steps in zip((one, other), per, strict=True)]
            for name in ("count", "bytes", "transfer_ns", "wait_ns")
        }
        ranks, turn, kind = key
        yield GroupChange(
            group=f"ranks {first_few(ranks, 8)}" + (f" ({turn + 1})" if turn else ""),
            ranks=len(ranks),
            type=kind,
            count_before=round(columns["count"][0], 6),
            count_after=round(columns["count"][1], 6),
            bytes_before=round(columns["bytes"][0], 3),
            bytes_after=round(columns["bytes"][1], 3),
            transfer_before_ns=round(columns["transfer_ns"][0]),
            transfer_after_ns=round(columns["transfer_ns"][1]),
            wait_before_ns=round(columns["wait_ns"][0]),
            wait_after_ns=round(columns["wait_ns"][1]),
        )


def _collectives(run: RunFacts) -> dict[tuple[tuple[int, ...], int, str], Collectives]:
    """Return functions by the ranks of the group, which of several groups of these ranks it is, and type: names may
    differ between runs.
    """
    out = {}
    turns: dict[tuple[int, ...], int] = defaultdict(int)
    groups = [] if run.summary.run is None else run.summary.run.groups
    for group in sorted(groups, key=lambda one: (one.id is None, one.id or 0, one.name)):
        ranks = tuple(group.ranks)
        for found in group.collectives:
            out[ranks, turns[ranks], found.type] = found
        turns[ranks] += 1
    return out


def communication_changes(found: Sequence[GroupChange], noise: Noise, repeats: float, per: str) -> Iterator[Change]:
    """Yield what changed in communication of ranks that are matched: how often and how much of it, how long a transfer
    takes; the same type of several groups together."""
    work: list[tuple[str, float, float]] = []
    for kind, groups in grouped((group.type, group) for group in found).items():
        count = sum(one.count_before for one in groups), sum(one.count_after for one in groups)
        size = sum(one.bytes_before for one in groups), sum(one.bytes_after for one in groups)
        transfer = sum(one.transfer_before_ns for one in groups), sum(one.transfer_after_ns for one in groups)
        took, change_ns = f"transfer {ms(transfer[0])} -> {ms(transfer[1])} ms {per}", transfer[1] - transfer[0]
        if _other(count, repeats):
            what = f"{kind} is done {amount(count[0])} -> {amount(count[1])} times {per}"
            yield _structure("collective_calls", what, count, f"collectives {per}", evidence=took, change_ns=change_ns)
        elif _other(size, repeats):
            what = f"{kind} moves {size[0]:,.0f} -> {size[1]:,.0f} bytes {per}"
            yield _structure("collective_bytes", what, size, f"bytes {per}", evidence=took, change_ns=change_ns)
        elif noise.beyond(transfer[0] * repeats, transfer[1]):
            work.append((kind, transfer[0] * repeats, transfer[1]))
    if work:
        yield _slower(work, per)


def _other(values: tuple[float, float], repeats: float) -> bool:
    """Tell whether a number changed, other than as often as all did."""
    return min(abs(values[1] - values[0]), abs(values[1] - values[0] * repeats)) > _SAME * max(values)


def _slower(work: Sequence[tuple[str, float, float]], per: str) -> Change:
    before, after = sum(one for _, one, _ in work), sum(other for _, _, other in work)
    kinds = ", ".join(kind for kind, _, _ in sorted(work, key=lambda one: -abs(one[2] - one[1])))
    factor = after / before if before else 0.0
    return change(
        "work",
        "network",
        f"communication takes {times(factor)} as long to transfer the same: {kinds}",
        (before, after),
        f"ns {per}",
        name=kinds,
        factor=round(factor, 6) or None,
        change_ns=round(after - before),
        evidence=f"{ms(before)} -> {ms(after)} ms of transfer {per}, without what ranks wait for each other",
    )
