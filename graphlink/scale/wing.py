"""Graphs of more ranks than were recorded."""

from __future__ import annotations

from pathlib import Path

from graphlink.wings import Shown, Verb, Wing


class Hooks(Wing):
    verbs = (
        Verb(
            160,
            "scale",
            "DIR",
            "make graphs of more ranks from those that were recorded, and predict their time",
            "scale.verb_scale:scale",
        ),
    )
    schemas = {"scale": "records:Scaled"}

    def shown(self, folder: Path, name: str) -> Shown | None:
        from graphlink.output_names import SUMMARY
        from graphlink.read.document import made

        if not made(folder / SUMMARY):
            return None
        from graphlink.scale.records import load, table

        scaled = load(folder / SUMMARY)
        return Shown(scaled, table(scaled, name))
