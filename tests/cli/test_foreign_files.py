"""Files of other tools are named for what they are, with what to do: alone, among recordings and to the doctor."""

from __future__ import annotations

import json
import pickle
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from graphlink.cli import main
from graphlink.run.discover.inputs import of_folders
from tests.doctor.recordings import write_run

JAX = {"traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/device:TPU:0"}},
    {"ph": "X", "pid": 1, "tid": 2, "ts": 1.5, "dur": 3, "name": "fusion.3"},
]}  # fmt: skip
OTHER = {"traceEvents": [{"ph": "X", "cat": "v8", "pid": 1, "tid": 2, "ts": 1.5, "dur": 3, "name": "GC"}]}
FILES = {
    "run.nsys-rep": (b"\x00\x01report", "a report of nsys"),
    "run.qdrep": (b"\x00\x01report", "nsys export --type sqlite"),
    "kernels.ncu-rep": (b"NVR\x00rest", "Nsight Compute"),
    "host.xplane.pb": (b"\x0a\x99\x01rest", "XPlane"),
    "run.pftrace": (b"\x0a\x99\x01rest", "binary Perfetto trace"),
    "events.parquet": (b"PAR1rest", "Parquet"),
    "snapshot.pickle": (pickle.dumps({"segments": [], "device_traces": []}), "memory snapshot"),
    "results.csv": (b'"Kernel_Name","Start","End"\n"k",1,2\n', "rocprof"),
    "jax.trace.json": (json.dumps(JAX).encode(), "TensorFlow or JAX"),
    "chrome.json": (json.dumps(OTHER).encode(), "another tool, not a Kineto trace (its categories: v8)"),
    "memory.json": (json.dumps([[1, 2, 3], [[0, 5], [1, 6]]]).encode(), "no events of a trace"),
    "package.json": (json.dumps({"name": "x", "version": "1"}).encode(), "has no list"),
}


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(FILES[name][0])
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_tool_is_named_and_nothing_is_written(name, tmp_path, capsys):
    path = written(tmp_path, name)
    assert main(["--kineto", str(path), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert FILES[name][1] in said
    assert str(path) in said
    assert "  do: " in said
    assert len(said.splitlines()) <= 5
    assert not (tmp_path / "out").exists()


def test_a_database_of_rocprof_is_no_nsys_export(tmp_path, capsys):
    path = tmp_path / "results.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rocpd_kernel_dispatch_1 (id INTEGER, start INTEGER, end INTEGER)")
    connection.close()
    assert main(["--nsys", str(path), "--out", str(tmp_path / "out")]) == 1
    assert "a database of rocprofv3 (rocpd)" in capsys.readouterr().err


def test_beside_recordings_they_are_left_aside_with_a_note(tmp_path):
    folder = write_run(tmp_path / "run", ranks=(0,))
    names = ("run.nsys-rep", "host.xplane.pb", "events.parquet", "jax.trace.json", "package.json")
    for name in names:
        written(folder, name)
    found = of_folders([str(folder)], None)
    assert len(found.ranks) == 1
    for name in names[:-1]:
        (note,) = [text for text in found.warnings if name in text]
        assert note.startswith("left aside")
        assert FILES[name][1] in note
    assert not [text for text in found.warnings if "package.json" in text], "JSON of another kind may lie anywhere"


def test_what_graphlink_wrote_into_the_folder_is_no_foreign_file(tmp_path):
    folder = write_run(tmp_path / "run", ranks=(0,))
    (folder / "summary.json").write_text(json.dumps({"files": ["timeline.perfetto-trace", "comm_group.json"]}))
    (folder / "comm_group.json").write_text("{}")
    (folder / "timeline.perfetto-trace").write_bytes(b"\x0a\x01")
    assert of_folders([str(folder)], None).warnings == ()


@pytest.mark.parametrize("name", ["run.nsys-rep", "kernels.ncu-rep", "snapshot.pickle", "jax.trace.json"])
def test_the_doctor_names_it_too(name, tmp_path, capsys):
    assert main(["doctor", str(written(tmp_path, name))]) == 1
    assert FILES[name][1] in capsys.readouterr().err
