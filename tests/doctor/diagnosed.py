"""The doctor in this process, without the command line."""

from __future__ import annotations

from pathlib import Path

from graphlink.doctor.diagnose import Given, findings_of
from graphlink.doctor.examine import examine
from graphlink.doctor.records import Finding
from graphlink.run.discover.inputs import of_folders


def diagnosed(folder: Path) -> dict[str, Finding]:
    """By name, of the recordings in a folder."""
    ranks = of_folders([str(folder)], None).ranks
    return {f.kind.name: f for f in findings_of([examine(one) for one in ranks], Given(ranks))}
