"""The doctor in this process, without the command line."""

from __future__ import annotations

from pathlib import Path

from graphlink.doctor.diagnose import Given, examine, findings_of
from graphlink.doctor.records import Told
from graphlink.run.discover.inputs import of_folders


def diagnosed(folder: Path) -> dict[str, Told]:
    """By name, of the recordings in a folder."""
    ranks = of_folders([str(folder)], None).ranks
    return {f.name: f for f in findings_of([examine(one) for one in ranks], Given(ranks))}
