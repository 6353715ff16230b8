"""Advice: what to change in a run, with the gain that a replay computes."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphlink.records import Table
from graphlink.wings import Verb, Wing

if TYPE_CHECKING:
    from graphlink.page.found import Reading

FEW_NODES: Final = 50_000  # of a run that is replayed for each advice on its first screen: about a second
MOST_NODES: Final = 200_000  # that are replayed for the advice about its main fact alone


class Hooks(Wing):
    verbs = (
        Verb(
            70,
            "advice",
            "DIR",
            "print what to change, with the time that it saves, as a replay computes it",
            "advice.verb_advice:advice",
            tells=("advice.report",),
        ),
    )
    answers = {"advice": "advise:advice_of", "change": "advise:change_of"}
    schemas = {"advice.report": "records:AdviceReport"}
    sections = {20: "page:gains"}
    lead = {"gain": "page:gain_words"}

    def next_steps(self, summary: Any) -> Iterable[tuple[int, str, str]]:
        return [(5, "advice {}", "what to change, and what each change saves")]

    def first(self, summary: Any, folder: str) -> Sequence[str | Table]:
        from graphlink.advice.advise import main_advice
        from graphlink.advice.table import first_lines
        from graphlink.errors import GraphlinkError
        from graphlink.run.library import Run

        nodes = sum(rank.graph_nodes for rank in summary.ranks)
        if not folder or not nodes:
            return ()
        if nodes > MOST_NODES:
            why = f"not computed for this screen, which replays no more than {MOST_NODES:,} nodes: there are {nodes:,}"
            return ["", Table([("saves most", why), ("do", f"graphlink advice {shlex.quote(folder)}")])]
        try:
            run = Run(Path(folder))
            return first_lines(
                run.advice() if nodes <= FEW_NODES else main_advice(run), folder, whole=nodes <= FEW_NODES
            )
        except GraphlinkError:  # graphlink advice says why
            return ()

    def page_part(self, reading: Reading) -> Any:
        from graphlink.advice.advise import of_page

        return of_page(reading) if reading.work is not None else None
