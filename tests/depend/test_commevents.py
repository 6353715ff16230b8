"""Event waits around communication, read from the order of calls: against the truth of simulated programs, without any
row.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.depend.programs import Case, Pairs, understood
from tests.simulator import Communicating, communicating_program, run, write_kineto

SEEDS = range(8)
ALIKE = {
    "awaited at once": Communicating(),
    "awaited in order": Communicating(awaited="in order"),
    "without NCCL's own waits": Communicating(awaited="in order", own_waits=False),
    "never awaited": Communicating(awaited="never"),
    "the last awaited": Communicating(awaited="last"),
    "called on a stream without work": Communicating(hidden=True),
    "called on a side stream": Communicating(side=True),
    "with the user's copies between": Communicating(copies=True, awaited="in order"),
    "of two communicators": Communicating(two=True, awaited="in order"),
}


def case(folder: Path, seed: int, what: Communicating, dialect: str = "2024") -> Case:
    execution = run(communicating_program(seed, what))
    path = folder / "kineto.json"
    return understood(path, execution, write_kineto(execution, path, dialect=dialect, cuda_sync=False))


def reached(case: Case, edges: Pairs, asked: Pairs) -> int:
    """How many of the asked pairs (source, target) have a path along streams and event edges."""
    order = case.device.order.before.tolist()
    into: dict[int, list[int]] = {t: [b] for t, b in enumerate(order) if b >= 0}
    for source, target in edges:
        into.setdefault(target, []).append(source)
    count = 0
    for source, target in asked:
        seen, open_ = {target}, [target]
        while open_ and source not in seen:
            new = [s for s in into.get(open_.pop(), []) if s not in seen]
            seen.update(new)
            open_ += new
        count += source in seen
    return count


@pytest.mark.parametrize(("name", "recall"), [
    ("awaited at once", 1.0), ("awaited in order", 1.0), ("without NCCL's own waits", 1.0), ("never awaited", 1.0),
    ("called on a stream without "
     "work", 0.8), ("called on a side stream", 0.95), ("with the user's copies between", 0.4),
    ("of two communicators", 0.8),
])  # fmt: skip
def test_what_is_read_is_true_and_most_of_what_is_true_is_read(tmp_path: Path, name: str, recall: float) -> None:
    false = found = true = reached_ = 0
    for seed in SEEDS:
        c = case(tmp_path, seed, ALIKE[name])
        edges = c.found_events() | c.inferred_events()
        found += len(edges)
        false += len(edges) - reached(c, c.event_edges, edges)
        true += len(c.event_edges)
        reached_ += reached(c, edges, c.event_edges)
    print(f"{name}: {found} edges, {false} false; {reached_} of {true} true ones implied")
    assert false <= 0.005 * found
    assert reached_ >= recall * true


@pytest.mark.parametrize(("dialect", "recall"), [("2026", 1.0), ("2024", 0.9)])
def test_a_wait_that_names_its_work_by_number_is_for_that_and_no_older_one(
    tmp_path: Path, dialect: str, recall: float
) -> None:
    """Without the number the oldest work is read, which is true, but less than the truth."""
    reached_ = true = 0
    for seed in SEEDS:
        c = case(tmp_path, seed, ALIKE["the last awaited"], dialect)
        edges = c.found_events() | c.inferred_events()
        assert reached(c, c.event_edges, edges) == len(edges)
        assert (edges <= c.event_edges) == (dialect == "2026")
        true += len(c.event_edges)
        reached_ += reached(c, edges, c.event_edges)
    print(f"{dialect}: {reached_} of {true}")
    assert reached_ >= recall * true
