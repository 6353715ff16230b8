from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from graphlink.errors import OutputError
from graphlink.publish import (
    HIDDEN,
    JOURNAL,
    MOST_MOVING_S,
    OLD,
    Publication,
    add,
    left_by_the_killed,
    naming,
    settle,
    temporary,
    write,
    write_anew,
)
from tests.run.kills import NEW as NEW_FILES
from tests.run.kills import OLD as OLD_FILES


def publish(folder: Path, files: dict[str, bytes], *, force: bool = False, listed: Sequence[str] | None = None) -> None:
    with Publication(folder, force=force) as publication:
        for name, data in files.items():
            write(publication.beside / name, data)
        names = [*files, "summary.json"] if listed is None else list(listed)
        write(publication.beside / "summary.json", msgspec.json.encode({"graphlink": "0", "files": names}))
        publication.publish()


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def test_files_appear_together_and_nothing_else_stays(tmp_path: Path) -> None:
    out = tmp_path / "new" / "deep"
    publish(out, {"trace.0.et": b"graph"})
    assert set(tree(out)) == {"summary.json", "trace.0.et"}


def test_nothing_is_left_of_a_failed_run_not_even_folders(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Publication(tmp_path / "new" / "deep", force=False) as publication:
        write(publication.beside / "trace.0.et", b"half")
        raise ZeroDivisionError
    assert tree(tmp_path) == {}


def test_an_earlier_run_is_refused_and_force_replaces_its_files_only(tmp_path: Path) -> None:
    publish(tmp_path, {"trace.0.et": b"old", "trace.1.et": b"old"})
    (tmp_path / "mine.txt").write_bytes(b"mine")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match="--force"):
        publish(tmp_path, {"trace.0.et": b"new"})
    assert tree(tmp_path) == before
    publish(tmp_path, {"trace.0.et": b"new"}, force=True)
    after = tree(tmp_path)
    assert (after["trace.0.et"], after["mine.txt"]) == (b"new", b"mine")
    assert set(after) == {"trace.0.et", "mine.txt", "summary.json"}


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "trace.0.et").write_bytes(b"mine")
    for force in (False, True):
        with pytest.raises(OutputError, match=r"trace\.0\.et"):
            publish(tmp_path, {"trace.0.et": b"new"}, force=force)
    assert tree(tmp_path) == {"trace.0.et": b"mine"}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"files": ["mine.txt"]}', b"\xff\xfe", b"[1]"])
def test_a_summary_that_is_not_ours_is_not_touched(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(text)
    for force in (False, True):
        with pytest.raises(OutputError):
            publish(tmp_path, {"a.0.et": b""}, force=force)
    assert tree(tmp_path) == {"summary.json": text}


def test_a_summary_cannot_reach_out_of_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "other.txt").write_bytes(b"mine")
    publish(
        out, {"a.0.et": b""}, listed=["../other.txt", str(tmp_path / "other.txt"), "..", ".", "a.0.et", "summary.json"]
    )
    publish(out, {"b.0.et": b""}, force=True)
    assert (tmp_path / "other.txt").read_bytes() == b"mine"
    assert set(tree(out)) == {"b.0.et", "summary.json"}


def test_a_failure_while_moving_brings_the_old_files_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a.0.et": b"old", "b.0.et": b"old"})
    before = tree(tmp_path)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name == "b.0.et" and self.parent.name.startswith("tmp-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OutputError, match="No space left"):
        publish(tmp_path, {"a.0.et": b"new", "b.0.et": b"new", "c.0.et": b"new"}, force=True)
    assert tree(tmp_path) == before


def test_interrupted_while_moving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a.0.et": b"old"})
    before = tree(tmp_path)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        if self.name == "a.0.et" and self.parent.name.startswith("tmp-"):
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, {"a.0.et": b"new"}, force=True)
    assert tree(tmp_path) == before


def test_the_output_folder_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"mine")
    for folder in (tmp_path / "out", tmp_path / "out" / "below"):
        with pytest.raises(OutputError):
            publish(folder, {})
    assert tree(tmp_path) == {"out": b"mine"}


def test_a_full_disk_is_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="No space left") as said, naming(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(tmp_path / "x") in str(said.value)


def test_what_others_keep_in_the_hidden_folder_stays(tmp_path: Path) -> None:
    (tmp_path / HIDDEN).mkdir()
    (tmp_path / HIDDEN / "kept").write_bytes(b"mine")
    publish(tmp_path, {"a.0.et": b""})
    assert (tmp_path / HIDDEN / "kept").read_bytes() == b"mine"


def test_a_failure_after_moving_brings_the_old_files_back(tmp_path: Path) -> None:
    publish(tmp_path, {"a.0.et": b"old", "b.0.et": b"old"})
    before = tree(tmp_path)
    with pytest.raises(ZeroDivisionError), Publication(tmp_path, force=True) as publication:
        write(publication.beside / "a.0.et", b"new")
        write(publication.beside / "summary.json", b"{}")
        publication.publish()
        raise ZeroDivisionError
    assert tree(tmp_path) == before


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file of the user beside the output folder."""
    path = tmp_path / "thesis.txt"
    path.write_bytes(b"mine")
    return path


def planted(out: Path, *, new: Sequence[str] = (), old: Sequence[str] = (), pid: str = "999999999") -> Path:
    """A temporary folder of a process that does not live, with a journal."""
    folder = out / HIDDEN / f"tmp-{socket.gethostname().replace('-', '_')}-{pid}-x"
    (folder / OLD).mkdir(parents=True)
    (folder / JOURNAL).write_bytes(msgspec.json.encode({"old": old, "new": new}))
    return folder


def test_a_journal_takes_back_what_a_killed_process_had_moved(tmp_path: Path) -> None:
    (tmp_path / "trace.1.et").write_bytes(b"half of a run")
    left = planted(tmp_path, new=["trace.1.et"], old=["trace.0.et"])
    (left / OLD / "trace.0.et").write_bytes(b"before")
    with Publication(tmp_path, force=False):
        pass
    assert tree(tmp_path)["trace.0.et"] == b"before"
    assert "trace.1.et" not in tree(tmp_path)


def test_a_planted_journal_removes_no_file_of_the_user(tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "out"
    names = [
        "../thesis.txt",
        str(outside),
        "..",
        ".",
        "",
        "a/../../thesis.txt",
        "notes.txt",
        "x\0.0.et",
        "../.0.et",
        "\n",
    ]
    planted(out, new=names, old=names)
    (out / "notes.txt").write_bytes(b"mine")
    publish(out, {"a.0.et": b""})
    assert outside.read_bytes() == (out / "notes.txt").read_bytes() == b"mine"


def test_a_planted_journal_overwrites_no_file_of_the_user(tmp_path: Path, outside: Path) -> None:
    out = tmp_path / "out"
    left = planted(out, old=["../thesis.txt", str(outside), "notes.txt"])
    (out / "notes.txt").write_bytes(b"mine")
    for name in ("thesis.txt", "notes.txt"):
        (left / OLD / name).write_bytes(b"theirs")
    (left / "thesis.txt").write_bytes(b"theirs")  # left / OLD / "../thesis.txt"
    publish(out, {"a.0.et": b""})
    assert outside.read_bytes() == (out / "notes.txt").read_bytes() == b"mine"


@pytest.mark.parametrize("link", [HIDDEN, "tmp", OLD])
def test_no_planted_link_is_followed_out_of_the_folder(tmp_path: Path, link: str) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    left = planted(elsewhere if link != OLD else out, new=["trace.0.et"], old=["trace.1.et"])
    if link == OLD:
        (left / OLD).rmdir()
        (elsewhere / "old").mkdir(parents=True)
        (left / OLD).symlink_to(elsewhere / "old")
        (elsewhere / "old" / "trace.1.et").write_bytes(b"mine")
    else:
        (left / OLD / "trace.1.et").write_bytes(b"mine")
        out.mkdir()
        if link == HIDDEN:
            (out / HIDDEN).symlink_to(elsewhere / HIDDEN)
        else:
            (out / HIDDEN).mkdir()
            (out / HIDDEN / left.name).symlink_to(left)
    before = tree(elsewhere)
    with contextlib.suppress(OutputError):
        publish(out, {"a.0.et": b""})
    assert tree(elsewhere) == before
    assert not (out / "trace.1.et").exists()


@pytest.mark.parametrize("pid", ["9" * 30, "9" * 200, "0" * 200, "\u0661", "-", "x"])
def test_a_temporary_folder_of_no_process_number_is_no_matter(tmp_path: Path, pid: str) -> None:
    planted(tmp_path, pid=pid)
    publish(tmp_path, {"a.0.et": b""})


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b'{"old": ["\xff"], "new": []}', b"[" * 5000, b'{"old": ' + b"[" * 5000]
)
def test_a_journal_that_is_none_is_passed_over(tmp_path: Path, text: bytes) -> None:
    (planted(tmp_path) / JOURNAL).write_bytes(text)
    publish(tmp_path, {"a.0.et": b""})
    assert set(tree(tmp_path)) == {"a.0.et", "summary.json"}


def test_force_replaces_no_file_that_only_a_planted_summary_calls_graphlinks(tmp_path: Path) -> None:
    publish(tmp_path, {"a.0.et": b""}, listed=["a.0.et", "summary.json", "notes.txt", ".bashrc"])
    for name in ("notes.txt", ".bashrc"):
        (tmp_path / name).write_bytes(b"mine")
    publish(tmp_path, {"b.0.et": b""}, force=True)
    assert set(tree(tmp_path)) == {"b.0.et", "summary.json", "notes.txt", ".bashrc"}


def test_what_is_no_name_of_an_output_is_not_published(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"notes\.txt"):
        publish(tmp_path, {"notes.txt": b""})
    assert tree(tmp_path) == {}


@pytest.mark.skipif(sys.platform != "linux", reason="fork, SIGKILL")
@pytest.mark.parametrize("ending", ["succeeds", "fails"])
def test_whoever_opens_a_folder_after_a_kill_finds_the_old_files_or_the_new(tmp_path: Path, ending: str) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.run.kills", str(tmp_path), ending]
    ran = subprocess.run(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=True
    )
    kills = [json.loads(line) for line in ran.stdout.splitlines()]
    whole = [{**files, "summary.json": summary_of(files)} for files in (OLD_FILES, NEW_FILES)]
    states = [{name: data.decode() for name, data in files.items()} for files in whole]
    assert len(kills) >= 60
    assert not [kill for kill in kills if kill[2] not in states], "mixed, or something is left beside"
    assert {states.index(kill[2]) for kill in kills} == {0, 1}
    once = [states.index(found) for _, second, found in kills if second is None]
    assert ending == "fails" or once == sorted(once), "old until a moment, new from then on"
    assert ending == "succeeds" or once[-1] == 0
    assert len(once) > 20


def summary_of(files: dict[str, bytes]) -> bytes:
    return msgspec.json.encode({"graphlink": "0", "files": [*files, "summary.json"]})


def test_a_process_that_moves_files_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its journal is there only while it holds the lock; so it is dead for who holds the lock, or of another sort of
    file system.
    """
    publish(tmp_path, {"a.0.et": b"old"})
    seen: list[bytes] = []
    rename = Path.rename
    reader: list[threading.Thread] = []

    def look() -> None:
        settle(tmp_path)
        seen.append((tmp_path / "a.0.et").read_bytes())

    def slowly(self: Path, target: Path) -> Path:
        if not reader and self.name == "a.0.et":
            reader.append(threading.Thread(target=look))
            reader[0].start()
            reader[0].join(0.2)
            assert not seen
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slowly)
    publish(tmp_path, {"a.0.et": b"new"}, force=True)
    reader[0].join()
    assert seen == [b"new"]


@pytest.mark.parametrize(("age_s", "there"), [(0, None), (MOST_MOVING_S + 60, b"before")])
def test_what_a_killed_process_of_another_host_moved_is_taken_back_after_a_while(
    tmp_path: Path, age_s: int, there: bytes | None
) -> None:
    left = planted(tmp_path, new=["trace.1.et"], old=["trace.0.et"])
    (left / OLD / "trace.0.et").write_bytes(b"before")
    left = left.rename(left.with_name("tmp-elsewhere-1-7-x"))
    began = time.time() - age_s
    os.utime(left / JOURNAL, (began, began))
    with contextlib.nullcontext() if age_s else pytest.raises(OutputError, match="another host"):
        settle(tmp_path)
    assert tree(tmp_path).get("trace.0.et") == there and left.exists() == (not age_s)


def test_a_journal_of_another_host_from_the_future_is_not_waited_for(tmp_path: Path) -> None:
    """Its clock was wrong, or ours was."""
    beside = tmp_path / HIDDEN / "tmp-elsewhere-1-1-x"
    (beside / OLD).mkdir(parents=True)
    (beside / JOURNAL).write_bytes(b'{"old":[],"new":[]}')
    for offset_s, refused in ((60, True), (86_400, False)):
        os.utime(beside / JOURNAL, (time.time() + offset_s,) * 2)
        with pytest.raises(OutputError) if refused else contextlib.nullcontext():
            settle(tmp_path)
    assert not beside.exists()


@pytest.mark.parametrize("force", [False, True])
def test_the_slower_of_two_runs_into_one_folder_is_refused(tmp_path: Path, force: bool) -> None:
    if force:
        publish(tmp_path, {"trace.0.et": b"old"})
    with (
        pytest.raises(OutputError, match="another run published its outputs into it meanwhile"),
        Publication(tmp_path, force=force) as slower,
    ):
        write(slower.beside / "trace.0.et", b"slower")
        write(slower.beside / "summary.json", b"{}")
        publish(tmp_path, {"trace.0.et": b"faster"}, force=force)
        slower.publish()
    assert (tmp_path / "trace.0.et").read_bytes() == b"faster"
    assert set(tree(tmp_path)) == {"summary.json", "trace.0.et"}


def test_what_others_prepare_is_left_alone(tmp_path: Path) -> None:
    for name in (f"tmp-{socket.gethostname().replace('-', '_')}-{os.getpid()}-x", "tmp-elsewhere-1-7-x", "tmp-x"):
        (tmp_path / HIDDEN / name / OLD).mkdir(parents=True)
    before = tree(tmp_path)
    settle(tmp_path)
    assert tree(tmp_path) == before


def test_a_number_that_another_process_has_by_now_is_no_life(tmp_path: Path) -> None:
    (tmp_path / HIDDEN).mkdir()
    mine = temporary(tmp_path / HIDDEN)
    other = mine.with_name(mine.name.replace(f"-{os.getpid()}-", f"-{os.getpid()}-1"))
    other.mkdir()
    assert left_by_the_killed(tmp_path / HIDDEN) == ([other] if Path("/proc/self/stat").exists() else [])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_killed_process_that_nobody_has_collected_does_not_live(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        temporary(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    (left,) = tmp_path.iterdir()
    assert left_by_the_killed(tmp_path) == [left]
    os.waitpid(child, 0)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may do anything")
def test_files_that_cannot_be_moved_back_are_an_error(tmp_path: Path) -> None:
    left = planted(tmp_path, new=["trace.1.et"], old=["trace.0.et"])
    (left / OLD / "trace.0.et").write_bytes(b"before")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OutputError, match="cannot be put back"):
            settle(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_one_more_file_is_listed_and_the_others_stay(tmp_path: Path) -> None:
    publish(tmp_path, {"trace.0.et": b"graph"})
    add(tmp_path, "report.html", b"first")
    add(tmp_path, "report.html", b"second")
    assert tree(tmp_path) == {
        "report.html": b"second",
        "summary.json": b'{\n "graphlink": "0",\n "files": [\n  "report.html",\n  "summary.json",\n  "trace.0.et"\n '
        b"]\n}\n",
        "trace.0.et": b"graph",
    }
    publish(tmp_path, {"trace.0.et": b"new"}, force=True)
    assert set(tree(tmp_path)) == {"summary.json", "trace.0.et"}


def test_one_more_file_that_fails_leaves_all_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"trace.0.et": b"graph"})
    add(tmp_path, "report.html", b"first")
    before = tree(tmp_path)
    renamed = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if Path(target) == tmp_path / "summary.json" and self.parent.name != OLD:
            raise OSError(errno.ENOSPC, "No space left on device")
        return renamed(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OutputError):
            add(tmp_path, "report.html", b"second")
    assert tree(tmp_path) == before


def test_one_more_file_replaces_none_that_no_summary_lists(tmp_path: Path) -> None:
    publish(tmp_path, {"trace.0.et": b"graph"})
    (tmp_path / "report.html").write_bytes(b"mine")
    before = tree(tmp_path)
    with pytest.raises(OutputError, match=r"report\.html is there already"):
        add(tmp_path, "report.html", b"new")
    assert tree(tmp_path) == before


def test_a_file_is_made_anew_whatever_its_folder_is_called(tmp_path: Path) -> None:
    """A link is replaced, below a folder ``dev`` too; a name may be as long as the file system takes."""
    kept, folder = tmp_path / "kept", tmp_path / "dev"
    folder.mkdir()
    kept.write_text("kept")
    for name in ("link.json", "\u65e5" * 80 + ".json"):
        (folder / name).symlink_to(kept)
        write_anew(folder / name, b"new")
        assert (folder / name).read_text() == "new" and kept.read_text() == "kept"
    assert len(list(folder.iterdir())) == 2


def test_what_a_process_has_open_is_written_as_it_is(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        write_anew(Path(f"/dev/fd/{file.fileno()}"), b"new")
    assert (tmp_path / "out").read_text() == "new"
