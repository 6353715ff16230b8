"""The plain reference of pipeline simulation: when each range of an order starts and ends, by asking again until all is
known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from tests.simulator import Slot

Times = dict[tuple[int, Slot], tuple[Fraction, Fraction]]


def simulate(
    orders: Sequence[Sequence[Slot]],
    range_time: Callable[[str, int], Fraction],
    transfer: Callable[[int], Fraction],
    chunks: int,
) -> Times:
    """(rank, slot) -> start, end. ``transfer`` is the delay behind a virtual stage."""
    stages, times = len(orders), {}
    last = stages * chunks - 1

    def arrival(rank: int, slot: Slot) -> Fraction | None:
        stage = slot.chunk * stages + rank
        if slot.phase == "W" or (slot.phase == "F" and stage == 0) or (slot.phase in "BI" and stage == last):
            return Fraction(0)
        other = stage - 1 if slot.phase == "F" else stage + 1
        found = times.get((other % stages, Slot(slot.phase, other // stages, slot.microbatch)))
        return None if found is None else found[1] + transfer(min(stage, other))

    progress = True
    while progress:
        progress = False
        for rank, order in enumerate(orders):
            free = Fraction(0)
            for slot in order:
                if (rank, slot) not in times:
                    ready = arrival(rank, slot)
                    if ready is None:
                        break
                    start = max(free, ready)
                    times[rank, slot] = start, start + range_time(slot.phase, slot.chunk * stages + rank)
                    progress = True
                free = times[rank, slot][1]
    assert len(times) == sum(map(len, orders)), "the order cannot be run"
    return times
