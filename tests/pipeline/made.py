"""Pipelines for tests: every generated schedule of a size, a plain simulator, and ranges as a recording would have
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace

import numpy as np

from graphlink.model import NOWHERE
from graphlink.pipeline.records import Pass, Ranges
from graphlink.pipeline.schedules import ONE_CHUNK, SCHEDULES, V_SHAPED, ActionTimes, Order, Timed, orders

Action = tuple[str, int, int]  # phase, virtual stage, microbatch
COLUMNS = [field.name for field in fields(Ranges) if field.name != "rules"]


def actions(order: Order) -> list[Action]:
    return [
        (Pass(phase).name, int(stage), int(k))
        for phase, stage, k in zip(order.phase, order.stage, order.microbatch, strict=True)
    ]


def short(order: Order) -> str:
    """``0F0 0F1 4I0``: as torch writes them."""
    return " ".join(f"{stage}{phase}{microbatch}" for phase, stage, microbatch in actions(order))


def even_times(stages: int, forward_ns: int, input_ns: int, weight_ns: int, transfer_ns: int = 0) -> ActionTimes:
    """The same times on all virtual stages (``stages`` of them) and boundaries; B takes I and W together."""
    durations = np.array([forward_ns, input_ns + weight_ns, input_ns, weight_ns], np.int64)
    transfer = np.full(max(stages - 1, 0), transfer_ns, np.int64)
    return ActionTimes(np.repeat(durations[:, None], stages, axis=1), transfer, transfer)


def possible(sizes: Iterable[tuple[int, int]]) -> Iterator[tuple[str, int, int, int]]:
    """Every schedule, p, m, v that exists for the given p and m."""
    for stages, microbatches in sizes:
        for schedule in SCHEDULES:
            for chunks in (1,) if schedule in ONE_CHUNK else (2,) if schedule in V_SHAPED else (2, 3):
                try:
                    orders(schedule, stages, microbatches, chunks)
                except ValueError:
                    continue
                yield schedule, stages, microbatches, chunks


def plain(made: Sequence[Order], times: ActionTimes) -> list[list[tuple[int, int]]]:
    """Start and end of each action, by going round the ranks until all has run; as the definition says and no
    faster.
    """
    end: dict[Action, int] = {}
    at, clock = [0] * len(made), [0] * len(made)
    out: list[list[tuple[int, int]]] = [[] for _ in made]
    todo = [actions(order) for order in made]
    home = {stage: rank for rank, one in enumerate(todo) for _, stage, _ in one}
    exist = {(phase.replace("I", "B"), stage, k) for one in todo for phase, stage, k in one}

    def needs(action: Action) -> list[tuple[Action, int]]:
        phase, stage, k = action
        kind, before, lag = ("F", stage - 1, times.forward_ns) if phase == "F" else ("B", stage + 1, times.backward_ns)
        own = {"B": [(("F", stage, k), 0)], "I": [(("F", stage, k), 0)], "W": [(("B", stage, k), 0)]}.get(phase, [])
        if phase == "W" or (kind, before, k) not in exist:
            return own
        return [*own, ((kind, before, k), int(lag[min(before, stage)]) if home[before] != home[stage] else 0)]

    moved = True
    while moved:
        moved = False
        for rank, one in enumerate(todo):
            while at[rank] < len(one):
                together = one[at[rank] : at[rank] + 1 + bool(made[rank].paired[at[rank]])]
                wanted = [need for action in together for need in needs(action)]
                own = {(phase.replace("I", "B"), stage, k) for phase, stage, k in together}
                wanted = [(need, lag) for need, lag in wanted if need not in own]
                if any(need not in end for need, _ in wanted):
                    break
                now = max([clock[rank], *(end[need] + lag for need, lag in wanted)])
                for phase, stage, _ in together:
                    cost = int(times.duration_ns[Pass[phase], stage])
                    out[rank].append((now, now + cost))
                    now += cost
                for phase, stage, k in together:
                    end[phase.replace("I", "B"), stage, k] = now
                clock[rank], at[rank], moved = now, at[rank] + len(together), True
    assert all(k == len(one) for k, one in zip(at, todo, strict=True)), "deadlock"
    return out


def recorded(made: Sequence[Order], timed: Timed, step: int = 0, from_ns: int = 0) -> list[Ranges]:
    """Ranges of one step in which everything is known."""
    out = []
    for rank, order in enumerate(made):
        start, end = timed.start_ns[rank] + from_ns, timed.end_ns[rank] + from_ns
        count = len(order)
        out.append(
            Ranges(
                phase=order.phase,
                step=np.full(count, step),
                stage=order.stage,
                chunk=order.stage // len(made),
                microbatch=order.microbatch,
                start_ns=start,
                end_ns=end,
                busy_ns=end - start,
                device_ops=np.ones(count, np.int64),
                rule=np.zeros(count, np.int32),
                rules=("made",),
            )
        )
    return out


def joined(*steps: list[Ranges]) -> list[Ranges]:
    """Several steps, one after the other, by rank."""
    return [
        replace(parts[0], **{name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS})
        for parts in zip(*steps, strict=True)
    ]


def picked(ranges: Ranges, rows: np.ndarray) -> Ranges:
    return replace(ranges, **{name: getattr(ranges, name)[rows] for name in COLUMNS})


def without(ranges: list[Ranges], *names: str) -> list[Ranges]:
    """The same with columns that the recording does not know."""
    return [replace(rank, **{name: np.full(len(rank.phase), NOWHERE) for name in names}) for rank in ranges]
