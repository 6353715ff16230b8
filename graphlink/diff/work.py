"""What takes longer or shorter although it is done as often: device time, host time, GPU calls, time between ops, late
starts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from graphlink.diff.facts import OTHER_THREADS
from graphlink.diff.noise import Noise
from graphlink.diff.pairs import OUTSIDE, Pair, Path, loads, summed
from graphlink.diff.records import Change, change
from graphlink.diff.structure import place
from graphlink.graph.families import PYTHON
from graphlink.patterns import ALLOCATOR
from graphlink.read.commnames import short_name
from graphlink.records import amount, counted, ms, shortened, times
from graphlink.tables import grouped

_WORDS: Final = {"kernel": "compute", "copy": "copies", "communication": "communication"}
_SORTS: Final = 4  # sums of all parts that are tested: compute, copies, communication, host
_PURE: Final = 0.9  # of the time of a group: so much of it changed
_UNIFORM: Final = 0.9  # of the time of all parts: so much of it changed by nearly one factor
_UNIFORM_HOST: Final = 0.7
_EXPLAINED: Final = 0.5  # of the change of all parts: so much of it is that factor
_COUNTS: Final = 0.01  # of the time: parts that take less are not counted
_SPREAD: Final = 0.1  # that factor, times as much or as little
_SPREAD_OF_HOST: Final = 0.3  # the same of the host, where only a part of an op may be slower


def work(pairs: Sequence[Pair], noise: Noise, repeats: float, per: str, *, together: bool) -> Iterator[Change]:
    """Yield what changed in the time of what a rank does as often as before. ``together``: ranks are matched, so
    communication is compared by its transfer, not by its kernels, which wait for late ranks."""
    between = [pair for pair in pairs if pair.of == "host" and pair.path == (PYTHON,)] if repeats == 1.0 else []
    same = [
        pair
        for pair in pairs
        if pair.path != (PYTHON,)
        # a data loader runs as often, whatever is inside it
        and ((pair.of == "host" and loads(pair.path)) or not noise.counts_differ(pair, repeats))
    ]
    scaled = [*between, *(_scaled(pair, repeats) for pair in same)]
    changed = [pair for pair in scaled if noise.part_differs(pair)]
    for of, whole in (
        ("kernel", "the device"),
        ("copy", "copying"),
        *(() if together else (("communication", "communication"),)),
    ):
        yield from _of(of, scaled, changed, per, noise, whole)
    python = [pair for pair in changed if pair.of == "host" and pair.path == (PYTHON,)]
    host = [pair for pair in scaled if pair.of == "host"]
    factor = _factor_of(host, [pair for pair in changed if pair.of == "host"], noise)
    if factor is not None:
        yield _whole("host", "the host", factor, [pair for pair in host if all(pair.mean_ns)], per)
    else:
        yield from (_python(pair, per) for pair in python)
        rest = [pair for pair in changed if pair.path != (PYTHON,)]
        yield from _of("host", [pair for pair in host if pair.path != (PYTHON,)], rest, per, noise, "")
    yield from _calls(scaled, changed, per)
    late = [pair for pair in changed if pair.of == "late"]
    if late:
        yield _late(late, per)


def _scaled(pair: Pair, repeats: float) -> Pair:
    """Return a part with its time before as if all had been done as often as after."""
    if repeats == 1.0 or abs(pair.counts[0] - pair.counts[1]) < abs(pair.counts[0] * repeats - pair.counts[1]):
        return pair
    return replace(pair, count_before=pair.count_before * repeats, before_ns=pair.before_ns * repeats)


def _factor_of(every: Sequence[Pair], changed: Sequence[Pair], noise: Noise) -> float | None:
    """Return the factor of nearly all parts, None where there is none: their sum may show what each alone does not."""
    if not every or not noise.part_differs(summed(every), _SORTS):
        return None
    return uniform(every, changed) or (uniform(every, every) if not noise.exact else None)


def _of(
    of: str, every: Sequence[Pair], changed: Sequence[Pair], per: str, noise: Noise, whole: str
) -> Iterator[Change]:
    all_of, mine = ([pair for pair in pairs if pair.of == of] for pairs in (every, changed))
    factor = _factor_of(all_of, mine, noise) if whole else None
    if factor is not None:
        yield _whole(of, whole, factor, [pair for pair in all_of if all(pair.mean_ns)], per)
        return
    for group in groups_of(all_of, mine):
        yield _group(of, group, per)


def _change(kind: str, what: str, group: Group, per: str, evidence: str = "", **others: float) -> Change:
    before, after = group.before_ns, group.after_ns
    known = {"path": list(group.path), "name": group.name, "change_ns": round(group.change_ns)}
    known["evidence"] = evidence or f"{ms(before)} -> {ms(after)} ms {per}"
    known["factor"] = round(after / before, 6) if before else None
    return change("work", kind, what, (round(before, 3), round(after, 3)), f"ns {per}", **{**known, **others})


def _whole(of: str, whole: str, factor: float, pairs: Sequence[Pair], per: str) -> Change:
    """Return that nearly all of a device or host changed by one factor, the median by time."""
    group = Group("all", (), "", tuple(pairs))
    kind = {
        "kernel": "device_speed",
        "copy": "copy_speed",
        "communication": "communication_speed",
        "host": "host_speed",
    }[of]
    what = f"{whole} takes {times(factor)} as long in nearly all it does"
    return _change(kind, what, group, per, factor=round(factor, 6))


def _factor(group: Group) -> str:
    return times(group.after_ns / group.before_ns) if group.before_ns else "new time,"


def _group(of: str, group: Group, per: str) -> Change:
    took = f"{ms(group.before_ns)} -> {ms(group.after_ns)} ms"
    if of == "host":
        loading = loads(group.path)
        what = (
            f"{'loading data' if loading else 'the host'} takes {_factor(group)} as long in "
            f"{place(group.path) or 'several ops'}"
        )
        return _change("data_loading" if loading else "host", what, group, per, f"{took} of host time {per}")
    kind = {"kernel": "operation", "copy": "copy", "communication": "collective"}[of]
    note = "; it includes the wait for ranks that arrive late" if of == "communication" else ""
    return _change(
        kind,
        f"{_subject(of, group)} takes {_factor(group)} as long on the device",
        group,
        per,
        f"{took} of device time {per}{note}",
    )


def _subject(of: str, group: Group) -> str:
    """Return what a group is: the op, forward or backward, and the kernel where it is one."""
    name = shortened(short_name(group.name), 48) if group.name else ""
    if group.by == "name":
        return f"{name} in {counted(len({pair.path for pair in group.pairs}), 'operation')}"
    if not group.path or OUTSIDE in group.path:
        return name or group.op or _WORDS[of]
    op = group.op if group.op and not group.backward and group.op not in group.path else ""
    backward = "the backward of " if group.backward else ""
    return f"{backward}{f'{op} in ' if op else ''}{place(group.path)}{f' ({name})' if name else ''}"


def _python(pair: Pair, per: str) -> Change:
    group, more = Group("path", pair.path, pair.name, (pair,)), "more" if pair.change_ns > 0 else "less"
    if pair.name == OTHER_THREADS:
        return _change(
            "other_threads",
            f"other threads do nothing {ms(abs(pair.change_ns))} ms {more} {per}, and nothing wakes them",
            group,
            per,
        )
    return _change(
        "python", f"the host takes {ms(abs(pair.change_ns))} ms {more} between ops {per} (Python)", group, per
    )


def _calls(every: Sequence[Pair], changed: Sequence[Pair], per: str) -> Iterator[Change]:
    """Yield GPU calls that take another time, by name; launches of all names together where most of them changed the
    same way.
    """
    names = {pair.name for pair in changed if pair.of == "call"}
    made = [
        Group("name", (), name, tuple(pair for pair in every if pair.of == "call" and pair.name == name))
        for name in sorted(names)
    ]
    longer = [group for group in made if group.change_ns > 0]
    for groups in (longer, [group for group in made if group.change_ns <= 0]):
        rest = [group for group in groups if ALLOCATOR.match(group.name) or "Memcpy" in group.name]
        launching = [group for group in groups if group not in rest]
        if launching:
            group = Group(
                "name",
                (),
                launching[0].name if len(launching) == 1 else "",
                tuple(p for one in launching for p in one.pairs),
            )
            calls = sum(pair.counts[1] for pair in group.pairs)
            each = group.change_ns / calls if calls else 0.0
            subject = group.name or "GPU calls that do not wait"
            what = (
                f"{subject} cost{'s' * bool(group.name)} the host {_factor(group)} as much: {each / 1000:+,.2f} us "
                "a call"
            )
            yield _change(
                "launch_cost",
                what,
                group,
                per,
                f"{amount(calls)} calls, {ms(group.before_ns)} -> {ms(group.after_ns)} ms of host time {per}",
            )
        for group in rest:
            kind = "copy_call" if "Memcpy" in group.name else "memory"  # the former may wait for the GPU
            yield _change(kind, f"the host is {_factor(group)} as long in {group.name}", group, per)


def _late(pairs: Sequence[Pair], per: str) -> Change:
    group = Group("all", (), "", tuple(pairs))
    later = "later" if group.change_ns > 0 else "earlier"
    what = f"device ops begin {ms(abs(group.change_ns))} ms {later} {per}, and nothing recorded explains it"
    return _change("late_starts", what, group, per)


def is_own(change: Change, together: bool) -> bool:
    """Tell whether a change of work is a cause by itself: communication of a rank alone may be late ranks, late starts
    may follow.
    """
    return change.kind not in ("late_starts", "copy_call", "other_threads") and (
        together or change.kind not in ("collective", "communication_speed")
    )


@dataclass(frozen=True, slots=True)
class Group:
    """Parts with one thing in common: a path, the op that launched them or else the last of the path (``op``), or a
    name.
    """

    by: str
    path: Path
    name: str
    pairs: tuple[Pair, ...]

    @property
    def op(self) -> str:
        """Return the op that launched all of it, "" where several did."""
        ops = {pair.op for pair in self.pairs}
        return ops.pop() if len(ops) == 1 else ""

    @property
    def backward(self) -> bool:
        """Return whether it is backward work alone."""
        return all(pair.backward for pair in self.pairs)

    @property
    def before_ns(self) -> float:
        return sum(pair.mean_ns[0] for pair in self.pairs)

    @property
    def after_ns(self) -> float:
        return sum(pair.mean_ns[1] for pair in self.pairs)

    @property
    def change_ns(self) -> float:
        return self.after_ns - self.before_ns


def uniform(every: Sequence[Pair], changed: Sequence[Pair]) -> float | None:
    """Return the factor by which nearly all of the time changed; None where there is no such one."""
    known = [pair for pair in every if all(pair.mean_ns)]
    of = {pair.of for pair in known}
    if len({pair.path for pair in known}) < 2:
        return None
    before, after = np.array([pair.mean_ns for pair in known]).T
    weight, ratio = before + after, after / before  # of both: the same whichever run is named first
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    of_changed = {id(pair) for pair in changed}
    spread = _SPREAD_OF_HOST if "host" in of else _SPREAD
    near = np.array([id(pair) in of_changed for pair in known]) & (np.abs(np.log(ratio / middle)) <= np.log1p(spread))
    near &= (ratio > 1) == (middle > 1)
    counts = weight >= _COUNTS * weight.sum()
    if (
        weight[near].sum() < (_UNIFORM_HOST if "host" in of else _UNIFORM) * weight.sum()
        or near[counts].sum() <= counts.sum() / 2
    ):
        return None
    one, other = float(before.sum()), float(after.sum())
    rest = max(abs(one * middle - other), abs(one - other / middle))  # from either run
    return middle if rest <= (1 - _EXPLAINED) * abs(other - one) else None  # else a part changed more


def groups_of(every: Sequence[Pair], changed: Sequence[Pair]) -> Iterator[Group]:
    """Put changed parts together by path, else by the last op of their paths, else by name: as many as possible, where
    nearly all that has this in common changed the same way. Linear in parts x groups."""
    left = list(changed)
    kinds: tuple[tuple[str, Callable[[Pair], Hashable]], ...] = (
        ("path", lambda pair: pair.path or None),
        ("op", lambda pair: (pair.op or pair.path[-1:], pair.backward) if pair.path else None),
        ("name", lambda pair: pair.name or None),
    )
    whole = {by: grouped((key(pair), pair) for pair in every) for by, key in kinds}
    while left:
        best: tuple[float, str, list[Pair]] | None = None
        for by, key in kinds:
            for value, pairs in grouped((key(pair), pair) for pair in left).items():
                mine = _same_way(pairs)
                size = sum(abs(pair.change_ns) for pair in mine)
                pure = by == "path" or _time(mine) >= _PURE * _time(whole[by].get(value, []))
                if value is not None and pure and (best is None or size > best[0] * 1.001):
                    best = size, by, mine
        if best is None:
            best = abs(left[0].change_ns), "path", [left[0]]
        _, by, mine = best
        names = {pair.name for pair in mine}
        yield Group(by, _common([pair.path for pair in mine]), names.pop() if len(names) == 1 else "", tuple(mine))
        gone = {id(pair) for pair in mine}
        left = [pair for pair in left if id(pair) not in gone]


def _same_way(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the parts that take longer, or those that take less, whichever is more."""
    longer = [pair for pair in pairs if pair.change_ns > 0]
    less = [pair for pair in pairs if pair.change_ns <= 0]
    return longer if sum(pair.change_ns for pair in longer) >= -sum(pair.change_ns for pair in less) else less


def _time(pairs: Sequence[Pair]) -> float:
    return sum(pair.mean_ns[0] for pair in pairs)


def _common(paths: Sequence[Path]) -> Path:
    """Return what all paths end with."""
    end: list[str] = []
    for names in zip(*(path[::-1] for path in paths), strict=False):
        if len(set(names)) > 1:
            break
        end.insert(0, names[0])
    return tuple(end)
