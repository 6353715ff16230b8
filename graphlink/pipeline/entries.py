"""Pipeline ranges as a rank's host recorded them: which names are phases, of which step, microbatch and stage.

A rule counts for a rank only where it explains the run: forwards and backwards both occur, and microbatches are 0 .. m - 1, alike in
both, or not given. Of several the first in the order of ``rules.RULES`` holds, generic ones last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from graphlink.model import I32, I64, NOWHERE, U8, Bool, Linked
from graphlink.pipeline.records import Phase
from graphlink.pipeline.rules import OPTIMIZER, RULES, STEP_MARK, Reading, Rule, readings

_BACKWARD = (Phase.B, Phase.I)


@dataclass(frozen=True, slots=True)
class Entries:
    """Ranges on the threads of a rank, sorted by start (of equal ones the outer first). One entry a range; times absolute.

    ``around``: the range of the thread that encloses it, ``NOWHERE`` if none. ``other_threads``: the range that stands for the work of
    other threads inside this one (an overlapped pair of forward and backward), else itself. ``step`` is a number of the recording,
    equal on all ranks. ``inferred`` where the microbatch was numbered by order.
    """

    tid: I64
    start_ns: I64
    end_ns: I64
    phase: U8
    step: I64
    stage: I64
    chunk: I64
    microbatch: I64
    around: I32
    other_threads: I32
    inferred: Bool
    rule: I32
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The entries of a rank, with how often each rule knew a name, and names that look like ranges of no rule."""

    entries: Entries | None
    known: dict[str, int]
    warnings: tuple[str, ...]


def named_entries(linked: Linked, user: Sequence[Rule] = ()) -> Found:
    """The ranges that the names of a rank's annotations say; None where no rule explains the run. O(n log n)."""
    rows = linked.trace.host
    marked = np.flatnonzero(rows.annotation & ~linked.crossing)
    crossing = _crossing(linked, user)
    names, first = np.unique(rows.name[marked], return_inverse=True)
    texts = [linked.trace.strings[k] for k in names.tolist()]
    known = readings(texts, (*user, *RULES, OPTIMIZER))
    counts = np.bincount(first, minlength=len(texts)).tolist()
    by_rule: Counter[str] = Counter()
    for text, n in zip(texts, counts, strict=True):
        if text in known:
            by_rule[known[text][0].name] += n
    tables = {rule.name: _table(linked, marked, first, texts, known, rule) for rule in (*user, *RULES)}
    chosen = next((r for r in (*user, *RULES) if (t := tables[r.name]) is not None and _explains(t)), None)
    near = [name for name, t in tables.items() if t is not None and not _explains(t)]
    warnings = [f"ranges of {name} are passed over: {_why_not(t)}" for name in near if chosen is None and (t := tables[name]) is not None]
    if chosen is None:
        return Found(None, dict(by_rule), (*crossing, *warnings))
    raw = tables[chosen.name]
    assert raw is not None
    optimizer = _table(linked, marked, first, texts, known, OPTIMIZER)
    return Found(_finished(linked, raw, optimizer, chosen), dict(by_rule), (*crossing, *warnings))


def _crossing(linked: Linked, user: Sequence[Rule]) -> tuple[str, ...]:
    """What is said of ranges that a rule knows and that are left out, as they end inside others of their thread."""
    rows, strings = linked.trace.host, linked.trace.strings
    out = np.flatnonzero(rows.annotation & linked.crossing)
    texts = {strings[k]: k for k in np.unique(rows.name[out]).tolist()}
    said = [texts[text] for text, (_, read) in readings(texts, (*user, *RULES, OPTIMIZER)).items() if read]
    lost = out[np.isin(rows.name[out], said)]
    if not len(lost):
        return ()
    at_ns = int(rows.start_ns[lost[0]] - rows.start_ns.min())
    first = f"{strings[rows.name[lost[0]]]}, {at_ns / 1e6:,.3f} ms after the first row of the host"
    return (f"pipeline ranges that cross others of their thread are left out: {len(lost)}, the first is {first}",)


@dataclass(frozen=True, slots=True)
class _Raw:
    """Ranges of one rule as read, two for a name that says two phases (``second``)."""

    tid: I64
    start_ns: I64
    end_ns: I64
    phase: U8
    stage: I64
    chunk: I64
    microbatch: I64
    layer: I64
    second: Bool


def _table(
    linked: Linked, marked: I64, name: I64, texts: list[str], known: dict[str, tuple[Rule, tuple[Reading, ...]]], rule: Rule
) -> _Raw | None:
    rows = linked.trace.host
    of_name = [known[t][1] if t in known and known[t][0] is rule else () for t in texts]
    parts: list[tuple[I64, list[Reading], bool]] = []
    for second in (0, 1):
        has = np.array([len(r) > second for r in of_name], np.bool_)
        if has.any():
            mine = np.flatnonzero(has[name])
            parts.append((mine, [of_name[k][second] for k in name[mine].tolist()], bool(second)))
    if not parts:
        return None
    at = np.concatenate([marked[mine] for mine, _, _ in parts])
    said = [r for _, read, _ in parts for r in read]
    second_of = np.concatenate([np.full(len(mine), second) for mine, _, second in parts])
    order = np.lexsort((second_of, at))
    columns = {key: np.array([getattr(r, key) for r in said], np.int64)[order] for key in ("stage", "chunk", "microbatch", "layer")}
    phase = np.array([r.phase for r in said], np.uint8)[order]
    at = at[order]
    return _Raw(rows.tid[at], rows.start_ns[at], rows.end_ns[at], phase, **columns, second=second_of[order])


def _explains(raw: _Raw) -> bool:
    return not _why_not(raw)


def _why_not(raw: _Raw) -> str:
    """Why the ranges of a rule explain no run; empty if they do."""
    forward, backward = raw.phase == Phase.F, np.isin(raw.phase, _BACKWARD)
    if not forward.any() or not backward.any():
        return f"no {'forward' if not forward.any() else 'backward'} among them"
    sets = [set(np.unique(raw.microbatch[side]).tolist()) for side in (forward, backward)]
    if all(len(s) == 1 for s in sets):
        return ""  # not given, or a constant
    if sets[0] - {NOWHERE} != sets[1] - {NOWHERE}:
        lone = min(sets[0] ^ sets[1])
        return f"microbatch {lone} has a {'forward' if lone in sets[0] else 'backward'} only"
    numbers = sorted(sets[0] - {NOWHERE})
    if numbers != list(range(len(numbers))):
        return f"microbatches are not 0 to {len(numbers) - 1} ({numbers[0]} to {numbers[-1]})"
    return ""


def _finished(linked: Linked, raw: _Raw, optimizer: _Raw | None, rule: Rule) -> Entries:
    if (raw.layer != NOWHERE).any():
        raw = _passes(raw)
    if optimizer is not None:
        raw = _joined(raw, optimizer)
    given = raw.microbatch[np.isin(raw.phase, (Phase.F, *_BACKWARD))]
    constant = len(np.unique(given)) == 1 and len(given) > 2
    phase = raw.phase.copy()
    if rule.split_b and (phase == Phase.W).any():
        phase[phase == Phase.B] = Phase.I
    is_rule = raw.phase != Phase.OPT
    numbers = np.full(len(phase), NOWHERE) if constant else raw.microbatch
    entries = nested(
        Entries(
            tid=raw.tid,
            start_ns=raw.start_ns,
            end_ns=raw.end_ns,
            phase=phase,
            step=np.zeros(len(phase), np.int64),
            stage=raw.stage,
            chunk=raw.chunk,
            microbatch=numbers,
            around=np.full(len(phase), NOWHERE, np.int32),
            other_threads=np.where(raw.second, NOWHERE, np.arange(len(phase))).astype(np.int32),
            inferred=np.zeros(len(phase), np.bool_),
            rule=np.where(is_rule, 0, 1).astype(np.int32),
            rules=(rule.name, OPTIMIZER.name),
        )
    )
    return numbered(entries, step_numbers(linked, entries))


def _joined(a: _Raw, b: _Raw) -> _Raw:
    joined = {f.name: np.concatenate([getattr(a, f.name), getattr(b, f.name)]) for f in fields(_Raw)}
    order = np.lexsort((-joined["end_ns"], joined["start_ns"]))
    return _Raw(**{name: column[order] for name, column in joined.items()})


def _passes(raw: _Raw) -> _Raw:
    """Ranges of layers put together to passes: a new one begins where the phase changes or the layers start over."""
    order = np.lexsort((raw.start_ns, raw.tid))
    phase, layer, tid = raw.phase[order], raw.layer[order], raw.tid[order]
    ascending = np.where(phase[1:] == Phase.F, layer[1:] > layer[:-1], layer[1:] < layer[:-1])
    same = (tid[1:] == tid[:-1]) & (phase[1:] == phase[:-1]) & ascending
    first = np.flatnonzero(np.append(True, ~same))
    last = np.append(first[1:] - 1, len(order) - 1)
    part = {f.name: getattr(raw, f.name)[order][first] for f in fields(_Raw)}
    part["end_ns"] = np.maximum.reduceat(raw.end_ns[order], first) if len(first) else raw.end_ns[order][last]
    part["layer"] = np.full(len(first), NOWHERE)
    by_start = np.lexsort((-part["end_ns"], part["start_ns"]))
    return _Raw(**{name: column[by_start] for name, column in part.items()})


def nested(entries: Entries) -> Entries:
    """Sorted, with what encloses what. A range inside one of its own phase is a part of that: it gives it what it lacks, and goes."""
    order = np.lexsort((entries.other_threads == NOWHERE, -entries.end_ns, entries.start_ns))
    e = _taken(entries, order)
    second = (e.other_threads == NOWHERE).tolist()
    stage, chunk, microbatch = (c.copy() for c in (e.stage, e.chunk, e.microbatch))
    around, keep = np.full(len(order), NOWHERE, np.int64), np.ones(len(order), np.bool_)
    pair = np.full(len(order), NOWHERE, np.int64)
    open_: dict[int, list[int]] = {}
    tids, ends, starts, phases = e.tid.tolist(), e.end_ns.tolist(), e.start_ns.tolist(), e.phase.tolist()
    for i in range(len(order)):
        stack = open_.setdefault(tids[i], [])
        while stack and ends[stack[-1]] <= starts[i] and ends[stack[-1]] < ends[i]:
            stack.pop()
        if second[i]:  # stands beside the range before it
            pair[stack[-1]] = i
            continue
        if stack:
            outer = stack[-1]
            if phases[outer] == phases[i]:
                for column in (stage, chunk, microbatch):
                    if column[outer] == NOWHERE:
                        column[outer] = column[i]
                keep[i] = False
                continue
            around[i] = outer
        stack.append(i)
    new = np.cumsum(keep) - 1
    kept = np.flatnonzero(keep)
    others = np.where(pair[kept] == NOWHERE, new[kept], new[np.maximum(pair[kept], 0)])
    up = around[kept]
    out = replace(e, stage=stage, chunk=chunk, microbatch=microbatch)
    return replace(
        _taken(out, kept),
        around=np.where(up == NOWHERE, NOWHERE, new[np.maximum(up, 0)]).astype(np.int32),
        other_threads=others.astype(np.int32),
    )


def _taken(entries: Entries, order: I64) -> Entries:
    columns = {f.name: getattr(entries, f.name)[order] for f in fields(Entries) if f.name != "rules"}
    return Entries(**columns, rules=entries.rules)


def step_numbers(linked: Linked, entries: Entries) -> I64:
    """The step of each entry: by step marks (their own numbers, where they have such), else by optimizer ranges, else by repetition."""
    rows, strings = linked.trace.host, linked.trace.strings
    codes = [k for k in np.unique(rows.name[rows.annotation]).tolist() if STEP_MARK.fullmatch(strings[k])]
    mark = np.flatnonzero(np.isin(rows.name, codes) & rows.annotation)
    if len(mark):
        return _by_marks(rows.start_ns[mark], [strings[k] for k in rows.name[mark].tolist()], entries)
    if (entries.phase == Phase.OPT).any():
        is_opt = entries.phase == Phase.OPT
        begins = np.append(False, is_opt[:-1] & ~is_opt[1:])
        return np.cumsum(begins)
    return _by_repetition(entries)


def _by_marks(start_ns: I64, texts: list[str], entries: Entries) -> I64:
    digits = ["".join(c for c in text.rpartition("#")[2].rpartition("_")[2] if c.isdigit()) for text in texts]
    numbers = np.array([int(d[-9:]) if d else NOWHERE for d in digits], np.int64)
    if (numbers == NOWHERE).any() or len(np.unique(numbers)) < len(numbers):
        numbers = np.arange(len(texts))
    found = np.searchsorted(start_ns, entries.start_ns, side="right") - 1
    out: I64 = np.where(found >= 0, numbers[np.maximum(found, 0)], numbers[0] - 1)
    return out


def _by_repetition(entries: Entries) -> I64:
    """The k-th time that a phase of a microbatch occurs it is of step k; one step where microbatches are not given."""
    step = np.zeros(len(entries.phase), np.int64)
    given = np.flatnonzero(entries.microbatch != NOWHERE)
    key = np.stack([c[given] for c in (entries.phase.astype(np.int64), entries.stage, entries.chunk, entries.microbatch)])
    order = np.lexsort(key)
    new = np.append(True, (key[:, order][:, 1:] != key[:, order][:, :-1]).any(axis=0)) if len(order) else np.zeros(0, np.bool_)
    place = np.arange(len(order))
    step[given[order]] = place - np.maximum.accumulate(np.where(new, place, 0))
    return step


def numbered(entries: Entries, step: I64) -> Entries:
    """With step, chunk and microbatch: a missing microbatch is the order number among the ranges of its phase, chunk and step."""
    chunk = entries.chunk.copy()
    staged = (entries.stage != NOWHERE) & (chunk == NOWHERE)
    stages = np.unique(entries.stage[staged])
    chunk[staged] = np.searchsorted(stages, entries.stage[staged])
    chunk[(chunk == NOWHERE) & (entries.phase != Phase.OPT)] = 0
    missing = (entries.microbatch == NOWHERE) & (entries.phase != Phase.OPT)
    microbatch = entries.microbatch.copy()
    at = np.flatnonzero(missing)
    group = np.stack([step[at], chunk[at], entries.phase[at].astype(np.int64)])
    order = np.lexsort((entries.start_ns[at], *group))
    if len(order):
        new = np.append(True, (group[:, order][:, 1:] != group[:, order][:, :-1]).any(axis=0))
        place = np.arange(len(order))
        microbatch[at[order]] = place - np.maximum.accumulate(np.where(new, place, 0))
    return replace(entries, step=step, chunk=chunk, microbatch=microbatch, inferred=entries.inferred | missing)


def enclosing(entries: Entries, tid: I64, at_ns: I64) -> I32:
    """The innermost range of the thread around each moment, ``NOWHERE`` if there is none. O(log n) each."""
    out = np.full(len(at_ns), NOWHERE, np.int32)
    second = np.zeros(len(entries.tid), np.bool_)
    second[entries.other_threads[entries.other_threads != np.arange(len(second))]] = True
    own = np.flatnonzero(~second)
    if not len(own):
        return out
    threads, points = np.unique(entries.tid[own]), np.unique(entries.start_ns[own])
    place = np.searchsorted(threads, entries.tid[own]) * len(points) + np.searchsorted(points, entries.start_ns[own])
    order = np.argsort(place, kind="stable")
    thread = np.minimum(np.searchsorted(threads, tid), len(threads) - 1)
    upto = thread * len(points) + np.searchsorted(points, at_ns, side="right") - 1
    at = own[order[np.maximum(np.searchsorted(place[order], upto, side="right") - 1, 0)]]
    found = np.where((entries.tid[at] == tid) & (entries.start_ns[at] <= at_ns), at, NOWHERE)
    for up in _leaps(entries.around):  # to the outermost one that is over, and from there to what is around it
        over = _over(entries, up[found], at_ns)
        found[over] = up[found[over]]
    over = _over(entries, found, at_ns)
    found[over] = entries.around[found[over]]
    return found.astype(np.int32)


def _over(entries: Entries, which: I64, at_ns: I64) -> Bool:
    out: Bool = (which != NOWHERE) & (entries.end_ns[which] <= at_ns)
    return out


def _leaps(around: I32) -> list[I64]:
    """What is 2 ** k around each range, farthest first; the entry behind the last is that of ``NOWHERE``."""
    up = np.append(around, NOWHERE).astype(np.int64)
    out = []
    while (up != NOWHERE).any():
        out.append(up)
        up = up[up]
    return out[::-1]
