"""Folders of the store appear and go as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from graphlink.run.out import LocalOut


class Killed(BaseException):
    pass


def _place(store: LocalOut, text: str) -> None:
    with store.place("key", "last") as folder:
        for name in ("a", "b", "last"):
            (folder / name).write_text(text)


def test_a_kill_while_the_older_folder_goes_leaves_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalOut(tmp_path)
    _place(store, "old")

    def killed(path: Path, **_: object) -> None:
        if (path / "a").exists() and (path / "a").read_text() == "old":
            (path / "a").unlink()
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(shutil, "rmtree", killed)
        _place(store, "new")
    assert not store.holds("key", ["last"]) or store.holds("key", ["a", "b", "last"])
    _place(store, "new")
    assert store.names("last") == ["key"] and store.read("key/a") == b"new"
