from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.cases import CASES, Case
from tests.doctor.diagnosed import diagnosed
from tests.doctor.recordings import write_run


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_recording_that_lacks_one_thing_has_its_findings_and_no_others(case: Case, tmp_path: Path) -> None:
    assert set(diagnosed(write_run(tmp_path / "run", **case.how))) == case.findings
