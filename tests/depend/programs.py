"""Simulated programs through the depend stage, with their truth translated into rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np

from graphlink.depend import build as stage
from graphlink.depend.build import Built
from graphlink.depend.device import DeviceSide, device_side
from graphlink.depend.host import HostSide, host_side
from graphlink.depend.reject import Dependencies
from graphlink.linking.call_roles import Role, roles
from graphlink.linking.clocks import on_host_clock
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.linking.tidy import tidy
from graphlink.model import Linked, Trace
from graphlink.read.kineto import read_kineto
from tests.simulator import DeviceClock, Execution, Program, RowIds, Shape, Variation, random_program, run, write_kineto

Pairs = set[tuple[int, int]]


@dataclass(frozen=True)
class Case:
    """A program as recorded (``linked``), as understood, and as it was: pairs of (device row, call) and (device row,
    device row).
    """

    execution: Execution
    ids: RowIds
    linked: Linked
    dependencies: Dependencies
    host: HostSide
    device: DeviceSide
    waits: Pairs
    event_edges: Pairs
    call_of: dict[int, int]

    @property
    def trace(self) -> Trace:
        return self.linked.trace

    def stream(self, row: int) -> tuple[int, int]:
        return int(self.trace.device.device[row]), int(self.trace.device.stream[row])

    def found_waits(self) -> Pairs:
        return set(zip(self.dependencies.host.source.tolist(), self.dependencies.host.call.tolist(), strict=True))

    def found_events(self) -> Pairs:
        return set(
            zip(self.dependencies.device.source.tolist(), self.dependencies.device.device_op.tolist(), strict=True)
        )

    def inferred_events(self) -> Pairs:
        pairs = list(zip(self.device.events.source.tolist(), self.device.events.device_op.tolist(), strict=True))
        return set(pairs[len(self.dependencies.device.source) :])

    def blocked(self) -> set[int]:
        """Synchronisation calls that had to wait for more than 3 us."""
        role = roles(self.trace.calls, self.trace.strings)
        sync = {Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC}
        calls = (
            self.call_of[self.ids.call_correlation[i]]
            for i, c in enumerate(self.execution.calls)
            if c.blocked_ns > 3_000
        )
        return {c for c in calls if Role(int(role[c])) in sync}

    def missing(self, truth: Pairs, found: Pairs) -> Pairs:
        """What is true but neither found nor implied by a later op of the same stream that has the edge."""
        latest: dict[tuple[int, tuple[int, int]], int] = {}
        for source, target in found:
            key = (target, self.stream(source))
            latest[key] = max(latest.get(key, source), source)
        return {(s, t) for s, t in truth if latest.get((t, self.stream(s)), -1) < s}


def shape(random: Random, ops: int = 40) -> Shape:
    threads, streams, devices = random.choice([1, 2, 3]), random.randint(1, 6), random.choice([1, 2])
    return Shape(threads=threads, streams=streams, devices=devices, ops=ops, queries=random.random() < 0.5)


@lru_cache(maxsize=64)
def ran(seed: int, what: Shape) -> Execution:
    """A run of a program as it is: many tests record the same ones, each in its way."""
    return run(random_program(seed, what))


def case(
    folder: Path,
    seed: int,
    dialects: list[str],
    *,
    cuda_sync: bool,
    sync: str = "cuda",
    vary: Variation | None = None,
    dirt: Callable[[Program], Program] | None = None,
    ops: int = 40,
) -> Case:
    random = Random(seed)
    what = shape(random, ops)
    execution = run(dirt(random_program(seed, what))) if dirt else ran(seed, what)
    path, vary = folder / "kineto.json", vary or Variation()
    ids = write_kineto(execution, path, dialect=random.choice(dialects), cuda_sync=cuda_sync, vary=vary)
    return understood(path, execution, ids, sync, vary.device_clock)


def understood(
    path: Path, execution: Execution, ids: RowIds, sync: str = "cuda", clock: DeviceClock | None = None
) -> Case:
    shown = (clock or DeviceClock()).at
    linked = linked_of(path)
    comm = communication(linked)
    found = stage.find(linked, stage.BuildOptions(sync=sync), comm)
    host = host_side(linked, comm, found.cuda, found.dependencies, 20_000)
    device = device_side(linked, found.dependencies, host, 20_000, found.enqueued)
    rows = linked.trace.device
    # Ops of one graph launch share a correlation; they stand in start order on both sides.
    truth = sorted(
        range(len(execution.device)), key=lambda i: (ids.device_correlation[i], shown(execution.device[i].start_ns), i)
    )
    read = np.lexsort((np.arange(len(rows.start_ns)), rows.start_ns, rows.correlation))
    row_of = {t: int(r) for t, r in zip(truth, read, strict=True)}
    call_of = {int(c): i for i, c in enumerate(linked.trace.calls.correlation)}
    waits = {(row_of[d], call_of[ids.call_correlation[c]]) for d, c in execution.waits}
    events = {(row_of[a], row_of[b]) for a, b in execution.event_edges}
    return Case(execution, ids, linked, found.dependencies, host, device, waits, events, call_of)


def linked_of(path: Path) -> Linked:
    trace = on_host_clock(tidy(read_kineto(path)))
    return link(trace, None, match_hosts(trace, None))


def built(linked: Linked, **options: object) -> Built:
    return stage.build(linked, communication(linked), stage.BuildOptions(**options))  # type: ignore[arg-type]
