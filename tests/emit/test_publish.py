from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from graphlink.emit.publish import HIDDEN, Publication, naming, write
from graphlink.errors import OutputError


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
            publish(tmp_path, {"a": b""}, force=force)
    assert tree(tmp_path) == {"summary.json": text}


def test_a_summary_cannot_reach_out_of_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (tmp_path / "other.txt").write_bytes(b"mine")
    publish(out, {"a": b""}, listed=["../other.txt", str(tmp_path / "other.txt"), "..", ".", "a", "summary.json"])
    publish(out, {"b": b""}, force=True)
    assert (tmp_path / "other.txt").read_bytes() == b"mine"
    assert set(tree(out)) == {"b", "summary.json"}


def test_a_failure_while_moving_brings_the_old_files_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a": b"old", "b": b"old"})
    before = tree(tmp_path)
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name == "b" and self.parent.name.startswith("tmp-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OutputError, match="No space left"):
        publish(tmp_path, {"a": b"new", "b": b"new", "c": b"new"}, force=True)
    assert tree(tmp_path) == before


def test_interrupted_while_moving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, {"a": b"old"})
    before = tree(tmp_path)
    rename = Path.rename

    def interrupted(self: Path, target: Path) -> Path:
        moved = rename(self, target)
        if self.name == "a" and self.parent.name.startswith("tmp-"):
            raise KeyboardInterrupt
        return moved

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, {"a": b"new"}, force=True)
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
    publish(tmp_path, {"a": b""})
    assert (tmp_path / HIDDEN / "kept").read_bytes() == b"mine"


def test_a_failure_after_moving_brings_the_old_files_back(tmp_path: Path) -> None:
    publish(tmp_path, {"a": b"old", "b": b"old"})
    before = tree(tmp_path)
    with pytest.raises(ZeroDivisionError), Publication(tmp_path, force=True) as publication:
        write(publication.beside / "a", b"new")
        write(publication.beside / "summary.json", b"{}")
        publication.publish()
        raise ZeroDivisionError
    assert tree(tmp_path) == before
