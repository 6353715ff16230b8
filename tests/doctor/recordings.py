"""Recordings of two ranks that lack nothing, and what takes one thing away from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tests.simulator import (
    Execution,
    Training,
    Variation,
    et_document,
    kineto_document,
    run,
    training_program,
    write_json,
)

Document = dict[str, Any]
Edit = Callable[[Document], None]
HOST, CALLS, DEVICE = (
    ("cpu_op", "user_annotation"),
    ("cuda_runtime", "cuda_driver"),
    ("kernel", "gpu_memcpy", "gpu_memset"),
)


@cache
def execution(rank: int) -> Execution:
    return run(training_program(1, Training(steps=3, layers=2, ranks=2, rank=rank)))


def write_run(
    folder: Path,
    *,
    kineto: Edit | None = None,
    et: Edit | None = None,
    ranks: tuple[int, ...] = (0, 1),
    dialect: str = "2024",
    cuda_sync: bool = True,
    vary: Variation | None = None,
    without_et: bool = False,
) -> Path:
    """``kineto_R.json`` and ``et_R.json``, each document as edited; returns the folder."""
    folder.mkdir(exist_ok=True)
    for rank in ranks:
        document = kineto_document(execution(rank), dialect=dialect, cuda_sync=cuda_sync, vary=vary)
        if kineto is not None:
            kineto(document)
        write_json(document, folder / f"kineto_{rank}.json")
        if not without_et:
            trace = et_document(execution(rank))
            if et is not None:
                et(trace)
            write_json(trace, folder / f"et_{rank}.json")
    return folder


def rows(document: Document, *categories: str) -> list[Document]:
    return [event for event in document["traceEvents"] if event.get("cat") in categories]


def without(*categories: str) -> Edit:
    """Takes all rows of some categories away."""

    def edit(document: Document) -> None:
        document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") not in categories]

    return edit


def without_args(*names: str) -> Edit:
    """Takes some arguments away from all rows."""

    def edit(document: Document) -> None:
        for event in document["traceEvents"]:
            for name in names:
                event.get("args", {}).pop(name, None)

    return edit


def without_first_calls(share: float) -> Edit:
    """A recording that began in the middle: the host and its calls are there from then on only."""

    def edit(document: Document) -> None:
        times = sorted(event["ts"] for event in rows(document, *CALLS))
        begin = times[int(share * len(times))]
        hidden = (*HOST, *CALLS)
        document["traceEvents"] = [e for e in document["traceEvents"] if e.get("cat") not in hidden or e["ts"] >= begin]

    return edit


def both(*edits: Edit) -> Edit:
    def edit(document: Document) -> None:
        for one in edits:
            one(document)

    return edit
