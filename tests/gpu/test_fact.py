"""The main fact of a run: what its GPUs spent most of their time on, and why."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from graphlink.gpu.fact import first_more_ns, main_fact, steps_stand


def rank(number: int = 0, *, gpus: int = 1, once: Sequence[int] = (), **spent: int) -> Any:
    """A rank whose GPUs spent so many ms each; ``idle`` with its cause behind it: ``idle_python``. ``once``: what single
    calls took."""
    idle = {name.removeprefix("idle_"): ms * 10**6 for name, ms in spent.items() if name.startswith("idle_")}
    device = SimpleNamespace(
        compute_ns=spent.get("compute", 0) * 10**6,
        exposed_comm_ns=spent.get("comm", 0) * 10**6,
        exposed_copy_ns=spent.get("copy", 0) * 10**6,
        idle_ns=sum(idle.values()),
        idle_by_cause_ns=idle,
        replays=UNSET,
        excluded_ns=spent["excluded"] * 10**6 if "excluded" in spent else UNSET,
    )
    ran_ns = sum(spent.get(name, 0) * 10**6 for name in ("compute", "comm", "copy", "before")) + device.idle_ns
    took = [SimpleNamespace(name=f"op{k}", once_ns=ms * 10**6, on_path_ns=ran_ns) for k, ms in enumerate(once)]
    times = {"replay": SimpleNamespace(measured_ns=ran_ns), "critical_path": SimpleNamespace(length_ns=ran_ns)}
    return SimpleNamespace(rank=number, world_size=1, gpu=[device] * gpus, steps=[], once=took, **times)


def said(*ranks: Any, run: Any = None) -> str:
    words = main_fact(SimpleNamespace(ranks=list(ranks), run=run))
    return "".join(word if isinstance(word, str) else word.text for word in words)


def waited(late: int, **waits: int) -> Any:
    evidence = f"rank {late} arrived last in 11 of 11 collectives (by chance: 50 %), usually by 2.000 ms"
    of_ranks = [SimpleNamespace(rank=int(name[1:]), wait_ns=ms * 10**6) for name, ms in waits.items()]
    return SimpleNamespace(waits=of_ranks, straggler=SimpleNamespace(rank=late, evidence=evidence))


@pytest.mark.parametrize(
    ("spent", "fact"),
    [
        ({"compute": 97, "idle_python": 3}, "The GPU spends 97.0 % of 100 ms computing, 3.0 % idle."),
        (
            {"compute": 60, "idle_python": 10, "idle_host_work": 30},
            "The GPU spends 60.0 % of 100 ms computing, 40.0 % idle: the host was busy with ops (host_work, 75.0 % of "
            "the idle time).",
        ),
        (
            {"compute": 10, "idle_start_delay": 90},
            "The GPU spends 90.0 % of 100 ms idle: work was launched and had not begun (start_delay, 100.0 % of the idle "
            "time); 10.0 % computing.",
        ),
        (
            {"copy": 60, "compute": 40},
            "The GPU spends 60.0 % of 100 ms copying and computing nothing, 40.0 % computing.",
        ),
        (
            {"comm": 60, "compute": 40},
            "The GPU spends 60.0 % of 100 ms communicating and computing nothing, 40.0 % computing.",
        ),
    ],
)
def test_the_largest_part_comes_first(spent: dict[str, int], fact: str) -> None:
    assert said(rank(**spent)) == fact


def test_a_run_most_of_which_has_no_work_says_so() -> None:
    assert said(rank(compute=100, before=100)) == "The GPU spends 100.0 % of 100 ms computing."
    assert said(rank(compute=100, before=900)) == (
        "The GPU has no work in 90.0 % of the run's 1.00 s. In the rest it spends 100.0 % of 100 ms computing."
    )


def test_what_is_not_known_comes_first() -> None:
    assert said(rank(compute=10, idle_unknown=80, idle_python=10)) == (
        "What the GPU did in 80.0 % of 100 ms is not known: the recording shows no work there, and no "
        "reason. As recorded, the GPU "
        "spends 90.0 % of 100 ms idle: the recording does not tell (unknown, 88.9 % of the idle time); "
        "10.0 % computing."
    )
    assert said(rank(compute=10, idle_unknown=40, idle_python=50)).startswith("The GPU spends 90.0 % of 100 ms idle")
    assert said(rank(compute=97, idle_unknown=3)) == "The GPU spends 97.0 % of 100 ms computing, 3.0 % idle."
    some, others = rank(compute=10, idle_python=90), rank(1, compute=10, idle_python=90)
    some.gpu[0].replays, some.steps = (2, 4), [rank(compute=5, idle_python=45), rank(compute=5, idle_python=45)]
    only = "Only 2 of 4 replays of graphs are recorded: what GPUs ran in the others is not known and counts as idle. "
    assert said(some, others).startswith(f"{only}As recorded, the 2 GPUs together spend 90.0 % of their time idle")
    assert said(some).startswith(
        f"{only}As recorded, in the step after the first, the GPU spends 90.0 % of 50.0 ms idle"
    )


def test_all_gpus_count_together() -> None:
    assert said(rank(compute=100, gpus=2), rank(1, compute=50, idle_python=50)).startswith(
        "The 3 GPUs together spend 83.3 % of their time computing, 16.7 % idle: "
    )
    assert said(rank(compute=100, gpus=2), rank(1, compute=50, idle_python=50)).endswith(
        " Their times add up to 300 ms. Rank 1 is idle most: 50.0 % of 100 ms."
    )


def test_steps_count_without_the_first_where_they_have_much_of_the_work() -> None:
    warm_up, step, empty = (
        rank(compute=20, idle_host_work=900),
        rank(compute=70, idle_python=30),
        rank(compute=5, idle_python=30),
    )
    whole = rank(compute=160, idle_host_work=900, idle_python=60)
    whole.steps = [warm_up, step, step]
    after = "after the first, the GPU spends 70.0 % of"
    cause = "computing, 30.0 % idle: the host was between ops (python, 100.0 % of the idle time)."
    assert said(whole) == f"In the 2 steps {after} 200 ms {cause}"
    whole.steps = [warm_up, step]
    assert said(whole) == f"In the step {after} 100 ms {cause}"
    whole.steps = [step]
    assert said(whole).startswith("The GPU spends 85.7 % of 1.12 s idle")
    whole.steps = [step, empty]
    assert said(whole).startswith("The GPU spends 85.7 % of 1.12 s idle")


def test_steps_of_a_host_that_ran_ahead_do_not_stand_for_the_run() -> None:
    whole, step = rank(compute=160, idle_python=60), rank(compute=70, idle_python=30)
    whole.steps = [step, step]
    for on_device, first in ((UNSET, "In the step after the first"), (5, "The GPU spends 72.7 % of 220 ms")):
        whole.iterations = SimpleNamespace(on_device_ns=on_device, count=2)
        assert said(whole).startswith(first)


def test_steps_that_agree_stand_for_the_run_whatever_the_first_takes() -> None:
    first, step, other = (
        rank(compute=300, idle_host_work=100),
        rank(compute=8, idle_python=2),
        rank(compute=1, idle_python=9),
    )
    whole = rank(compute=316, idle_host_work=100, idle_python=4)
    whole.iterations = SimpleNamespace(
        count=3, first_ns=400_000_000, mean_ns=10_000_000, longest_ns=11_000_000, on_device_ns=UNSET
    )
    whole.steps = [first, step, step]
    once, after = said(whole).split(" Record more steps, after a warm-up, ")
    assert once == (
        "92.9 % of the critical path, 390 ms of 420 ms, went into the first step, beyond the 10.0 ms that others take: "
        "that came once in this recording."
    )
    assert "In the 2 steps after the first, the GPU spends 80.0 % of 20.0 ms computing" in after
    assert steps_stand([whole])
    whole.steps = [first, step, other]
    assert "The GPU spends 75.2 % of 420 ms computing" in said(whole) and not steps_stand([whole])
    whole.steps, whole.iterations.count = [first, step], 2
    assert said(whole).startswith("The GPU spends 75.2 % of 420 ms computing") and not steps_stand([whole])
    whole.iterations.count, whole.iterations.longest_ns = 3, 200_000_000
    assert said(whole).startswith("The GPU spends"), "a later step takes half of that"
    whole.iterations.longest_ns, whole.critical_path.length_ns = 11_000_000, 800_000_000
    assert said(whole).startswith("The GPU spends"), "most of the path lies elsewhere"
    assert first_more_ns(whole) == 390_000_000
    whole.critical_path.length_ns = 40_000_000_000
    assert first_more_ns(whole) == 0, "no hundredth of the path"


def test_who_was_waited_for_is_named_where_most_of_it_was_waiting() -> None:
    late, early = rank(0, idle_python=90, compute=10), rank(1, comm=80, compute=20)
    words = "Rank 1 spends 80.0 % of 100 ms communicating and computing nothing"
    waits = ": mostly waiting for rank 0, which arrived last in 11 of 11 collectives."
    assert said(late, early, run=waited(0, r0=0, r1=70)).endswith(words + waits)
    assert said(late, early, run=waited(0, r0=0, r1=30)).endswith(f"{words}.")
    excluded = rank(1, comm=80, compute=20, excluded=70)
    assert "Rank 1" not in said(late, excluded, run=waited(0, r0=0, r1=0)), "what is set apart is no main fact"
    assert said(early, rank(2, comm=90, compute=10), run=waited(0, r1=70, r2=80)).endswith(
        f"{waits[:-1]}; 15.0 % computing. Their times add up to 200 ms."
    )


def test_that_ranks_are_missing_is_said_where_communication_may_hold_waiting_for_them() -> None:
    waiting, busy = rank(0, comm=30, compute=70), rank(0, comm=3, compute=97)
    waiting.world_size = busy.world_size = 2
    assert said(waiting).endswith(" 1 of 2 ranks is linked: communication may hold waiting for the others.")
    assert "linked" not in said(busy)
    waiting.world_size = 1
    assert "linked" not in said(waiting)


def test_what_is_excluded_counts_in_no_share() -> None:
    """Rank 0 is idle for the larger share of its time, rank 1 of what is not excluded."""
    first, other = rank(0, idle_python=60, compute=40), rank(1, idle_python=90, compute=10, comm=100, excluded=100)
    assert said(first, other).startswith("The 2 GPUs together spend 75.0 % of their time idle: ")
    apart = " Their times add up to 200 ms, without 100 ms of waiting in collectives that are excluded. "
    assert said(first, other).endswith(f"{apart}Rank 1 is idle most: 90.0 % of 100 ms.")


def test_what_came_once_stands_first_where_it_is_most() -> None:
    fact = "The GPU spends 97.0 % of 100 ms computing, 3.0 % idle."
    assert said(rank(compute=97, idle_python=3, once=[30, 20])) == fact
    assert said(rank(compute=97, idle_python=3, once=[31, 20])) == (
        "51.0 % of the critical path, 51.0 ms of 100 ms, went into calls that took long once in this recording, such as "
        "op0 (31.0 ms), op1 (20.0 ms). Record more steps, after a warm-up, to see what takes long each time. All else took "
        f"49.0 ms here; gains are per cent of the whole. {fact}"
    )
    several = said(rank(compute=100, once=[90]), rank(1, compute=100, once=[20]))
    assert several.startswith("55.0 % of the critical paths of 2 ranks, 110 ms of 200 ms, went into")


def test_without_gpus_the_path_is_told() -> None:
    path = SimpleNamespace(path_share_ns={"host": 90, "comm": 10})
    none = SimpleNamespace(rank=0, gpu=[], once=[], critical_path=SimpleNamespace(length_ns=9))
    told = said(none, none, run=SimpleNamespace(replay=path))
    path_says = "the longest chain of work in the run is host 90.0 %, communication 10.0 %"
    assert told == f"No work of a GPU was recorded: {path_says}."
    causes = {"warmup": 20, "dependency_stall": 40}
    for idle, words in (
        (0.6, "stand idle 60.0 % of the time"),
        (0.3, "stand idle 30.0 % of the time"),
    ):
        pipeline = SimpleNamespace(stages=4, bubble_rate_makespan=idle, causes_ns=causes)
        run = SimpleNamespace(replay=path)
        fact = main_fact(SimpleNamespace(ranks=[none], run=run, pipeline=pipeline))
        assert "".join(word if isinstance(word, str) else word.text for word in fact) == (
            f"No work of a GPU was recorded. In its steps the 4 ranks of the pipeline {words}; the largest cause is "
            "dependency_stall (it waited for work of another device or rank; 66.7 % of the idle time). The longest chain of work in the run is host 90.0 %, communication "
            "10.0 %."
        )
    assert said() == ""
