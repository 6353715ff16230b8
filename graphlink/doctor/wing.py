"""What a recording lacks."""

from __future__ import annotations

from collections.abc import Sequence

from graphlink.wings import Verb, Wing


class _Doctor(Wing):
    def verbs(self) -> Sequence[Verb]:
        return (
            Verb(
                140,
                "doctor",
                "DIR|FILE ...",
                "say what a recording lacks, what that costs, and how to record it",
                "doctor.verb_doctor:doctor",
            ),
        )


WING = _Doctor()
