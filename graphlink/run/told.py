"""What ``summary.json`` says of the ranks of a run together, from what joining them found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET

from graphlink.link.commtypes import CollectiveType
from graphlink.model import I64, NOWHERE, CommKind
from graphlink.nccl.summary import over_ranks
from graphlink.ranks import summary as told
from graphlink.ranks.figures import RankTotals, Totals
from graphlink.ranks.records import Clock, GroupKey
from graphlink.ranks.stragglers import Straggler
from graphlink.ranks.times import Apart
from graphlink.replay.across import CriticalAcross
from graphlink.report.summary import Rank
from graphlink.run.join import Run, told_conflict

_SHARDS = (CollectiveType.ALL_GATHER, CollectiveType.GATHER, CollectiveType.SCATTER)  # whose size is a rank's part
MESSAGE = "SEND"


def run_told(run: Run, path: CriticalAcross | None, compared: list[told.Compared], ranks: Sequence[Rank]) -> told.Run:
    """Linear in what is told; lists of findings are cut at ``summary_run.LISTED``, which ``cut_short`` tells. ``ranks``: by rank."""
    figures, meetings = run.figures, run.matching.meetings
    recorded = set(run.ranks).difference(run.silent)
    ids = run.group_ids
    collective = meetings.kind == CommKind.COLLECTIVE
    unmatched = run.matching.unmatched
    side_files = [(rank.rank, rank.nccl) for rank in ranks if rank.nccl is not UNSET]
    return told.Run(
        world_size=run.world_size,
        ranks=len(run.ranks),
        groups=[_group(run, k, key, ids.get(key), recorded) for k, key in enumerate(meetings.groups)],
        matched=told.Matched(
            collectives=int(np.count_nonzero(collective)),
            messages=int(np.count_nonzero(~collective)),
            complete=int(np.count_nonzero(meetings.complete)),
            by_sequence=run.matching.by_sequence,
            alone=dict(sorted(run.matching.alone.items())),
            unmatched=sum(u.count for u in unmatched),
            listed=[
                told.Unmatched(
                    rank=u.rank,
                    group=_name(u.group, ids.get(u.group)),
                    where=u.where,
                    count=u.count,
                    first=u.first,
                    last=u.last,
                    first_told=u.first_told,
                    last_told=u.last_told,
                    lacking=list(u.lacking[: told.LISTED]),
                )
                for u in unmatched[: told.LISTED]
            ],
            conflicts=[told_conflict(c, ids) for c in run.matching.conflicts[: told.LISTED]],
        ),
        clocks=told.Clocks(residual_ns=run.clocks.residual_ns, ranks=[_clock(c, run.hosts[c.rank]) for c in run.clocks.clocks]),
        waits=_waits(figures.rank_total),
        set_apart=_set_apart(run, ids),
        straggler=_straggler(figures.straggler, suspected=False),
        suspect=_straggler(figures.straggler, suspected=True),
        replay=_replay(path),
        compared=compared,
        nccl=over_ranks(side_files) if side_files else UNSET,
    )


def cut_short(run: Run) -> tuple[str, ...]:
    """What ``run_told`` leaves out of its lists, in words."""
    unmatched = run.matching.unmatched
    found = {
        "findings of unmatched communication": len(unmatched),
        "conflicts": len(run.matching.conflicts),
        "meetings set apart": int(np.count_nonzero(run.figures.apart != Apart.NO)),
        "ranks that lack the same communication": max((len(u.lacking) for u in unmatched), default=0),
    }
    return tuple(f"{told.LISTED} of {n:,} {what} are listed in summary.json" for what, n in found.items() if n > told.LISTED)


def _replay(path: CriticalAcross | None) -> told.RunReplay | None:
    if path is None:
        return None
    return told.RunReplay(
        measured_ns=path.measured_ns,
        replayed_ns=path.before_ns + path.length_ns,
        path_ns=path.length_ns,
        path_from_rank=path.nodes.rank[0] if path.nodes.rank else None,
        error_pct=path.error_pct,
        nodes=path.nodes_all,
        ran=path.nodes_run,
        path_share_ns=path.share_ns,
        path_rank_ns={str(r.rank): r.ns for r in path.ranks if r.ns},
    )


def _group(run: Run, number: int, key: GroupKey, id_: int | None, recorded: set[int]) -> told.Group:
    members, name = key
    figures = run.figures

    def measured(row: int) -> bool:
        message = figures.by_type.type[row] == NOWHERE
        return number not in run.host_groups and (message or recorded.issuperset(members))

    rows = np.flatnonzero(figures.by_type.group == number)
    ranks = figures.rank_in_group
    mine = np.flatnonzero((ranks.group == number) & (ranks.late > 0))
    return told.Group(
        id=id_,
        name=name,
        ranks=list(members),
        recorded=len(recorded.intersection(members)),
        collectives=[_collectives(figures.by_type, row, len(members), measured=measured(row)) for row in rows.tolist()],
        last={str(rank): late for rank, late in zip(ranks.rank[mine].tolist(), ranks.late[mine].tolist(), strict=True)},
        straggler=_straggler(figures.stragglers[number], suspected=False),
    )


def _collectives(totals: Totals, row: int, members: int, *, measured: bool) -> told.Collectives:
    kind, count = int(totals.type[row]), int(totals.count[row])
    size = int(totals.bytes[row])
    transfer = int(totals.transfer_ns[row])
    return told.Collectives(
        type=MESSAGE if kind == NOWHERE else CollectiveType(kind).name,
        count=count,
        set_apart=int(totals.set_apart[row]),
        bytes=size // members if kind in _SHARDS else size,
        skew_median_ns=int(totals.skew_ns.median[row]),
        skew_p95_ns=int(totals.skew_ns.p95[row]),
        skew_max_ns=int(totals.skew_ns.most[row]),
        wait_ns=int(totals.wait_ns[row]),
        transfer_ns=transfer,
        algorithm_bytes_per_s=round(float(totals.algbw[row])) if transfer and measured else None,
        bus_bytes_per_s=round(float(totals.busbw[row])) if transfer and measured else None,
    )


def _waits(ranks: RankTotals) -> list[told.RankWait]:
    columns: tuple[I64, ...] = (ranks.rank, ranks.wait_ns, ranks.transfer_ns, ranks.late)
    return [
        told.RankWait(rank=rank, wait_ns=wait, transfer_ns=transfer, last=last)
        for rank, wait, transfer, last in zip(*(c.tolist() for c in columns), strict=True)
    ]


def _set_apart(run: Run, ids: dict[GroupKey, int]) -> list[told.SetApart]:
    meetings, figures = run.matching.meetings, run.figures
    ranks = sorted(set(run.ranks).difference(run.silent))
    out = []
    for m in np.flatnonzero(figures.apart != Apart.NO)[: told.LISTED].tolist():
        late, kind, key = int(figures.times.late[m]), int(meetings.type[m]), meetings.groups[int(meetings.group[m])]
        members = [ranks[position] for position in meetings.rank[meetings.first[m] : meetings.first[m + 1]].tolist()]
        out.append(
            told.SetApart(
                group=_name(key, ids.get(key)) if kind != NOWHERE else f"ranks {' and '.join(map(str, members))}",
                type=MESSAGE if kind == NOWHERE else CollectiveType(kind).name,
                number=int(meetings.turn[m]),
                skew_ns=int(figures.times.skew_ns[m]),
                late_rank=None if late == NOWHERE else ranks[late],
                why=Apart(int(figures.apart[m])).words,
            )
        )
    return out


def _straggler(found: Straggler | None, *, suspected: bool) -> told.Straggler | None:
    if found is None or found.suspected != suspected:
        return None
    return told.Straggler(
        rank=found.rank,
        times_late=found.times_late,
        meetings=found.meetings,
        wait_share=round(found.share, 6),
        lateness_median_ns=found.lateness_ns,
        chance=float(f"{found.chance:.3g}"),
        evidence=found.words,
    )


def _clock(clock: Clock, host: str) -> told.RankClock:
    return told.RankClock(
        rank=clock.rank,
        host=host,
        offset_ns=clock.offset_ns,
        drift_ppm=round(clock.drift * 1e6, 6),
        from_ns=clock.from_ns,
        residual_ns=clock.residual_ns,
        same_as=None if clock.shares == clock.rank else clock.shares,
        known=clock.known,
    )


def _name(key: GroupKey, id_: int | None) -> str:
    return f"group {id_}" if id_ is not None else f"group {key[1] or '(unnamed)'}"
