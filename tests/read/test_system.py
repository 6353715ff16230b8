"""What is read of the machine, and that nothing else of a recording's metadata is repeated."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import graphlink
from graphlink.model import NO_SYSTEM, System
from graphlink.read.devices import cuda_version, hip_version
from graphlink.read.kineto import read_kineto
from graphlink.read.nsys.report import read_nsys
from tests.simulator import Shape, random_program, run, write_kineto
from tests.simulator.nsys import write_nsys

SECRET = "hf_not_to_be_seen"


@pytest.mark.parametrize(
    ("number", "text"), [(12040, "12.4"), ("13010", "13.1"), (9020, "9.2"), (0, ""), (-1, ""), (None, ""), ("x", "")]
)
def test_versions_of_cuda(number: object, text: str) -> None:
    assert cuda_version(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(60443483, "6.4.43483"), (70253211, "7.2.53211"), (0, ""), ("", ""), ([], "")]
)
def test_versions_of_hip(number: object, text: str) -> None:
    assert hip_version(number) == text


def recorded(path: Path, **around: object) -> Path:
    write_kineto(run(random_program(1, Shape())), path, dialect="2026")
    document = json.loads(path.read_text())
    path.write_text(
        json.dumps(
            {**document, **around, "distributedInfo": {**document.get("distributedInfo", {}), "nccl_version": "2.27.7"}}
        )
    )
    return path


def test_kineto_tells_versions_and_its_environment_goes_nowhere(tmp_path: Path) -> None:
    around = {
        "cuda_runtime_version": 12040,
        "cuda_driver_version": 12090,
        "env": {"HF_TOKEN": SECRET},
        "args": SECRET,
        "host_name": "node7",
    }
    path = recorded(tmp_path / "kineto_0.json", **around)
    assert read_kineto(path).system == System(cuda="12.4", cuda_driver="12.9", nccl="2.27.7")
    made = graphlink.link(path, out=tmp_path / "out", options=graphlink.Options(sync="cuda"))
    (rank,) = made.summary.ranks
    assert rank.machine.host == "node7" and rank.machine.system.cuda == "12.4"  # type: ignore[union-attr]
    assert not any(SECRET.encode() in file.read_bytes() for file in (tmp_path / "out").iterdir())


def test_a_version_that_is_none_is_left_out(tmp_path: Path) -> None:
    path = recorded(tmp_path / "kineto_0.json", cuda_runtime_version=SECRET)
    path.write_text(path.read_text().replace("2.27.7", SECRET))
    assert read_kineto(path).system == NO_SYSTEM


def test_nsys_tells_driver_and_cpu_once(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([run(random_program(1, Shape()))], path, schema="3.25")
    with closing(sqlite3.connect(path)) as data, data:
        data.execute("DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV")
        data.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        told = [
            ("CpuDescription", "EPYC"),
            ("NvDriverVersion", "580.95"),
            ("CudaDriverVersion", "13000"),
            ("Env", SECRET),
        ]
        data.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)", [*told, ("Hostname", "a")])
    (trace,) = read_nsys(path)
    assert trace.system == System(cpu="EPYC", driver="580.95", cuda_driver="13.0")
    with closing(sqlite3.connect(path)) as data, data:
        data.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('CpuDescription', 'Xeon')")
        data.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('NvDriverVersion', '580.95')")
    assert read_nsys(path)[0].system == System(driver="580.95", cuda_driver="13.0"), "two machines have no one CPU"
