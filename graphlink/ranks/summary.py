"""All ranks together in ``summary.json`` (key ``run``), and the table printed of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from graphlink.figures import figure
from graphlink.graph.gains import FamilyGain
from graphlink.ranks.records import GroupKey
from graphlink.records import (
    Lines,
    Short,
    Table,
    against_recorded,
    counted,
    first_few,
    in_ms,
    share_word,
    shares_words,
    size,
)
from graphlink.tables import grouped
from graphlink.wings import all_of, with_fields

NOBODY: Final = "no rank is late again and again"
SHOWN: Final = 4  # findings of a sort that are printed
GROUPS_SHOWN: Final = 12
PLACES: Final = {
    "before": "before those that all ranks have",
    "after": "after those that all ranks have",
    "between": "between those that all ranks have",
    "everywhere": "of groups in which nothing was matched",
}
LISTED: Final = 100  # entries of a list of findings; what is beyond is counted in a warning


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a group: sums over the meetings that count; skew and waiting on the run's clock.

    ``wait_ns`` is over all members, ``transfer_ns`` and ``bytes`` once a meeting. Bandwidths: bytes per second of
    transfer, latency included, ``bus`` with the factors of nccl-tests. None where not all members were recorded (what
    the others kept them waiting is in the transfer) and for rows of the host, whose times hold more than the transfer.
    """

    type: Annotated[str, figure("operation", unit="word")]
    count: Annotated[int, figure("times")]
    set_apart: Annotated[int, figure("excluded", means="apart")]  # meetings that count in none of the sums
    bytes: int  # as ASTRA-sim counts them, of one rank
    skew_median_ns: Annotated[int, figure("skew, median", means="skew")]
    skew_p95_ns: Annotated[int, figure("skew, 95 %", means="skew")]
    skew_max_ns: int
    wait_ns: int
    transfer_ns: int
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: Annotated[float | None, figure("bus bandwidth", unit="rate", means="bandwidth")]


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that holds up others: it came last by more than clocks tell in ``times_late`` of ``meetings``, and
    ``wait_share`` of all waiting was for it. ``evidence`` says it in words.
    """

    rank: int
    times_late: int
    meetings: int
    wait_share: float
    lateness_median_ns: int
    chance: float  # of any member of the group to be last so often, were all alike
    evidence: str


class Group(Short, msgspec.Struct, frozen=True, kw_only=True):
    """A communicator. ``id`` as in ``comm_group.json``, None for one that no graph names; ``recorded``: members with a
    recording.
    """

    id: int | None
    name: str
    ranks: list[int]
    recorded: int
    collectives: list[Collectives]
    last: dict[str, int]  # how often each rank came last
    straggler: Straggler | None
    suspect: Straggler | None = None


class RankWait(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    wait_ns: int  # in communication, until the last rank came
    transfer_ns: int
    last: Annotated[int, figure("came last", means="last")]


class Unmatched(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank that others lack. ``where``: before, after, between or everywhere; positions in its ops
    of the group.
    """

    rank: int
    group: str
    where: str
    count: int
    first: int
    last: int
    first_told: str
    last_told: str
    lacking: list[int]


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """``complete``: meetings of which every member was recorded. ``alone``: ops that need no other recorded rank, by
    reason.
    """

    collectives: int
    messages: int
    complete: int
    by_sequence: int
    alone: dict[str, int]
    unmatched: int
    listed: list[Unmatched]
    conflicts: list[str]


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """run = own + offset_ns + drift_ppm / 1e6 * (own - from_ns). ``same_as``: the rank whose clock it is by the data,
    None for its own.
    """

    rank: int
    host: str
    offset_ns: int
    drift_ppm: float
    from_ns: int
    residual_ns: int
    same_as: int | None
    known: bool


class Clocks(Short, msgspec.Struct, frozen=True, kw_only=True):
    """``residual_ns``: how far matched ends still differ, the tolerance of all that compares ranks."""

    residual_ns: int
    ranks: list[RankClock]


class SetApart(msgspec.Struct, frozen=True, kw_only=True):
    """A meeting that counts in no sum, and why."""

    group: str
    type: str
    number: int
    skew_ns: int
    late_rank: int | None
    why: str


class RunReplay(Short, msgspec.Struct, frozen=True, kw_only=True):
    """All graphs together: dependencies only, collectives meet, receives wait. ``ran``: nodes that ran.
    ``measured_ns``: from the first recorded start to the last end on the run's clock; None where the clocks have
    nothing in common.
    """

    measured_ns: int | None
    replayed_ns: int
    error_pct: float | None
    nodes: int
    ran: int
    path_ns: int  # the critical path over all ranks; what is missing to replayed_ns passed before its first rank began
    path_from_rank: int | None
    path_share_ns: dict[str, int]
    path_rank_ns: dict[str, int]  # what of it runs on each rank
    top_gain: FamilyGain | None = None  # of the names on it that several nodes have, the one that takes most of it


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A Chakra graph of the same rank that lay next to the recordings. ``same_collectives``: equal type and bytes, in
    any order.
    """

    file: str
    rank: int
    nodes: int
    own_nodes: int
    dependencies: int
    own_dependencies: int
    collectives: int
    own_collectives: int
    same_collectives: int
    ordered_alike: bool
    replayed_ns: int
    error_pct: float  # of its ideal replay against the recorded time of the rank
    finished: bool
    check_errors: int  # rules of graphlink check that it breaks


@with_fields
class Run(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Several ranks together; docs/ranks.md has the definitions."""

    world_size: int
    ranks: int
    groups: list[Group]
    matched: Matched
    clocks: Clocks
    waits: list[RankWait]
    set_apart: list[SetApart]
    straggler: Straggler | None
    suspect: Straggler | None = None  # where too few meetings tell of a straggler
    replay: RunReplay | None = None
    compared: list[Compared] = []

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field of a wing."""


def group_name(key: GroupKey, ids: Mapping[GroupKey, int]) -> str:
    """Name a group by its id, or by its recorded name where no graph names it."""
    return f"group {ids.get(key, key[1] or '(unnamed)')}"


def run_table(run: Run) -> Lines:
    """Return the block of the run in the printed summary."""
    unmatched, conflicts = _unmatched(run.matched.listed), run.matched.conflicts
    groups = sorted(run.groups, key=lambda g: (g.id is None, g.id))
    left, late = len(groups) - GROUPS_SHOWN, run.straggler or run.suspect
    excluded = [
        f"{a.type} {a.number} of {a.group}, {'the last rank' if a.late_rank is None else f'rank {a.late_rank}'} came "
        f"{in_ms(a.skew_ns)} late, which counts nowhere: {a.why}"
        for a in run.set_apart[:SHOWN]
    ]
    rows = [
        ("ranks", f"{run.ranks:,} of {run.world_size:,} recorded"),
        ("matched", _matched(run.matched)),
        *(("  unmatched", text) for text in unmatched[:SHOWN]),
        *_more("  unmatched", len(unmatched)),
        *(("  conflict", text) for text in conflicts[:SHOWN]),
        *_more("  conflict", len(conflicts)),
        ("clocks", _clocks(run.clocks)),
        *(row for group in groups[:GROUPS_SHOWN] for row in _group_rows(group)),
        *([("...", f"{left} more groups")] if left > 0 else []),
        *(("excluded", text) for text in excluded),
        *_more("excluded", len(run.set_apart)),
        *([("straggler", late.evidence if late else NOBODY)] if groups else []),
        *all_of("run_lines", run),
        *([("replayed", _replayed(run.replay)), ("critical path", _path(run.replay))] if run.replay else []),
        *(("compared", _compared(c)) for c in run.compared),
    ]
    return ["all ranks", Table(rows)]


def matched_lines(run: Run) -> list[str]:
    """Return what is known of partners and clocks: a line each."""
    unmatched = _unmatched(run.matched.listed)
    return [
        f"Matched: {_matched(run.matched)}.",
        *(f"Unmatched: {line}." for line in unmatched[:SHOWN]),
        *(more for _, more in _more("", len(unmatched))),
        *(f"Conflict: {line}." for line in run.matched.conflicts[:SHOWN]),
        f"Clocks: {_clocks(run.clocks)}.",
    ]


def _matched(matched: Matched) -> str:
    known = ((matched.collectives, "collective"), (matched.messages, "message"))
    met = " and ".join(counted(number, word) for number, word in known if number)
    parts = [f"{met} joined over the ranks" if met else "none: no communication was recorded with its group"]
    parts += [f"{count:,} ops alone: {reason}" for reason, count in matched.alone.items()]
    missing = f"{counted(matched.unmatched, 'op')} without a partner" if matched.unmatched else ""
    return "; ".join([*parts, missing] if missing else parts)


def _unmatched(listed: list[Unmatched]) -> list[str]:
    """Return a line for each set of ranks that lack something in one place, those that lack most first."""
    places = grouped(((tuple(left.lacking), left.where), left) for left in listed)
    lines = []
    places_of = sorted(
        ((_lacked(lefts), ranks, where, lefts[0]) for (ranks, where), lefts in places.items()),
        key=lambda entry: -entry[0],
    )
    for count, ranks, where, first in places_of:
        who = _ranks([*ranks])
        last = "" if first.count == 1 else f", last number {first.last}"
        lines.append(
            f"{who} lack{'s' * (len(ranks) == 1)} {count:,} {PLACES[where]}, such as number {first.first} of "
            f"{first.group} on rank "
            f"{first.rank}, {first.first_told}{last}"
        )
    return lines


def _lacked(lefts: list[Unmatched]) -> int:
    """Count for each group as many as the rank that has most of them."""
    most: dict[str, Counter[int]] = {}
    for left in lefts:
        most.setdefault(left.group, Counter())[left.rank] += left.count
    return sum(max(ranks.values()) for ranks in most.values())


def _clocks(clocks: Clocks) -> str:
    own = [c for c in clocks.ranks if c.known and c.same_as is None]
    unknown = [c.rank for c in clocks.ranks if not c.known]
    moved = [c for c in own if c.offset_ns or c.drift_ppm]
    compared = clocks.residual_ns > 1 and len(unknown) < len(clocks.ranks) - 1  # 1 ns: there was nothing to compare
    if moved:
        texts = []
        for c in moved[:SHOWN]:
            who = _ranks([c.rank, *(other.rank for other in clocks.ranks if other.same_as == c.rank)])
            texts.append(
                f"{who} moved by {c.offset_ns / 1e3:+,.1f} us" + (f" {c.drift_ppm:+.2f} ppm" if c.drift_ppm else "")
            )
        text = "; ".join(texts)
        text += "; ..." * (len(moved) > SHOWN)
    else:
        text = "as recorded: they agree" if compared and not unknown else "as recorded"
    if unknown:
        text += f"; nothing connects {_ranks(unknown)} with the others"
    within = f"{clocks.residual_ns / 1e3:,.1f} us"
    return text + (f"; ends of the same collective lie within {within} of each other" if compared else "")


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == [*range(ranks[0], ranks[-1] + 1)]:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {first_few(ranks, SHOWN)}"


def _group_rows(group: Group) -> list[tuple[str, str]]:
    members = first_few(group.ranks, SHOWN)
    some = (
        f", {group.recorded} recorded: their transfer also holds how long they waited for the others"
        if group.recorded != len(group.ranks)
        else ""
    )
    name = f"group {'-' if group.id is None else group.id}"
    rows = [(name, f"{group.name or '(unnamed)'}: {len(group.ranks)} ranks ({members}){some}")]
    for c in group.collectives:
        bandwidth = (
            "" if c.bus_bytes_per_s is None else f", {c.bus_bytes_per_s / 1e9:,.3f} GB/s on the bus (with latency)"
        )
        apart = f" (and {c.set_apart} excluded)" if c.set_apart else ""
        rows.append(
            (
                f"  {c.type}",
                f"{c.count:,} times{apart}, {size(c.bytes)} in all; the last rank came {in_ms(c.skew_median_ns)} after "
                f"the first (median; 95 %: {in_ms(c.skew_p95_ns)}); all of them waited {in_ms(c.wait_ns)}; transfer "
                f"{in_ms(c.transfer_ns)}{bandwidth}",
            )
        )
    return rows


def _replayed(replay: RunReplay) -> str:
    ran = f"; only {replay.ran:,} of {replay.nodes:,} nodes ran" if replay.ran < replay.nodes else ""
    known = replay.error_pct is not None and replay.measured_ns is not None
    beside = f", {against_recorded(replay.error_pct or 0.0).removeprefix('takes ')}" if known else ""
    return f"{in_ms(replay.replayed_ns)}{beside}{ran}"


def _path(replay: RunReplay) -> str:
    whole = replay.path_ns or 1
    before = replay.replayed_ns - replay.path_ns
    late = (
        f", from rank {replay.path_from_rank}, whose recording began {in_ms(before)} after the first" if before else ""
    )
    parts = shares_words({share_word(name): ns for name, ns in replay.path_share_ns.items()}, whole)
    most = sorted(replay.path_rank_ns.items(), key=lambda item: (-item[1], len(item[0]), item[0]))
    on = first_few([f"{rank} {100 * ns / whole:.1f} %" for rank, ns in most], SHOWN)
    return f"{in_ms(replay.path_ns)}{late}: {parts}; on rank {on}"


def _compared(c: Compared) -> str:
    alike = "in the same order" if c.ordered_alike else f"{c.own_collectives:,} here"
    return (
        f"{c.file}: {c.nodes:,} nodes ({c.own_nodes:,} here), {c.dependencies:,} dependencies "
        f"({c.own_dependencies:,}); "
        f"{c.same_collectives:,} of its {c.collectives:,} typed collectives are here, {alike}; "
        f"replays in {in_ms(c.replayed_ns)}, {c.error_pct:+.3f} % of what was recorded; graphlink check: "
        f"{c.check_errors} errors"
    )


def _more(name: str, count: int) -> list[tuple[str, str]]:
    return [(name, f"... and {count - SHOWN:,} more of them")] if count > SHOWN else []
