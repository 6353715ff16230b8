"""Standstill on the page of a run: what of it the graphs explain, what not, and how far they are to be trusted."""

from __future__ import annotations

from typing import Final

from graphlink.figures import column, columns, declared
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Part, Words
from graphlink.page.words import table
from graphlink.records import shortened
from graphlink.report.summary import Rank
from graphlink.standstill.records import Piece, Stood

MOST_ROWS: Final = 100


def trust(found: Found) -> Words:
    """Tell how much of the standstill is explained on the rank where least is, of those that waited; nothing without
    ranks.
    """
    if not found.ranks:
        return []
    waited = [rank for rank in found.ranks if 100 * rank.standstill.whole.ns >= rank.replay.measured_ns]
    least = min(waited or found.ranks, key=lambda rank: float(rank.standstill.whole.explained))
    words = least.standstill.trust(least.replay.measured_ns)
    where = f" (on rank {least.rank}; on the others more)" if len(found.ranks) > 1 else ""
    return [f"{words[0].upper()}{words[1:]}{where}."]


def recording_parts(found: Found) -> list[Part]:
    """Return how much of what stood still the graph explains, the least explained rank first, and the largest pieces
    that it does not.
    """
    ranks = sorted(found.ranks, key=lambda rank: float(rank.standstill.whole.explained))[:MOST_ROWS]
    errors = [Cell(f"{rank.replay.error_pct:.3g} %", rank.replay.error_pct) for rank in ranks]
    shown = columns(
        Rank, ranks, "rank", column("replay error", "number", errors, means="replay", name="replay/error_pct")
    )
    for name, title in (("calls", "in calls"), ("threads", "threads stood"), ("streams", "streams stood")):
        stood = [getattr(rank.standstill, name) for rank in ranks]
        times = [one.ns for one in stood]
        shown.append(column(title, "ns", times, means="explained", name=f"standstill/{name}/ns"))
        shown.append(column("explained", "number", map(_explained, stood)))
    whole = [_explained(rank.standstill.whole) for rank in ranks]
    fixed = [rank.standstill.path.pinned_ns for rank in ranks]
    shown.append(column("all explained", "number", whole, means="explained"))
    shown.append(column("fixed on the path", "ns", fixed, means="fixed", name="standstill/path/pinned_ns"))
    rows = [(f"/{found.at[rank.rank]}",) for rank in ranks]
    caption = "How far to trust the graphs: what stood still, and what of it is explained"
    return [table("standstill", caption, shown, "summary.json#/ranks", rows=rows), *_largest(found)]


def _explained(stood: Stood) -> Cell:
    return Cell(f"{stood.explained} %" if stood.ns else "", float(stood.explained) / 100)


def _largest(found: Found) -> list[Part]:
    pieces = [(rank, k, one) for rank in found.told for k, one in enumerate(found.rank(rank).standstill.largest)]
    pieces.sort(key=lambda piece: -piece[2].ns)
    if not pieces:
        return []
    some = pieces[:MOST_ROWS]
    shown = columns(
        Piece,
        [piece for *_, piece in some],
        "ns",
        column("rank", "number", [rank for rank, *_ in some]),
        declared(Piece, "start_ns")._replace(values=[found.place_cell(rank, one.start_ns) for rank, _, one in some]),
        column("what stood still", "text", [Cell(shortened(one.what, 90), whole=one.what) for *_, one in some]),
        "record",
    )
    rows = [(f"/{found.at[rank]}/standstill/largest/{k}",) for rank, k, _ in some]
    return [table("unexplained", "Longest standstill that nothing explains", shown, "summary.json#/ranks", rows=rows)]
