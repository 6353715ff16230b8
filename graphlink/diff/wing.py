"""Two runs compared."""

from __future__ import annotations

from graphlink.wings import Verb, Wing


class Hooks(Wing):
    verbs = (
        Verb(
            90,
            "diff",
            "A B",
            "compare two runs: is the second better, and what was changed",
            "diff.verb_diff:diff",
            tells=("diff",),
        ),
    )
    answers = {"diff": "compare:compare"}
    schemas = {"diff": "records:DiffReport"}
