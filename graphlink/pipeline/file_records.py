"""The records that a ``bubbles.json`` was written from, as far as it holds them: for pictures and questions asked later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, UnsetType

from graphlink.model import I64, NOWHERE
from graphlink.pipeline.file import CAUSES, PHASES, Bubbles, RangeEntry
from graphlink.pipeline.records import Idle, Ranges, Step


def ranges_of(file: Bubbles) -> tuple[Ranges, ...]:
    """The ranges of each rank of ``file.stages`` as the record that they were written from."""
    by_rank: dict[int, list[RangeEntry]] = {stage.rank: [] for stage in file.stages}
    for entry in file.ranges:
        by_rank[entry.rank].append(entry)
    return tuple(_columns(entries) for entries in by_rank.values())


def replica(file: Bubbles, number: int = 0) -> tuple[int, ...]:
    """Where in ``file.stages`` the ranks of one pipeline stand, in the order of their stages."""
    mine = (i for i, entry in enumerate(file.stages) if entry.replica == number)
    return tuple(sorted(mine, key=lambda i: file.stages[i].stage))


def idle_of(file: Bubbles) -> Idle:
    """The idle intervals of ``file`` as the record that they were written from."""
    texts = {text: i for i, text in enumerate(dict.fromkeys(e.evidence for e in file.idle))}
    cause = {name: i for i, name in enumerate(CAUSES)}
    return Idle(
        rank=np.array([e.rank for e in file.idle], np.int64),
        stage=np.array([e.stage for e in file.idle], np.int64),
        step=_numbers([e.step for e in file.idle]),
        start_ns=np.array([e.start_ns for e in file.idle], np.int64),
        end_ns=np.array([e.end_ns for e in file.idle], np.int64),
        cause=np.array([cause[e.cause] for e in file.idle], np.uint8),
        evidence=np.array([texts[e.evidence] for e in file.idle], np.int32),
        texts=tuple(texts),
    )


def steps_of(file: Bubbles) -> tuple[Step, ...]:
    return tuple(Step(s.number, s.start_ns, s.end_ns, tuple(s.work_ns), tuple(s.own_ns)) for s in file.steps)


def _columns(entries: Sequence[RangeEntry]) -> Ranges:
    rules = {text: i for i, text in enumerate(dict.fromkeys(e.rule for e in entries))}
    return Ranges(
        phase=np.array([PHASES.index(e.phase) for e in entries], np.uint8),
        step=_numbers([e.step for e in entries]),
        stage=_numbers([e.stage for e in entries]),
        chunk=_numbers([e.chunk for e in entries]),
        microbatch=_numbers([e.microbatch for e in entries]),
        start_ns=np.array([e.start_ns for e in entries], np.int64),
        end_ns=np.array([e.end_ns for e in entries], np.int64),
        busy_ns=np.array([e.busy_ns for e in entries], np.int64),
        device_ops=np.array([0 if e.device_ops is UNSET else e.device_ops for e in entries], np.int64),
        rule=np.array([rules[e.rule] for e in entries], np.int32),
        rules=tuple(rules),
    )


def _numbers(values: Sequence[int | UnsetType]) -> I64:
    return np.array([NOWHERE if v is UNSET else v for v in values], np.int64)
