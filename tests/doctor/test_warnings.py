"""Where the main job warns of what a better recording would have prevented, the doctor has a finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.errors import InputError
from graphlink.nccl.lacking import dump_lacking
from graphlink.nccl.read.read import read_dump
from graphlink.run.discover.inputs import of_folders
from graphlink.run.job import Options, prepare
from tests.doctor.cases import CASES, Case
from tests.doctor.diagnosed import diagnosed
from tests.doctor.recordings import write_run
from tests.doctor.told import untold
from tests.simulator import ClusterTraining, Dropped, LateStart, MissingRank, cluster_run
from tests.simulator.nccl import write_nccl
from tests.simulator.nccl_records import NcclProfile


def warnings_of(folder: Path) -> list[str]:
    """Of pairing and of each rank; what the job refuses counts by its message."""
    found = of_folders([str(folder)], None)
    out = [*found.warnings, *found.missing]
    for inputs in found.ranks:
        out += prepare(inputs, Options()).warnings
    return out


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_warning_of_the_job_has_a_finding(case: Case, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", **case.how)
    try:
        warnings = warnings_of(folder)
    except InputError:
        assert case.findings & {"empty-recording", "et-of-other-run", "no-host-rows"}
        return
    assert untold(warnings, case.findings) == []


@pytest.mark.parametrize("fault", [MissingRank(2), Dropped(1, "data", 1), LateStart(1, share=0.3)], ids=str)
def test_each_warning_of_a_cluster_has_a_finding(fault: MissingRank | Dropped | LateStart, tmp_path: Path) -> None:
    cluster_run(ClusterTraining(steps=2, layers=1), [fault]).write(tmp_path)
    assert untold(warnings_of(tmp_path), set(diagnosed(tmp_path))) == []


def test_a_warning_that_nobody_knows_is_untold() -> None:
    assert untold(["something new"], {"no-et"}) == ["something new"]
    assert untold(["the ET covers 1 of 2 Kineto host rows: fewer iterations"], {"no-et"}) != []


def test_what_readers_of_side_files_warn_of_is_told(tmp_path: Path) -> None:
    run = cluster_run(ClusterTraining(steps=2, layers=1))
    files = write_nccl(run, tmp_path, NcclProfile(kind="plugin", cut=0.6, kernel_channels=True))
    warned = [dump for dump in (read_dump(file.path) for file in files) if dump.warnings]
    assert warned
    for dump in warned:
        (finding,) = [f for f in dump_lacking(dump) if f.kind == "nccl-broken-rows"]
        assert finding.told == dump.warnings
        assert untold(dump.warnings, {"nccl-broken-rows"}) == []
