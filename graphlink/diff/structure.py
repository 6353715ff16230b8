"""What came, went, or is done more or less often: operations, kernels, waits, GPU calls; and work that moved to another
stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from graphlink.diff.noise import LEAST_SHARE, Noise
from graphlink.diff.pairs import DEVICE, Matched, Pair, Path, loads
from graphlink.diff.records import Change, change
from graphlink.graph.families import PYTHON
from graphlink.read.commnames import short_name
from graphlink.records import amount, ms, shortened
from graphlink.tables import grouped

_SMALL: Final = 1e-9
_NAME: Final = 40  # characters of a name in a sentence
Sides = tuple[
    tuple[float, float], tuple[float, float]
]  # how often something is done, and its time in ns, before and after


def place(path: Path) -> str:
    """Return what a sentence has room for of a path: the op, and the modules or ranges that it is in, or else the op
    around it.
    """
    inside = [name for name in path if "::" not in name][-2:]
    ops = [name for name in path if "::" in name][-1 if inside else -2 :]
    kept = [*inside, *ops]
    left_out = ["..."] if len(kept) < len(path) else []
    return "/".join([*left_out, *(shortened(name, _NAME) for name in kept)])


def structure(pairs: Sequence[Pair], noise: Noise, matched: Matched, per: str) -> Iterator[Change]:
    """Yield what changed in the calls of a rank; of an operation that is called more or less often not what is inside
    it, of one with other kernels not the calls that launch them."""
    for one in _structure(pairs, noise, matched, per):
        if noise.exact or one.kind == "synchronisation" or abs(one.change_ns or 0) >= LEAST_SHARE * noise.step_ns:
            yield one


def _structure(pairs: Sequence[Pair], noise: Noise, matched: Matched, per: str) -> Iterator[Change]:
    repeats = matched.repeats
    by_path = grouped((pair.path, pair) for pair in pairs)
    other = {
        path: mine
        for path, mine in by_path.items()
        if path not in ((), (PYTHON,))  # () is no operation: what it holds is named by itself
        and not loads(path)
        and any(noise.counts_differ(pair, repeats) for pair in mine if pair.of == "host")
    }
    tops = {path: next((path[:k] for k in range(1, len(path)) if path[:k] in other), path) for path in other}
    inside = grouped((tops[path], pair) for path, mine in other.items() for pair in mine)
    yield from (_operation(path, mine, repeats, per) for path, mine in inside.items())
    calls: list[Pair] = []
    for path, mine in by_path.items():
        if path not in other:
            found = [pair for pair in mine if pair.of not in ("host", "late") and noise.counts_differ(pair, repeats)]
            yield from _inside(path, found, repeats, per)
            calls += [] if any(pair.of in DEVICE for pair in found) else [pair for pair in found if pair.of == "call"]
    if matched.by_name:
        yield from _calls(calls, per)
    yield from _streams(pairs, noise, per)


def _calls(found: Sequence[Pair], per: str) -> Iterator[Change]:
    """Yield GPU calls by name that are made more or less often where what they launch is not."""
    for name in dict.fromkeys(pair.name for pair in found):
        mine = [pair for pair in found if pair.name == name]
        counts = _counts(mine)
        path = mine[0].path if len(mine) == 1 else ()
        where = f" in {place(path)}" if path else ""
        what = f"{name}{where} {_often(*counts, per)}"
        yield _change("call", what, path, (counts, _times(mine, "call")), f"calls {per}", f"in the call {per}", name)


def _times(pairs: Sequence[Pair], *of: str) -> tuple[float, float]:
    """Return the time of parts before and after."""
    mine = [pair.mean_ns for pair in pairs if pair.of in of]
    return sum(one for one, _ in mine), sum(other for _, other in mine)


def _counts(pairs: Sequence[Pair]) -> tuple[float, float]:
    return sum(pair.counts[0] for pair in pairs), sum(pair.counts[1] for pair in pairs)


def _operation(path: Path, mine: Sequence[Pair], repeats: float, per: str) -> Change:
    """Return the change of an operation, with all inside it, that is called more or less often: its waits if it waits,
    else its device time, else its host time."""
    rows = next(pair for pair in mine if pair.of == "host" and pair.path == path)
    before, after = rows.counts
    waits, device, host = _times(mine, "waiting_call"), _times(mine, *DEVICE), _times(mine, "host", "call")
    calls = [sum(pair.counts[k] for pair in mine if pair.of == "waiting_call") for k in (0, 1)]
    syncs = abs(calls[1] - calls[0] * repeats) > _SMALL
    sort, times = next((item for item in (("wait", waits), ("device", device)) if any(item[1])), ("host", host))
    name = next((pair.name for pair in mine if pair.of == "waiting_call"), "") if syncs else ""
    waited = f"; it waits for the GPU in {name}" if syncs else ""
    kind = "synchronisation" if syncs else "operation"
    what = f"{place(path)} {_often(before, after, per)}{waited}"
    return _change(kind, what, path, ((before, after), times), f"calls {per}", f"of {sort} time {per}", name)


def _often(before: float, after: float, per: str) -> str:
    """Return how often something is done: ``came``, ``went``, or from how often to how often."""
    if before and after:
        return f"is done {amount(before)} -> {amount(after)} times {per}"
    return f"went: {amount(before)} {per}" if before else f"came: {amount(after)} {per}"


def _change(
    kind: str, what: str, path: Path, sides: Sides, unit: str, took: str, name: str, evidence: str = ""
) -> Change:
    """Return a change of ``sides``; ``took``: what its times are of, as evidence, if there is no other."""
    counts, times = sides
    return change(
        "structure",
        kind,
        what,
        (round(counts[0], 6), round(counts[1], 6)),
        unit,
        path=list(path),
        name=name,
        change_ns=round(times[1] - times[0]),
        evidence=evidence or f"{ms(times[0])} -> {ms(times[1])} ms {took}",
    )


def _inside(path: Path, other: Sequence[Pair], repeats: float, per: str) -> Iterator[Change]:
    """Yield what came or went inside an operation that is called as often: kernels and waits."""
    device = [pair for pair in other if pair.of in DEVICE]
    where = f" in {place(path)}" if path else ""
    if device:
        yield from _kernels(path, device, repeats, per, where)
    for pair in other:
        if pair.of == "waiting_call":
            what = f"waiting for the GPU by {pair.name}{where} {_often(*pair.counts, per)}"
            sides = pair.counts, pair.mean_ns
            yield _change("synchronisation", what, path, sides, f"calls {per}", f"in the call {per}", pair.name)


def _kernels(path: Path, other: Sequence[Pair], repeats: float, per: str, where: str) -> Iterator[Change]:
    """Yield kernels that came or went; where as many came as went, they were replaced."""
    came = [pair for pair in other if pair.counts[1] > pair.counts[0] * repeats]
    went = [pair for pair in other if pair.counts[1] < pair.counts[0] * repeats]
    more, fewer = (sum(abs(pair.counts[1] - pair.counts[0] * repeats) for pair in pairs) for pairs in (came, went))
    names = [max(pairs, key=lambda pair: abs(pair.change_ns)).name for pairs in (went, came) if pairs]
    mine = other if len(names) > 1 else came or went
    sides, took = (_counts(mine), _times(mine, *DEVICE)), f"of device time {per}"
    if len(names) > 1:
        what = f"other kernels{where}: {_short(names[0])} -> {_short(names[1])}{', ...' if len(other) > 2 else ''}"
        took += f"; {amount(fewer)} went and {amount(more)} came {per}"
        yield _change("kernels", what, path, sides, f"kernels {per}", took, names[1])
    elif names:
        what = f"{_short(names[0])}{', ...' if len(mine) > 1 else ''}{where} {_often(*sides[0], per)}"
        yield _change("kernel", what, path, sides, f"kernels {per}", took, names[0])


def _short(name: str) -> str:
    return shortened(short_name(name), 48) if name else "(not by name)"


def _streams(pairs: Sequence[Pair], noise: Noise, per: str) -> Iterator[Change]:
    """Yield work that ran on another stream than most of what was on its stream before. Numbers of streams may all
    differ.
    """
    both = [
        pair
        for pair in pairs
        if pair.of in DEVICE and all(pair.mean_ns) and all(len(side) == 1 for side in pair.streams)
    ]
    streams = [(next(iter(before)), next(iter(after))) for before, after in (pair.streams for pair in both)]
    moved = grouped(zip(streams, both, strict=True))
    took_ns = {which: sum(pair.mean_ns[0] for pair in mine) for which, mine in moved.items()}
    usual = dict(sorted(moved, key=lambda which: (took_ns[which], which[1])))
    owner = {other: one for one, other in sorted(moved, key=lambda which: (took_ns[which], which[0]))}
    for (one, other), mine in moved.items():
        if usual[one] == other and owner[other] == one:
            continue
        times = _times(mine, *DEVICE)
        if max(times) < LEAST_SHARE * noise.step_ns and not noise.exact:
            continue
        first = max(mine, key=lambda pair: pair.mean_ns[0])
        shared = other in usual.values() and owner[other] != one
        what = f"{place(first.path)}{', ...' if len(mine) > 1 else ''} runs on stream {other[1]}, not {one[1]}"
        behind = ", behind the work that is there" if shared else ", a stream of its own"
        sides = _counts(mine), (0.0, times[1])
        evidence = f"{ms(times[1])} ms of device time {per} moved"
        yield _change("stream", what + behind, first.path, sides, f"device ops {per}", "", first.name, evidence)
