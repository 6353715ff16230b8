"""Two runs compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphlink.wings import Verb, Wing


class _Diff(Wing):
    verbs = (
        Verb(90, "diff", "A B", "compare two runs: is the second better, and what was changed", "diff.verb_diff:diff"),
    )

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        from graphlink.diff.compare import compare

        return {"diff": lambda run, after, anyway: compare(run.folder, after.folder, anyway=anyway)}

    def schemas(self) -> Mapping[str, Any]:
        from graphlink.diff.records import DiffReport

        return {"diff": DiffReport}


WING = _Diff()
