"""Files that are named without an option are taken for what they are."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from graphlink.errors import InputError
from graphlink.run.discover.inputs import of_folders
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("packing", PACKED)
def test_a_kineto_trace_alone_is_as_with_its_option(graphlink: Run, traces: Path, tmp_path: Path, packing: str) -> None:
    file = tmp_path / f"anything.bin{packing}"
    file.write_bytes(PACKED[packing]((traces / "kineto_0.json").read_bytes()))
    assert graphlink(file, "-o", tmp_path / "a", "--no-timeline").status == 0
    assert graphlink("--kineto", file, "--out", tmp_path / "b", "--no-timeline").status == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_a_pair_is_as_with_its_options(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    et, kineto = traces / "et_1.json", traces / "kineto_1.json"
    assert graphlink(et, kineto, "-o", tmp_path / "a", "--no-timeline").status == 0
    assert graphlink("--kineto", kineto, "--et", et, "-o", tmp_path / "b", "--no-timeline").status == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_several_files_are_paired_as_those_of_a_folder(traces: Path) -> None:
    files = [str(path) for path in traces.iterdir()]
    folder = of_folders([str(traces)], None)
    assert of_folders(files[::-1], None) == folder == of_folders([f"{traces}/*"], None)
    assert [one.expected_rank for one in folder.ranks] == [0, 1]
    other = of_folders([str(traces / name) for name in ("kineto_0.json", "kineto_1.json", "et_0.json")], None)
    assert other.missing == (
        f"without an execution trace, linked from Kineto alone: {traces / 'kineto_1.json'} (rank 1)",
    )


def test_files_and_folders_are_one_run(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    for name in ("kineto_1.json", "et_1.json"):
        shutil.copy(traces / name, tmp_path / "host")
    found = of_folders([str(traces / "kineto_0.json"), str(traces / "et_0.json"), str(tmp_path / "host")], None)
    assert [(one.expected_rank, one.et is not None) for one in found.ranks] == [(0, True), (1, True)]


def test_an_export_and_side_files_are_known_by_content(traces: Path, tmp_path: Path) -> None:
    export, dump = tmp_path / "run.of.nsys", tmp_path / "dump"
    export.write_bytes(b"SQLite format 3\0" + bytes(100))
    assert of_folders([str(export)], None).exports == (export,)
    dump.write_text(json.dumps({"version": "2.5", "pg_config": {}, "pg_status": {}, "entries": []}))
    found = of_folders([str(traces / "kineto_0.json"), str(dump)], None)
    assert [head.path for head in found.dumps] == [dump]


def test_an_et_alone_is_no_recording_of_a_device(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    ran = graphlink(traces / "et_0.json", "-o", tmp_path / "out")
    assert (ran.status, ran.out, (tmp_path / "out").exists()) == (2, "", False)
    assert "no Kineto trace given" in ran.err


def test_what_is_no_recording_is_named_for_what_it_is(tmp_path: Path) -> None:
    for name, content, said in (
        ("notes.txt", b"hello", "is neither a Kineto trace"),
        ("workerlog.0", b"INFO", "--paddle-logs"),
        ("trace.0.et", b"\x07\x0a\x05" + b"0.0.4", "graphlink check"),
        ("traces.zip", b"PK\x03\x04", "unpack it"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as problem:
            of_folders([str(tmp_path / name)], None)
        assert said in problem.value.text()


def test_a_pipe_is_not_looked_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="a pipe or a device") as problem:
        of_folders([str(tmp_path / "pipe")], None)
    assert "--kineto" in problem.value.text()
