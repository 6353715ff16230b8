"""What a recording lacks."""

from __future__ import annotations

from graphlink.wings import Verb, Wing


class Hooks(Wing):
    verbs = (
        Verb(
            140,
            "doctor",
            "DIR|FILE ...",
            "say what a recording lacks, what that costs, and how to record it",
            "doctor.verb_doctor:doctor",
            tells=("doctor",),
        ),
    )
    schemas = {"doctor": "records:Diagnosis"}
