"""What ``summary.json`` says of all ranks together (key ``run``), and the table printed of it."""

from __future__ import annotations

from typing import Final

import msgspec

LISTED: Final = 100  # entries of a list of findings; what is beyond is counted in a warning


class Collectives(msgspec.Struct, frozen=True, kw_only=True):
    """One function of a group (or the messages of all): sums over the meetings that count; skew and waiting on the run's clock.

    ``wait_ns`` is over all members, ``transfer_ns`` and ``bytes`` once a meeting. Bandwidths: bytes per second of transfer, ``bus`` with the
    factors of nccl-tests. None where nothing was measured.
    """

    type: str
    count: int
    bytes: int  # as ASTRA-sim counts them, of one rank
    skew_median_ns: int
    skew_p95_ns: int
    skew_max_ns: int
    wait_ns: int
    transfer_ns: int
    algorithm_bytes_per_s: float | None
    bus_bytes_per_s: float | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A communicator. ``id`` as in ``comm_group.json``, None for one that no graph names; ``recorded``: how many members have a recording."""

    id: int | None
    name: str
    ranks: list[int]
    recorded: int
    collectives: list[Collectives]
    last: dict[str, int]  # how often each rank came last
    straggler: Straggler | None


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that holds up others: it came last in ``last`` of ``meetings``, and ``wait_share`` of all their waiting was for it."""

    rank: int
    last: int
    meetings: int
    wait_share: float
    caused_wait_ns: int
    lateness_median_ns: int
    evidence: str


class RankWait(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    wait_ns: int  # in communication, until the last rank came
    transfer_ns: int
    last: int


class Unmatched(msgspec.Struct, frozen=True, kw_only=True):
    """Communication of a rank that others lack: ``where`` is before, after, between or everywhere; positions in the rank's ops of the group."""

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
    """``complete``: meetings of which every member was recorded. ``alone``: ops that need no other recorded rank, by reason."""

    collectives: int
    messages: int
    complete: int
    by_sequence: int
    alone: dict[str, int]
    unmatched: int
    listed: list[Unmatched]
    conflicts: list[str]


class RankClock(msgspec.Struct, frozen=True, kw_only=True):
    """run = own + offset_ns + drift_ppm / 1e6 * (own - from_ns). ``same_as``: the rank whose clock it is by the data, None for its own."""

    rank: int
    host: str
    offset_ns: int
    drift_ppm: float
    from_ns: int
    residual_ns: int
    same_as: int | None
    known: bool


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """``residual_ns``: how far matched ends still differ, the tolerance of all that compares ranks."""

    residual_ns: int
    ranks: list[RankClock]


class SetApart(msgspec.Struct, frozen=True, kw_only=True):
    """A meeting that counts in no sum, and why."""

    group: str
    type: str
    number: int
    skew_ns: int
    late_rank: int
    why: str


class RunReplay(msgspec.Struct, frozen=True, kw_only=True):
    """All graphs together: dependencies only, collectives meet, receives wait. ``measured_ns``: from the first recorded start to the last end
    on the run's clock; None where the clocks have nothing in common. ``ran``: nodes that ran."""

    measured_ns: int | None
    replayed_ns: int
    error_pct: float | None
    nodes: int
    ran: int


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """A Chakra graph of the same rank that lay beside the recordings. ``same_collectives``: equal type and bytes, in any order."""

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


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Several ranks together; docs/ranks.md has the definitions."""

    world_size: int
    ranks: int
    groups: list[Group]
    matched: Matched
    clocks: Clocks
    waits: list[RankWait]
    set_apart: list[SetApart]
    straggler: Straggler | None
    replay: RunReplay | None = None
    compared: list[Compared] = []
