"""Find the folder of a run, and the files that it wrote for each of its ranks."""

from __future__ import annotations

from pathlib import Path

from graphlink.errors import InputError
from graphlink.output_names import SUMMARY


def run_folder(name: str) -> Path:
    """Return the folder of that name.

    Raises:
        InputError: there is none.
    """
    folder = Path(name)
    if not folder.is_dir():
        raise InputError("is no folder" if folder.exists() else "there is no such folder", path=folder)
    return folder


def rank_files(folder: Path, stem: str, rank: int | None) -> dict[int, Path]:
    """Return ``<stem>.<rank>.json`` of each rank, ascending; with ``rank`` only of that one.

    Raises:
        InputError: there is none.
    """
    files = {
        int(number): path for path in folder.glob(f"{stem}.*.json") if (number := path.name.split(".")[1]).isdecimal()
    }
    if rank is not None:
        files = {one: path for one, path in files.items() if one == rank}
    if not files:
        from graphlink.read.document import refuse_made

        refuse_made(folder / SUMMARY)
        of = "" if rank is None else f" of rank {rank}"
        raise InputError(
            f"holds no {stem}.<rank>.json{of}", path=folder, todo="name the folder that an earlier run wrote with --out"
        )
    return dict(sorted(files.items()))
