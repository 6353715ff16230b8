"""The page of a run: its sections in their order, from the outputs in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from graphlink.page.found import find
from graphlink.page.parts import Page
from graphlink.page.sections.communication import communication
from graphlink.page.sections.gains import gains
from graphlink.page.sections.gpu_time import gpu_time
from graphlink.page.sections.operations import operations
from graphlink.page.sections.path import critical_path
from graphlink.page.sections.pipeline import pipeline
from graphlink.page.sections.recording import recording
from graphlink.page.sections.syncs import syncs
from graphlink.page.sections.verdict import about, verdict
from graphlink.page.words import meanings
from graphlink.report.summary import Summary

_ORDER: Final = (gpu_time, gains, critical_path, operations, syncs, communication, pipeline, recording)
_OF_A_GRAPH: Final = ("gpu", "gains", "path", "operations", "syncs", "communication")


def run_page(folder: Path, summary: Summary) -> Page:
    """Return the page of the run whose outputs lie in ``folder``.

    Raises:
        InputError: a file cannot be read, or is none of this version.
    """
    found = find(folder, summary)
    sections = [section for make in _ORDER if (section := make(found)) is not None]
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
