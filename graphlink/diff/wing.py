"""Two runs compared."""

from __future__ import annotations

from collections.abc import Sequence

from graphlink.wings import Verb, Wing


class _Diff(Wing):
    def verbs(self) -> Sequence[Verb]:
        return (
            Verb(
                90, "diff", "A B", "compare two runs: is the second better, and what was changed", "diff.verb_diff:diff"
            ),
        )


WING = _Diff()
