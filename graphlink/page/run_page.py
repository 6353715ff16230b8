"""The page of a run: its sections in their order, from the outputs in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graphlink.page.communication import communication
from graphlink.page.found import find
from graphlink.page.parts import Page
from graphlink.page.path import critical_path
from graphlink.page.recording import recording
from graphlink.page.syncs import syncs
from graphlink.page.verdict import about, verdict
from graphlink.page.words import meanings
from graphlink.report.summary import Summary
from graphlink.wings import each

_OF_CORE: Final = {30: critical_path, 50: syncs, 60: communication, 80: recording}
_OF_A_GRAPH: Final = ("gpu", "gains", "path", "operations", "syncs", "communication")


def run_page(folder: Path, summary: Summary) -> Page:
    """Return the page of the run whose outputs lie in ``folder``.

    Raises:
        InputError: a file cannot be read, or is none of this version.
    """
    found = find(folder, summary)
    makers = dict(_OF_CORE) | {place: make for _, hooks in each() for place, make in hooks.sections().items()}
    sections = [section for place in sorted(makers) if (section := makers[place](found)) is not None]
    if not found.ranks:
        sections = [section for section in sections if section.name not in _OF_A_GRAPH]
    lead = verdict(found)
    return Page(
        title="Where the time of this run goes",
        about=about(found),
        lead=lead,
        sections=sections,
        meanings=meanings(lead, sections),
    )
