"""What a recording lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphlink.wings import Verb, Wing


class _Doctor(Wing):
    verbs = (
        Verb(
            140,
            "doctor",
            "DIR|FILE ...",
            "say what a recording lacks, what that costs, and how to record it",
            "doctor.verb_doctor:doctor",
        ),
    )

    def schemas(self) -> Mapping[str, Any]:
        from graphlink.doctor.records import Diagnosis

        return {"doctor": Diagnosis}


WING = _Doctor()
