"""Standstill on the page of a run: what of it the graphs explain, what not, and how far they are to be trusted."""

from __future__ import annotations

from typing import Final

from graphlink.figures import column, columns, declared
from graphlink.page.found import Found
from graphlink.page.parts import Cell, Column, Figure, Part, Row, Table, Words
from graphlink.page.words import table, time_cell
from graphlink.records import shortened
from graphlink.report.summary import Rank
from graphlink.standstill.standstill import Piece, Stood
from graphlink.standstill.summary import all_stood, explained

MOST_ROWS: Final = 100


def trust(found: Found) -> Words:
    """Tell how much of the standstill is explained on the rank where least is."""
    ranks = found.ranks
    least = min(ranks, key=lambda one: float(explained(all_stood(one.standstill))))
    share = explained(all_stood(least.standstill))
    stood = Figure(f"{share} %", float(share) / 100, "explained")
    some = "" if len(ranks) == 1 else ", at worst (rank " + f"{least.rank})"
    known = [
        " of the time that calls, threads and streams waited is explained",
        some,
        "; gains that hang on the rest are guesses." if float(share) < 95 else ".",
    ]
    return [stood, "".join(known)]


def standstill(found: Found) -> Table:
    """Return how much of what stood still the graph explains, the least explained rank first."""

    def row(rank: Rank) -> Row:
        stood = rank.standstill
        cells = [Cell(str(rank.rank), rank.rank), Cell(f"{rank.replay.error_pct:+.3f} %", rank.replay.error_pct)]
        for one in (stood.calls, stood.threads, stood.streams):
            cells += [time_cell(one.ns), _explained(one)]
        return Row([*cells, _explained(all_stood(stood)), time_cell(stood.path.pinned_ns)], f"/{found.at[rank.rank]}")

    rows = sorted(map(row, found.ranks), key=lambda row: row.cells[-2].value or 0)[:MOST_ROWS]
    columns = [
        *(Column("rank", "number", field="rank"), Column("replay error", "number", "replay", "replay/error_pct")),
        *(Column("in calls", "number", "explained", "standstill/calls/ns"), Column("explained", "number", "explained")),
        *(
            Column("threads stood", "number", "explained", "standstill/threads/ns"),
            Column("explained", "number", "explained"),
        ),
        *(
            Column("streams stood", "number", "explained", "standstill/streams/ns"),
            Column("explained", "number", "explained"),
        ),
        *(
            Column("all explained", "number", "explained"),
            Column("fixed on the path", "number", "fixed", "standstill/path/pinned_ns"),
        ),
    ]
    return Table(
        "standstill",
        "How far to trust the graphs: what stood still, and what of it is explained",
        columns,
        rows,
        "summary.json#/ranks",
    )


def _explained(stood: Stood) -> Cell:
    share = explained(stood)
    return Cell(f"{share} %" if stood.ns else "", float(share) / 100)


def largest(found: Found) -> list[Part]:
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
