"""Advice: what to change in a run, with the gain that a replay computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from graphlink.wings import Verb, Wing


class _Advice(Wing):
    def verbs(self) -> Sequence[Verb]:
        return (
            Verb(
                70,
                "advice",
                "DIR",
                "print what would make a run end earlier, with the gain that a replay computes",
                "advice.verb_advice:advice",
            ),
        )

    def next_steps(self, summary: Any) -> Iterable[tuple[int, str]]:
        return [(40, "advice {}")]

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        from graphlink.advice.advise import advice_of

        return {"advice": advice_of}

    def schemas(self) -> Mapping[str, Any]:
        from graphlink.advice.records import AdviceReport

        return {"advice.report": AdviceReport}


WING = _Advice()
