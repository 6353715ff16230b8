"""Phases of serving, prefill and decode, told apart by the names of steps or else of ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from graphlink.figures import figure
from graphlink.gpu.records import DeviceTime, Iterations, OverTime, StepTime
from graphlink.gpu.table import replay_words, replays_of
from graphlink.model import I64, NOWHERE, Linked
from graphlink.records import counted, ms, percent
from graphlink.spans import Neighbours, Spans, overlap_ns
from graphlink.steps import commonest, outermost
from graphlink.tables import MOST, distinct, grouped, values_at
from graphlink.wings import Field

if TYPE_CHECKING:
    from graphlink.gpu.time import GpuTime

PhaseName = Literal["prefill", "decode", "mixed"]

# What engines name their steps (vLLM ``execute_context_2(...)_generation_5(...)`` with the number of tokens before
# ``context`` or without, ``execute_new_1_cached_3``; sglang ``step[DECODE bs=32]``, ``step[EXTEND bs=1 toks=512]``),
# and what users name their ranges.
_CONTEXT: Final = re.compile(
    r"(?i)execute_(?:(?P<tokens>\d{1,12})_)?context_(?P<new>\d{1,9})\(.*\)_generation_(?P<old>\d{1,9})\(.*\)"
)
_CACHED: Final = re.compile(r"(?i)execute_new_(?P<new>\d{1,9})_cached_(?P<old>\d{1,9})")
_WORDS: Final[tuple[tuple[re.Pattern[str], PhaseName], ...]] = (
    (re.compile(r"(?i)(?<![a-z])(?:mixed|chunked[ _-]?prefill[ _-]?decode)(?![a-z])"), "mixed"),
    (re.compile(r"(?i)(?<![a-z])(?:prefill|extend)(?![a-z])"), "prefill"),
    (re.compile(r"(?i)(?<![a-z])decode(?![a-z])"), "decode"),
)
_BATCH: Final = re.compile(r"(?i)(?<![a-z])(?:bs|batch(?:[ _-]?size)?)[ =:_]+(\d{1,9})")
_TOKENS: Final = re.compile(r"(?i)(?<![a-z])(?:num[ _-])?(?:toks?|tokens?)[ =:_]+(\d{1,12})")


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one phase of serving; ``mixed`` are those in which some requests prefill and others decode.

    ``gpu_ns``: what they lasted, summed over devices, of which these were idle for ``idle_ns``. ``mean_batch``,
    ``tokens``: requests a step and tokens of all steps, where the names tell; None where they don't.
    """

    phase: PhaseName
    steps: int
    mean_ns: Annotated[int, figure(means="step")]
    longest_ns: Annotated[int, figure(means="step")]
    gpu_ns: Annotated[int, figure("GPU time")]
    idle_ns: int
    replays: Annotated[
        tuple[int, int] | UnsetType,
        figure("replays recorded", "as in `gpu`, of all its steps", unit="of all", head="replays"),
    ] = UNSET
    mean_batch: Annotated[float | None, figure("requests a step", unit="about")] = None
    tokens: Annotated[int | None, figure(unit="about")] = None

    @property
    def idle_share(self) -> Annotated[tuple[int, int], figure(unit="part", means="idle")]:
        return self.idle_ns, self.gpu_ns


def told_phase(name: str) -> tuple[PhaseName, int | None, int | None] | None:
    """Return the phase that a name tells, its number of requests and of tokens where it tells those; None where it
    names no phase.
    """
    found = _CONTEXT.fullmatch(name) or _CACHED.fullmatch(name)
    if found is not None:
        new, old = int(found["new"]), int(found["old"])
        tokens = found.groupdict().get("tokens")
        phase: PhaseName = "mixed" if new and old else "prefill" if new else "decode"
        return (phase, new + old, int(tokens) if tokens else None) if new + old else None
    words = [phase for pattern, phase in _WORDS if pattern.search(name)]
    if not words:
        return None
    batch, tokens_told = _BATCH.search(name), _TOKENS.search(name)
    one = words[0] if len(words) == 1 else "mixed"
    return one, int(batch[1]) if batch else None, int(tokens_told[1]) if tokens_told else None


def phases(gpu: GpuTime, linked: Linked, epoch_ns: int) -> list[Phase]:
    """Return the phases by steps whose names tell them, else by ranges; [] where neither do. O(n log n) in ranges and
    idle intervals.

    Ranges count where work for a device is launched in them (a loader decodes images, too), of ranges inside each other
    the outermost, of the thread with most of them.
    """
    named = [
        _span(
            told,
            step.end_ns - step.start_ns,
            sum(one.whole_ns for one in step.gpu),
            sum(one.idle_ns for one in step.gpu),
            replays_of(*step.gpu),
        )
        for step in gpu.steps
        if (told := told_phase(step.name)) is not None
    ]
    return _summed(named or _of_ranges(gpu, linked, epoch_ns))


def _span(
    told: tuple[PhaseName, int | None, int | None],
    took_ns: int,
    gpu_ns: int,
    idle_ns: int,
    replays: tuple[int, int] | UnsetType,
) -> Phase:
    """Return a step or a range as a phase of one step. ``told``: what its name tells."""
    phase, batch, tokens = told
    return Phase(
        phase=phase,
        steps=1,
        mean_ns=took_ns,
        longest_ns=took_ns,
        gpu_ns=gpu_ns,
        idle_ns=idle_ns,
        replays=replays,
        mean_batch=batch,
        tokens=tokens,
    )


def _of_ranges(gpu: GpuTime, linked: Linked, epoch_ns: int) -> list[Phase]:
    host, strings = linked.trace.host, linked.trace.strings
    told = {
        code: found
        for code in np.unique(host.name[host.annotation]).tolist()
        if (found := told_phase(strings[code])) is not None
    }
    rows = _launching(linked, np.flatnonzero(np.isin(host.name, [*told]) & host.annotation))
    if not len(rows):
        return []
    rows = outermost(host, commonest(rows, host.tid[rows]))
    start, end = host.start_ns[rows] - epoch_ns, host.end_ns[rows] - epoch_ns
    idle = np.zeros(len(rows), np.int64)
    replays = gpu.launched.within(gpu.launched.only, host.start_ns[rows], host.end_ns[rows])
    for one, (_, why) in zip(gpu.gpu, gpu.idle, strict=True):
        recorded = Spans(np.array([one.from_ns]), np.array([one.to_ns]))
        idle += end - start - overlap_ns(recorded, start, end) + overlap_ns(why, start, end)
    return [
        _span(told[code], took_ns, took_ns * len(gpu.gpu), ns, recorded)
        for code, took_ns, ns, recorded in zip(
            host.name[rows].tolist(), (end - start).tolist(), idle.tolist(), replays, strict=True
        )
    ]


def _launching(linked: Linked, rows: I64) -> I64:
    """Return those of the host rows ``rows`` in which their thread launches work for a device."""
    calls, host = linked.trace.calls, linked.trace.host
    call = distinct(linked.device_call[linked.device_call != NOWHERE])
    first = Neighbours.of(calls.tid[call], calls.start_ns[call]).since(host.tid[rows], host.start_ns[rows])
    return rows[values_at(calls.start_ns[call], first, MOST) < host.end_ns[rows]]


def _summed(spans: Iterable[Phase]) -> list[Phase]:
    out = []
    for phase, mine in grouped((span.phase, span) for span in spans).items():
        batch, tokens = ([getattr(span, name) for span in mine] for name in ("mean_batch", "tokens"))
        out.append(
            Phase(
                phase=phase,
                steps=len(mine),
                mean_ns=round(sum(span.mean_ns for span in mine) / len(mine)),
                longest_ns=max(span.longest_ns for span in mine),
                gpu_ns=sum(span.gpu_ns for span in mine),
                idle_ns=sum(span.idle_ns for span in mine),
                replays=replays_of(*mine),
                mean_batch=None if None in batch else round(sum(batch) / len(batch), 3),
                tokens=None if None in tokens else sum(tokens),
            )
        )
    return sorted(out, key=lambda one: (-one.steps * one.mean_ns, one.phase))


def phases_line(found: Iterable[Phase]) -> str:
    """Return the phases in a line: ``decode 12: 1.200 ms on average, idle 20.0 %, 32 requests a step; prefill
    2: ...``.
    """
    lines = (
        (
            f"{one.phase} {one.steps:,}: {ms(one.mean_ns)} ms{' on average' if one.steps > 1 else ''}",
            f"GPU idle {percent(one.idle_ns, one.gpu_ns)}{replay_words(one)}" if one.gpu_ns else "",
            "" if one.mean_batch is None else f"{one.mean_batch:g} requests a step",
            "" if one.tokens is None else counted(one.tokens, "token"),
        )
        for one in found
    )
    return "; ".join(", ".join(filter(None, parts)) for parts in lines)


_PARTS: Final = (
    "from_ns",
    "to_ns",
    "compute_ns",
    "exposed_comm_ns",
    "exposed_copy_ns",
    "idle_ns",
    "comm_ns",
    "copy_ns",
)


def table(ranks: Iterable[Any], *, by_step: bool) -> dict[str, list[Any]]:
    """Return columns of one row per device of each rank, in all or in each step: the parts of its time."""
    rows = [
        (rank.rank, *name, one.device, *(getattr(one, part) for part in _PARTS))
        for rank in ranks
        for name, devices in ([((step.name,), step.gpu) for step in rank.steps] if by_step else [((), rank.gpu)])
        for one in devices
    ]
    names = ("rank", *(["step"] if by_step else []), "device", *_PARTS)
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


FIELDS: Final = (
    Field("top_gain", "gpu", list[DeviceTime]),
    Field("top_gain", "steps", list[StepTime]),
    Field("top_gain", "iterations", Iterations | UnsetType, UNSET),  # absent where no steps were found
    Field("top_gain", "phases", list[Phase] | UnsetType, UNSET),  # absent where no name tells them
    Field("top_gain", "host_over_time", OverTime | UnsetType, UNSET),  # of ranks without devices, as `over_time`
)
