"""The pipeline of a run in ``summary.json`` (key ``pipeline``), and how it is printed."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.pipeline.records import Theory
from graphlink.records import Short, Table, ms


class Pipeline(Short, msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline of the run; docs/bubbles.md has the definitions. What cannot be known is absent.

    Communication is not work and the optimizer is outside, in all figures. ``stages``: pipeline ranks. The sum of
    ``causes_ns`` is stages x makespan - work over all steps.
    """

    stages: int
    microbatches: int
    chunks: int
    schedule: str
    nearest: str | UnsetType = UNSET  # schedule unknown: the nearest one, and the first difference
    bubble_rate_makespan: float | UnsetType = UNSET
    bubble_rate_zb: float | UnsetType = UNSET
    bubble_ratio_ideal: float | UnsetType = UNSET
    causes_ns: dict[str, int]
    optimizer_sync_ns: int | UnsetType = UNSET  # after the makespan, in no sum
    theory: Theory | UnsetType = UNSET  # absent where the schedule is unknown
    warnings: list[str] = []


def shape(pipeline: Pipeline) -> str:
    """Describe schedule and size in words."""
    counts = ((pipeline.stages, "stage"), (pipeline.microbatches, "microbatch"), (pipeline.chunks, "chunk"))
    sized = ", ".join(f"{n:,} {word}{'' if n == 1 else 'es' if word.endswith('ch') else 's'}" for n, word in counts)
    return f"{'schedule unknown' if pipeline.schedule == 'unknown' else pipeline.schedule}: {sized}"


def pipeline_table(pipeline: Pipeline) -> list[str | Table]:
    """Return the table that is printed of it."""
    theory = pipeline.theory
    rows = [("nearest", pipeline.nearest)] if pipeline.nearest is not UNSET else []
    for name in ("bubble_rate_makespan", "bubble_rate_zb", "bubble_ratio_ideal"):
        value, ideal = getattr(pipeline, name), getattr(theory, name, UNSET) if name != "bubble_ratio_ideal" else UNSET
        if value is not UNSET:
            rows.append((name, f"{value:.4f}" + ("" if ideal is UNSET else f" (the schedule itself {ideal:.4f})")))
    whole = sum(pipeline.causes_ns.values())
    causes = sorted(((ns, name) for name, ns in pipeline.causes_ns.items() if ns), key=lambda item: (-item[0], item[1]))
    parts = ", ".join(f"{name} {ms(ns)} ms ({100 * ns / whole:.1f} %)" for ns, name in causes)
    rows.append(("idle", f"{ms(whole)} ms" + (f": {parts}" if parts else "")))
    if pipeline.optimizer_sync_ns is not UNSET and pipeline.optimizer_sync_ns:
        rows.append(("after it", f"optimizer_sync {ms(pipeline.optimizer_sync_ns)} ms"))
    rows += [("warning", text) for text in pipeline.warnings]
    return [f"pipeline, {shape(pipeline)}", Table(rows)]
