"""The page of a run for the browser."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from graphlink.wings import Verb, Wing


class Hooks(Wing):
    verbs = (
        Verb(
            100,
            "report",
            "DIR",
            "write a page for the browser: what the other verbs print, with charts",
            "page.verb_report:report",
        ),
    )
    answers = {"page": "run_page:run_page", "report": "render:html"}
    schemas = {"report": "parts:Page"}

    def next_steps(self, summary: Any) -> Iterable[tuple[int, str, str]]:
        return [(40, "report {}", "write all of it on one page for the browser")]
