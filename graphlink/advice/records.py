"""Advice, as ``graphlink advice --json`` prints it."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from graphlink.records import Short
from graphlink.replay.records import Band

LEAST_PCT: Final = 0.05  # of a gain that is printed
ENOUGH_PCT: Final = 1.0  # of a gain of which the first screen says more than what it is
Kind = Literal[
    "data_loading",
    "launch_bound",
    "blocking_sync",
    "exposed_communication",
    "straggler",
    "pipeline_bubble",
    "heaviest_work",
    "copies",
    "tensor_cores",
    "layout_conversions",
    "small_kernels",
    "late_starts",
    "allocator",
    "profiler",
    "memory",
    "once",
    "python_pause",
    "uneven_kernels",
    "uneven_steps",
    "aside",
    "optimizer",
    "compilation",
    "small_collectives",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


class Advice(Short, msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change. ``gain_ns``: how much earlier the run would end if what is ``supposed`` came true;
    ``gain_pct`` of the critical path, ``gain_step_pct`` of a step that counts, where steps are marked: all but the
    first.

    Where no what-if tells, these and ``band`` are None and ``why_not`` says why. ``command`` computes the gain again.
    ``code``: a line to paste that does what ``todo`` says first; "" where none does.
    """

    kind: Kind
    what: str
    evidence: str
    todo: str
    code: str = ""
    gain_ns: int | None = None
    gain_pct: float | None = None
    gain_step_pct: float | None = None
    band: Band | None = None
    supposed: str = ""
    command: str = ""
    why_not: str = ""

    @property
    def most_pct(self) -> float | None:
        """Return the larger of the gains of the run and of a step, in per cent; None where it has none."""
        return None if self.gain_pct is None else max(self.gain_pct, self.gain_step_pct or 0)

    @property
    def share_pct(self) -> float:
        """Return the gain of a step that counts, where that is known, else of the run, in per cent; 0 without any."""
        return (self.gain_pct if self.gain_step_pct is None else self.gain_step_pct) or 0.0


class AdviceReport(Short, msgspec.Struct, frozen=True, kw_only=True):
    """Advice for a run of ``ranks``, the largest gain of a step first (of the run, where no steps are marked), then
    what has none. Gains are of each alone and do not add up.

    ``replayed_ns``: what the run takes on ``machine`` as recorded; ``path_ns``: the length of its critical path (over
    ranks), which gains are of. ``notes``: what the gains leave out. ``once``: what came once, where that is most, in
    words.
    """

    ranks: list[int]
    machine: str
    replayed_ns: int
    path_ns: int
    advice: list[Advice]
    notes: list[str]
    once: str = ""

    def __str__(self) -> str:
        """Return the advice as ``graphlink advice`` prints all of it."""
        from graphlink.advice.table import advice_table
        from graphlink.cli.out import rendered

        return rendered(advice_table(self, len(self.advice)))
