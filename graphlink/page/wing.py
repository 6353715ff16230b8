"""The page of a run for the browser."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphlink.wings import Verb, Wing


class _Page(Wing):
    verbs = (
        Verb(
            100,
            "report",
            "DIR",
            "write a page for the browser: what the other verbs print, with charts",
            "page.verb_report:report",
        ),
    )

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        from graphlink.page.render import html
        from graphlink.page.run_page import run_page

        return {"page": lambda run: run_page(run.folder, run.summary), "report": lambda run: html(run.page())}

    def schemas(self) -> Mapping[str, Any]:
        from graphlink.page.parts import Page

        return {"report": Page}


WING = _Page()
