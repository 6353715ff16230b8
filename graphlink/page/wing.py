"""The page of a run for the browser."""

from __future__ import annotations

from collections.abc import Sequence

from graphlink.wings import Verb, Wing


class _Page(Wing):
    def verbs(self) -> Sequence[Verb]:
        return (
            Verb(
                100,
                "report",
                "DIR",
                "write a page for the browser: what the other verbs print, with charts",
                "page.verb_report:report",
            ),
        )


WING = _Page()
