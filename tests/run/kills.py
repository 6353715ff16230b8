"""Run as a program: publishes over an earlier run, and is killed before the k-th change of the file system, for every
k.

For each k also the process that takes back what was moved is killed, before each of its own changes. Prints, as JSON, a
line a kill: k, the number of the second kill (null where there is none), and the files that the next one who opens the
folder finds there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from graphlink.publish import HIDDEN, Publication, settle, write

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
OLD = {"trace.0.et": b"old 0", "trace.1.et": b"old 1", "timeline.perfetto-trace": b"old"}
NEW = {"trace.0.et": b"new 0", "trace.2.et": b"new 2", "comm_group.json": b"new", "critical_path.0.json": b"new"}


def publish(folder: Path, files: dict[str, bytes], *, then_fail: bool = False) -> None:
    with Publication(folder, force=True) as publication:
        for name, data in files.items():
            write(publication.beside / name, data)
        write(
            publication.beside / "summary.json",
            msgspec.json.encode({"graphlink": "0", "files": [*files, "summary.json"]}),
        )
        publication.publish()
        if then_fail:
            raise ZeroDivisionError


def killed(work: Callable[[], None], before: int) -> bool:
    """Does ``work`` in a process of its own, which dies before its change number ``before``; whether it did die."""
    child = os.fork()
    if not child:
        left = [before]

        def watch(event: str, _: object) -> None:
            if event in CHANGES or (event == "open" and "journal" in str(_)):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        with contextlib.suppress(ZeroDivisionError):
            work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def found(folder: Path) -> dict[str, str]:
    settle(folder)
    with contextlib.suppress(OSError):  # the empty one of a process that was killed before or after all else
        (folder / HIDDEN).rmdir()
    return {path.name: path.read_text() if path.is_file() else "a folder" for path in sorted(folder.iterdir())}


def main(base: Path, *, then_fail: bool) -> None:
    def copy(name: str, to: str) -> None:
        shutil.rmtree(base / to, ignore_errors=True)
        shutil.copytree(base / name, base / to)

    publish(base / "old", OLD)
    for first in range(1000):
        copy("old", "cut")
        if not killed(lambda: publish(base / "cut", NEW, then_fail=then_fail), first):
            break
        copy("cut", "once")
        print(json.dumps([first, None, found(base / "once")]))
        for second in range(1000):
            copy("cut", "twice")
            if not killed(lambda: settle(base / "twice"), second):
                break
            print(json.dumps([first, second, found(base / "twice")]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), then_fail=sys.argv[2] == "fails")
