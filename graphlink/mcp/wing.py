"""Verbs that only read, for agents."""

from __future__ import annotations

from graphlink.wings import Verb, Wing


class Hooks(Wing):
    verbs = (
        Verb(
            190,
            "mcp",
            "DIR",
            "answer agents about all runs below DIR, over standard input and output (Model Context Protocol)",
            "mcp.verb_mcp:mcp",
        ),
    )
