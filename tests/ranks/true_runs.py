"""A simulator of ranks that communicate: true times, clocks that are off, and what each rank records of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphlink.linking.commtypes import CollectiveType
from graphlink.model import I64, NOWHERE, CommKind
from graphlink.ranks.records import AlignedClock, GroupKey, Matches, RankComms

US, MS, S = 1_000, 1_000_000, 1_000_000_000
EPOCH_NS = 1_700_000_000 * S


@dataclass(frozen=True)
class Off:
    """A clock: own = true + ``offset_ns`` + ``drift`` * true, true counted from ``EPOCH_NS``."""

    offset_ns: int = 0
    drift: float = 0.0

    def own(self, true_ns: I64) -> I64:
        return EPOCH_NS + true_ns + self.offset_ns + np.rint(self.drift * true_ns).astype(np.int64)

    def true(self, own_ns: I64) -> I64:
        since = own_ns - EPOCH_NS - self.offset_ns
        return since - np.rint(self.drift / (1 + self.drift) * since).astype(np.int64)


@dataclass(frozen=True)
class Meet:
    """One true meeting: starts and ends of each member, by rank, as ns since the run began. ``kinds`` of a message:
    SEND and RECV.
    """

    group: GroupKey
    ranks: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    bytes: int = 1 << 20
    type: int = CollectiveType.ALL_REDUCE
    sender: int | None = None  # of a message
    on_host: bool = False


@dataclass
class Simulated:
    world: int
    meets: list[Meet]
    offs: dict[int, Off] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    began_ns: dict[int, int] = field(default_factory=dict)
    ended_ns: dict[int, int] = field(default_factory=dict)
    overhead: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    missing: frozenset[int] = frozenset()  # ranks whose recordings are not there
    resolution_ns: int = 1

    def record(self) -> tuple[tuple[RankComms, ...], Matches]:
        here = [r for r in range(self.world) if r not in self.missing]
        position = {r: k for k, r in enumerate(here)}
        kept = [m for m in self.meets if len([r for r in m.ranks if r in position]) >= 2]
        groups = tuple(sorted({m.group for m in kept}))
        code = {g: k for k, g in enumerate(groups)}
        rows: dict[int, list[tuple[int, ...]]] = {r: [] for r in here}
        for number, m in enumerate(kept):
            for r, start, end in zip(m.ranks, m.start_ns, m.end_ns, strict=True):
                if r in position:
                    peer, kind = NOWHERE, CommKind.COLLECTIVE
                    if m.sender is not None:
                        kind = CommKind.SEND if r == m.sender else CommKind.RECV
                        peer = next(o for o in m.ranks if o != r)
                    rows[r].append(
                        (
                            number,
                            kind,
                            m.type if m.sender is None else NOWHERE,
                            m.bytes,
                            code[m.group],
                            peer,
                            start,
                            end,
                            m.on_host,
                        )
                    )
        ranks, columns = [], {}
        for r in here:
            off = self.offs.get(r, Off())
            table = np.array(rows[r], np.int64).reshape(-1, 9)
            start, end = (self._rounded(off.own(table[:, k])) for k in (6, 7))
            order = np.lexsort((end, start))
            table, start, end = table[order], start[order], end[order]
            columns[r] = table, start
            n = len(table)
            bounds = [
                self.began_ns.get(r, int(table[:, 6].min(initial=0))),
                self.ended_ns.get(r, int(table[:, 7].max(initial=1))),
            ]
            over = off.own(np.array(self.overhead.get(r, []), np.int64).reshape(-1, 2))
            ranks.append(
                RankComms(
                    rank=r,
                    world_size=self.world,
                    host=self.hosts.get(r, ""),
                    resolution_ns=self.resolution_ns,
                    began_ns=int(off.own(np.array(bounds[0]))),
                    ended_ns=int(off.own(np.array(bounds[1]))),
                    groups=groups,
                    node=np.arange(n, dtype=np.int32),
                    row=np.arange(n, dtype=np.int32),
                    name=np.zeros(n, np.int32),
                    names=("",),
                    kind=table[:, 1].astype(np.uint8),
                    type=table[:, 2].astype(np.int32),
                    bytes=table[:, 3],
                    group=table[:, 4].astype(np.int32),
                    peer=table[:, 5],
                    tag=np.zeros(n, np.int64),
                    seq=np.full(n, NOWHERE, np.int64),
                    start_ns=start,
                    end_ns=end,
                    on_host=table[:, 8] != 0,
                    uneven=np.zeros(n, np.bool_),
                    overhead_start_ns=over[:, 0],
                    overhead_end_ns=over[:, 1],
                )
            )
        return tuple(ranks), self._meetings(here, kept, groups, columns)

    def _rounded(self, ns: I64) -> I64:
        return ns // self.resolution_ns * self.resolution_ns

    def _meetings(
        self, here: Sequence[int], kept: Sequence[Meet], groups: tuple[GroupKey, ...], columns: dict
    ) -> Matches:  # type: ignore[type-arg]
        entries = np.concatenate(
            [
                np.stack(
                    [columns[r][0][:, 0], np.full(len(columns[r][1]), k), np.arange(len(columns[r][1])), columns[r][1]],
                    axis=1,
                )
                for k, r in enumerate(here)
            ]
        )
        least = np.full(len(kept), np.iinfo(np.int64).max)
        np.minimum.at(least, entries[:, 0], entries[:, 3])
        order = np.argsort(least, kind="stable")
        place = np.empty(len(kept), np.int64)
        place[order] = np.arange(len(kept))
        entries[:, 0] = place[entries[:, 0]]
        entries = entries[np.lexsort((entries[:, 1], entries[:, 0]))]
        sorted_ = [kept[k] for k in order.tolist()]
        turns: dict[object, int] = {}
        turn = []
        for m in sorted_:
            key = (m.group, m.sender, m.ranks if m.sender is not None else None)
            turn.append(turns.get(key, 0))
            turns[key] = turn[-1] + 1
        of_op = []
        for k, r in enumerate(here):
            mine = entries[entries[:, 1] == k]
            own = np.full(len(columns[r][1]), NOWHERE, np.int32)
            own[mine[:, 2]] = mine[:, 0]
            of_op.append(own)
        there = set(here)
        return Matches(
            groups=groups,
            of_op=tuple(of_op),
            kind=np.array([CommKind.COLLECTIVE if m.sender is None else CommKind.SEND for m in sorted_], np.uint8),
            type=np.array([m.type if m.sender is None else NOWHERE for m in sorted_], np.int32),
            group=np.array([groups.index(m.group) for m in sorted_], np.int32),
            turn=np.array(turn, np.int64),
            complete=np.array([set(m.ranks) <= there for m in sorted_], np.bool_),
            first=np.searchsorted(entries[:, 0], np.arange(len(kept) + 1)).astype(np.int64),
            rank=entries[:, 1].astype(np.int32),
            op=entries[:, 2].astype(np.int32),
        )

    def error_ns(self, clocks: Sequence[AlignedClock]) -> int:
        """The most that a clock is off against the first rank's, over its whole recording."""
        worst = 0
        lowest = self.offs.get(clocks[0].rank, Off())
        for clock in clocks:
            off = self.offs.get(clock.rank, Off())
            ends = [m.end_ns[m.ranks.index(clock.rank)] for m in self.meets if clock.rank in m.ranks]
            true = np.linspace(self.began_ns.get(clock.rank, 0), self.ended_ns.get(clock.rank, max(ends)), 50).astype(
                np.int64
            )
            own = off.own(true)
            run = own + clock.offset_ns + np.rint(clock.drift * (own - clock.from_ns)).astype(np.int64)
            worst = max(worst, int(np.abs(run - lowest.own(true)).max()))
        return worst


def training(
    rng: np.random.Generator,
    groups: Sequence[tuple[int, ...]],
    messages: Sequence[tuple[int, int]] = (),
    *,
    count: int = 40,
    span_ns: int = 2 * S,
    jitter_ns: int = 3 * US,
    late_ns: int = 500 * US,
    slow: dict[int, int] | None = None,
    duration_ns: int = 200 * US,
    wrong: float = 0.0,
) -> list[Meet]:
    """``count`` meetings of each group and messages both ways of each pair, spread over ``span_ns``. ``slow``: what
    ranks come later by.
    """
    out = []
    slow = slow or {}
    everything = [(g, None) for g in groups] + [((min(p), max(p)), s) for p in messages for s in p]
    for ranks, sender in everything:
        if len(ranks) < 2:
            continue
        group = (ranks, "group" if sender is None else "pipe")
        for at in np.sort(rng.integers(0, span_ns, count)).tolist():
            start = at + rng.integers(0, late_ns, len(ranks)) + np.array([slow.get(r, 0) for r in ranks])
            end = start.max() + duration_ns + rng.integers(0, jitter_ns + 1, len(ranks))
            if rng.random() < wrong:  # matched with another one: some members saw something else, later or earlier
                off = rng.integers(-20 * MS, 20 * MS, len(ranks)) * (rng.random(len(ranks)) < 0.5)
                start, end = start + off, end + off
            out.append(Meet(group, ranks, tuple(start.tolist()), tuple(end.tolist()), sender=sender))
    return out


def offs(
    rng: np.random.Generator, ranks: int, *, offset_ns: int = 50 * MS, drift: float = 20e-6, per: int = 1
) -> dict[int, Off]:
    """Clocks, one for every ``per`` ranks."""
    machines = [
        Off(int(rng.integers(-offset_ns, offset_ns + 1)), float(rng.uniform(-drift, drift)))
        for _ in range(-(-ranks // per))
    ]
    return {r: machines[r // per] for r in range(ranks)}
