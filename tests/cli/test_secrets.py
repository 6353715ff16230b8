"""Of a recording's metadata nothing but the system table is repeated: not in outputs, messages, logs or errors of any
command.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran
from tests.simulator import Shape, random_program, run
from tests.simulator.nsys import write_nsys

Run = Callable[..., Ran]
_NUMBER = count()


def secret() -> str:
    return f"hf_SECRET{next(_NUMBER)}x"


def planted(document: dict[str, Any]) -> dict[str, Any]:
    """Add secrets wherever a recorder, a launcher or a user may put texts around the events."""
    info = {
        **document.get("distributedInfo", {}),
        "backend": secret(),
        "job_id": secret(),
        "note": secret(),
        "pg_count": secret(),
    }
    info |= {"nccl_version": secret(), "env": {"WANDB_API_KEY": secret()}}
    more = {
        key: secret()
        for key in ("SLURM_JOB_ID", "cmdline", "args", "user", "cuda_runtime_version", "traceName", "tool_version")
    }
    told = {"env": {"HF_TOKEN": secret(), "AWS": [secret()]}, "record": secret(), "distributedInfo": info}
    return {**document, **more, **told}


def with_metadata(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add metadata events, and events of a category that nothing knows."""
    names = [
        {"ph": "M", "name": name, "pid": 7, "tid": 0, "args": {"name": secret(), "labels": secret()}}
        for name in _METADATA
    ]
    return [*events, *names, {"ph": "i", "name": "x", "ts": 1, "pid": 7, "tid": 0, "args": {"env": secret()}}]


_METADATA = ("process_name", "process_labels", "thread_name", "env")


@pytest.fixture
def recordings(traces: Path, tmp_path: Path) -> Path:
    """Two ranks, with secrets around all that is recorded."""
    folder = tmp_path / "recorded"
    folder.mkdir()
    for rank in (0, 1):
        kineto = json.loads((traces / f"kineto_{rank}.json").read_text())
        told = planted(kineto) if rank == 0 else {**kineto, "env": secret()}
        (folder / f"kineto_{rank}.json").write_text(
            json.dumps({**told, "traceEvents": with_metadata(kineto["traceEvents"])})
        )
        et = json.loads((traces / f"et_{rank}.json").read_text())
        more = {"schema": secret(), "time": secret(), "env": {"TOKEN": secret()}, "start_ts": secret()}
        (folder / f"et_{rank}.json").write_text(json.dumps({**et, **more}))
    return folder


def of(ran: Ran, *folders: Path) -> list[str]:
    """Where a secret stands: in what was printed, or in a file."""
    texts = {"stdout": ran.out, "stderr": ran.err}
    texts |= {
        str(file): file.read_bytes().decode("latin-1")
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file()
    }
    return [where for where, text in texts.items() if "SECRET" in text]


VERBS = (
    ("show", "-v"),
    ("replay", "-v"),
    ("replay", "--list"),
    ("critical-path",),
    ("critical-path", "--across"),
    ("idle",),
    ("advice",),
    ("ops", "--whole-names"),
    ("check",),
    ("astra",),
    ("bubbles",),
)


def test_no_command_repeats_what_a_recording_says_of_its_machine(
    graphlink: Run, recordings: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    made = graphlink("link", recordings, "--out", out, "-v", "--jobs", "1", "--linked")
    assert (made.status, of(made, out)) == (0, [])
    for verb, *words in VERBS:
        ran = graphlink(verb, out, *words, "--json", tmp_path / "printed.json")
        assert (verb, of(ran, out)) == (verb, [])
        assert ran.status != 0 or "SECRET" not in (tmp_path / "printed.json").read_text()
    for what in (recordings, out):
        assert of(graphlink("doctor", what, "--json", "-")) == []
        assert of(graphlink("doctor", what)) == []


def test_what_jobs_of_ranks_leave_holds_none(graphlink: Run, recordings: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for rank in (0, 1):
        given = ("--kineto", recordings / f"kineto_{rank}.json", "--et", recordings / f"et_{rank}.json")
        assert graphlink("link", *given, "--rank-job", "--out", out, "-q").status == 0
    assert of(Ran(0, "", ""), out) == []
    assert of(graphlink("join", out, "-v"), out) == []


def changed(path: Path, **around: Any) -> None:
    document = json.loads(path.read_text())
    info = {**document.get("distributedInfo", {}), **around.pop("info", {})}
    path.write_text(json.dumps({**document, **around, "distributedInfo": info}))


@pytest.mark.parametrize(
    "around",
    [
        {"SLURM_JOB_ID": "other SECRET"},
        {"info": {"rank": 0, "backend": "other SECRET"}},
        {"info": {"rank": "SECRET", "world_size": "SECRET"}},
        {"baseTimeNanoseconds": "SECRET"},
        {"deviceProperties": "SECRET", "host_name": ["SECRET"]},
        {"schemaVersion": "SECRET", "displayTimeUnit": "SECRET"},
    ],
)
def test_errors_and_warnings_name_keys_and_no_values(
    graphlink: Run, recordings: Path, tmp_path: Path, around: dict[str, Any]
) -> None:
    changed(recordings / "kineto_0.json", SLURM_JOB_ID="SECRET", info={"backend": "SECRET"})
    changed(recordings / "kineto_1.json", **around)
    ran = graphlink("link", recordings, "--out", tmp_path / "out", "-v", "--jobs", "1")
    assert of(ran) == []
    if "SLURM_JOB_ID" in around:
        assert ran.status == 1 and "they differ by the job (SLURM_JOB_ID)" in ran.err
    assert of(graphlink("doctor", recordings)) == []


@pytest.mark.parametrize("cut", ["head", "tail", "key"])
def test_an_error_in_the_text_around_the_events_shows_none_of_it(
    graphlink: Run, recordings: Path, tmp_path: Path, cut: str
) -> None:
    path = recordings / "kineto_0.json"
    text = path.read_text()
    broken = {
        "head": '{"env": "SECRET" "x": 1, ' + text[1:],
        "tail": text[:-1] + ', "env": "SECRET" SECRET}',
        "key": '{"nothing": {"env": "SECRET"}}',
    }[cut]
    path.write_text(broken)
    for command in (
        ("link", "--kineto", path, "--out", tmp_path / "out", "-v"),
        ("doctor", path),
        ("link", recordings, "--out", tmp_path / "o"),
    ):
        ran = graphlink(*command)
        assert of(ran) == [] and (ran.status in (1, 3) or cut == "key")


def test_what_an_nsys_export_says_of_its_machine(graphlink: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    write_nsys([run(random_program(1, Shape()))], path, schema="3.25")
    with closing(sqlite3.connect(path)) as data, data:
        for table in (
            "TARGET_INFO_SYSTEM_ENV",
            "META_DATA_EXPORT",
            "META_DATA_CAPTURE",
            "ANALYSIS_DETAILS",
            "PROCESSES",
        ):
            data.execute(f"DROP TABLE IF EXISTS {table}")
            data.execute(f"CREATE TABLE {table} (name TEXT, value TEXT)")
            rows = [
                (name, secret())
                for name in (
                    "EnvVars",
                    "HF_TOKEN",
                    "DERIVED_FROM",
                    "DERIVED_WINDOW_NS",
                    "CudaDriverVersion",
                    "CommandLine",
                )
            ]
            data.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
    made = graphlink("link", "--nsys", path, "--out", tmp_path / "out", "-v")
    assert (made.status, of(made, tmp_path / "out")) == (0, [])
    assert "the export was cut to a window: calls" in made.out
    assert of(graphlink("doctor", path)) == []
