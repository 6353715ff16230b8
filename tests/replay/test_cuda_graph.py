"""Parts as CUDA graphs: what-ifs of a recording that launches one by one, against the simulated truth of the program
with graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from graphlink.errors import UsageError
from graphlink.patterns import UserPattern
from graphlink.replay.changes import Changes, GraphChange
from graphlink.replay.cuda_graph import capturable
from graphlink.replay.machines import play_ideal
from graphlink.replay.path import critical_path, families
from graphlink.replay.selection import NodeOperations, Selection
from graphlink.replay.whatif import Changed, apply
from graphlink.replay.workload import Workload
from tests.replay.test_what_if import recorded
from tests.simulator import Api, Call, Program, ThreadBuilder, run
from tests.simulator.program import Action, Begin, End

PART = "## part ##"


def program(seed: int) -> Program:
    """Steps of ops before, in and after a part, each with a kernel on one stream, and a wait at their end."""
    random = Random(seed)
    main, longest = ThreadBuilder("python", random), random.choice([6_000, 15_000, 60_000])

    def ops(count: int, longest: int = 150_000) -> None:
        for _ in range(count):
            with main.op("aten::linear"), main.op("aten::addmm"):
                main.launch(7, main.between(2_000, longest))

    for step in range(4):
        with main.op(f"ProfilerStep#{step}", annotation=True):
            ops(random.randint(3, 6))
            with main.op(PART, annotation=True):
                ops(random.randint(10, 60), longest)
            ops(random.randint(3, 6))
            with main.op("aten::item"):
                main.stream_sync(7)
    return Program((main.thread(),), seed=seed)


def with_graphs(recorded: Program) -> Program:
    """The program with one launch in each part."""
    thread = recorded.threads[0]
    out: list[Action] = []
    inside: list[Action] | None = None
    depth = 0
    for action in thread.actions:
        if inside is None:
            out.append(action)
            if isinstance(action, Begin) and action.name == PART:
                inside, depth = [], 1
            continue
        depth += isinstance(action, Begin) - isinstance(action, End)
        inside.append(action)
        if not depth:
            work = tuple(work for one in inside if isinstance(one, Call) for work in one.work)
            out += [Call(Api.LAUNCH, "cudaGraphLaunch", 8_000, stream=7, work=work), action]
            inside = None
    return Program((type(thread)(thread.name, tuple(out)),), seed=recorded.seed)


def backward(seed: int, *, as_graph: bool) -> Program:
    """Steps with a forward pass, then a backward pass on another thread for which the first one waits, then the
    optimizer; or the same kernels in one graph a step."""
    random = Random(seed)
    main, autograd = ThreadBuilder("python", random), ThreadBuilder("autograd", random)
    kernels = [[random.randint(2_000, 30_000) for _ in range(random.randint(3, 20))] for _ in range(3 * 4)]

    def ops(builder: ThreadBuilder, name: str, lengths: Sequence[int]) -> None:
        for length in lengths:
            with builder.op(name):
                builder.launch(7, length)

    for step in range(4):
        forward, back, optimizer = kernels[3 * step : 3 * step + 3]
        with main.op(PART, annotation=True):
            if as_graph:
                work = tuple(main.work(length, "kernel", None) for length in (*forward, *back, *optimizer))
                main.actions.append(Call(Api.LAUNCH, "cudaGraphLaunch", 8_000, stream=7, work=work))
            else:
                ops(main, "aten::addmm", forward)
                main.signal(f"loss {step}")
                autograd.wait_for(f"loss {step}")
                ops(autograd, "AddmmBackward0", back)
                autograd.signal(f"gradients {step}")
                main.wait_for(f"gradients {step}")
                ops(main, "aten::_foreach_add_", optimizer)
        with main.op("aten::item"):
            main.stream_sync(7)
    return Program((main.thread(), autograd.thread()), seed=seed)


def test_the_thread_of_the_backward_pass_is_in_the_graph(tmp_path: Path) -> None:
    """PyTorch captures it with the rest, as seen on an H100 (``fixtures/real/gpu/pairs/train-graph``)."""
    for seed in range(6):
        true_ns = run(backward(seed, as_graph=True)).makespan_ns
        work = recorded(tmp_path, run(backward(seed, as_graph=False)), cuda_sync=True)
        for replayed in (changed(work), by_itself(work)):
            assert "4 launches" in replayed.done[0].what
            assert abs(play_ideal(replayed.work).total_ns / true_ns - 1) < 0.02


def changed(work: Workload, name: str = PART, launch_us: float | None = None) -> Changed:
    return apply(work, Changes(cuda_graph=(GraphChange(name=UserPattern(name, "name"), launch_us=launch_us),)), {})


def by_itself(work: Workload) -> Changed:
    return apply(work, Changes(cuda_graph=(GraphChange(auto=True),)), {})


@pytest.mark.parametrize("seeds", [6, pytest.param(100, marks=pytest.mark.long)])
def test_a_part_takes_what_it_takes_as_a_graph(tmp_path: Path, seeds: int) -> None:
    errors, gains = [], []
    for seed in range(seeds):
        before = program(seed)
        execution = run(before)
        true_ns = run(with_graphs(before)).makespan_ns
        work = recorded(tmp_path, execution, cuda_sync=True)
        errors.append(100 * (play_ideal(changed(work).work).total_ns / true_ns - 1))
        gains.append(100 * (1 - true_ns / execution.makespan_ns))
    print(
        f"{seeds} programs: median {np.median(np.abs(errors)):.2f} %, worst {max(errors, key=abs):+.2f} %; gain "
        f"{np.median(gains):.0f} %"
    )
    assert np.median(np.abs(errors)) <= 1
    assert max(map(abs, errors)) <= 4
    assert np.median(gains) > 5


def small(tmp_path: Path, inside: Sequence[str]) -> Workload:
    """A part with a kernel, and what is named."""
    main, other = ThreadBuilder("python", Random(1)), ThreadBuilder("other", Random(1))
    with main.op(PART, annotation=True):
        with main.op("aten::mm"):
            main.launch(7, 500_000)
        if "sync" in inside:
            with main.op("aten::item"):
                main.stream_sync(7)
        if "thread" in inside:
            with other.op("aten::sort"):
                other.host(3_000_000)
            other.signal("sorted")
            main.wait_for("sorted")
        if "copy" in inside:
            with main.op("aten::copy_"):
                main.launch(7, 40_000, kind="gpu_memcpy", name="Memcpy DtoH (Device -> Pageable)")
        if "loader" in inside:
            with main.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", annotation=True):
                main.host(50_000)
        with main.op("aten::relu"):
            main.launch(7, 30_000)
    with main.op("aten::add"):
        main.stream_sync(7)
    with main.op("aten::sum"):
        main.host(5_000)
    threads = (main.thread(), other.thread()) if other.actions else (main.thread(),)
    return recorded(tmp_path, run(Program(threads)), cuda_sync=True)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("sync", "waits for the device in aten::item"),
        ("thread", "waits for another thread in"),
        ("copy", "pageable memory, which blocks"),
        ("loader", "loads data in enumerate"),
    ],
)
def test_what_no_graph_can_hold_is_refused_by_name(tmp_path: Path, what: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        changed(small(tmp_path, [what]))


def test_a_part_that_is_not_there_or_launches_nothing_is_refused(tmp_path: Path) -> None:
    work = small(tmp_path, [])
    with pytest.raises(UsageError, match="no such op or range"):
        changed(work, "## other ##")
    with pytest.raises(UsageError, match="launches no device work"):
        changed(work, "aten::sum")


def test_the_launch_of_a_graph_takes_what_is_given_and_is_said(tmp_path: Path) -> None:
    work = small(tmp_path, [])
    given = changed(work, launch_us=25)
    assert "1 launches of 2 device ops, 25 us each (given)" in given.done[0].what
    assert "whenever it runs" in given.done[0].rests_on
    head = next(n for n in range(len(work)) if work.name(n) == PART)
    assert given.work.cost_ns[head] == 25_000
    assert "no launch of a graph" in changed(work).done[0].what


def waits_between(times: int, *, wait: str) -> Program:
    """Steps of ops with something in the middle, ``times`` kernels before it and as many after it."""
    main = ThreadBuilder("python", Random(3))
    for step in range(3):
        with main.op(f"ProfilerStep#{step}", annotation=True):
            for half in range(2):
                for _ in range(times):
                    with main.op("aten::linear"), main.op("aten::addmm"):
                        main.launch(7, 4_000)
                if not half and wait == "sync":
                    with main.op("## loss ##", annotation=True), main.op("aten::item"):
                        main.stream_sync(7)
                if not half and wait == "copy":
                    with main.op("aten::to"), main.op("aten::copy_"):
                        main.launch(7, 40_000, kind="gpu_memcpy", name="Memcpy HtoD (Pageable -> Device)")
                if not half and wait == "loader":
                    with main.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", annotation=True):
                        main.host(50_000)
    with main.op("aten::sum"):
        main.device_sync()
    return Program((main.thread(),))


@pytest.mark.parametrize(
    ("wait", "named"), [("sync", "aten::item (3)"), ("copy", "aten::to (3)"), ("loader", "enumer")]
)
def test_graphs_go_from_one_thing_in_the_way_to_the_next(tmp_path: Path, wait: str, named: str) -> None:
    work = recorded(tmp_path, run(waits_between(6, wait=wait)), cuda_sync=True)
    replayed = by_itself(work)
    (done,) = replayed.done
    assert "6 launches of 36 device ops" in done.what
    assert named in done.what
    assert play_ideal(replayed.work).total_ns < play_ideal(work).total_ns
    for node in range(len(work)):  # what stays out takes what it took
        if work.name(node) in ("aten::item", "aten::to", "## loss ##"):
            assert replayed.work.cost_ns[node] == work.cost_ns[node]


def test_where_nothing_can_be_a_graph_it_says_what_is_in_the_way(tmp_path: Path) -> None:
    work = recorded(tmp_path, run(waits_between(1, wait="sync")), cuda_sync=True)
    with pytest.raises(
        UsageError, match=r"--cuda-graph auto: launches no device work; not in a graph.*aten::item \(3\)"
    ):
        by_itself(work)


def test_what_an_op_took_once_and_not_each_time_stays(tmp_path: Path) -> None:
    """Starting CUDA or choosing an algorithm takes what it takes before the first graph can run."""

    def steps(once_ns: int) -> Workload:
        main = ThreadBuilder("python", Random(5))
        for step in range(4):
            with main.op(f"ProfilerStep#{step}", annotation=True):
                for number in range(12):
                    with main.op("aten::linear"), main.op("aten::addmm"):
                        if (step, number) == (0, 3):
                            main.host(once_ns)
                        main.launch(7, 4_000)
        with main.op("aten::sum"):
            main.device_sync()
        return recorded(tmp_path, run(Program((main.thread(),))), cuda_sync=True)

    always, with_once = by_itself(steps(1_000)), by_itself(steps(80_000_000))
    assert " once" not in always.done[0].what
    assert "ms that ops took once and not each time stay (most in aten::addmm)" in with_once.done[0].what
    played = play_ideal(with_once.work)
    assert (
        families(with_once.work, critical_path(with_once.work, played), 1)[0].name == "aten::addmm (and others), once"
    )
    added_ns = played.total_ns - play_ideal(always.work).total_ns
    assert added_ns == pytest.approx(80_000_000, rel=0.01)


def test_what_comes_in_each_of_a_few_steps_did_not_come_once(tmp_path: Path) -> None:
    main = ThreadBuilder("python", Random(6))
    for step in range(5):
        with main.op(f"ProfilerStep#{step}", annotation=True):
            with main.op("aten::step"):
                main.host(10_000_000)
                main.launch(7, 4_000)
            for number in range(30):
                with main.op(f"aten::op{number}"):
                    main.host(10_000)
                    main.launch(7, 4_000)
    with main.op("aten::sum"):
        main.device_sync()
    replayed = by_itself(recorded(tmp_path, run(Program((main.thread(),))), cuda_sync=True))
    assert " once" not in replayed.done[0].what
    assert play_ideal(replayed.work).total_ns < 5_000_000


@pytest.mark.parametrize(
    ("inside", "why"), [([], ""), (["sync"], "## part ## cannot be a graph: it waits for the device in ")]
)
def test_what_launches_most_is_listed_with_what_is_in_the_way(tmp_path: Path, inside: list[str], why: str) -> None:
    """An op that launches once is no graph; who called what is in the way is told."""
    work = small(tmp_path, inside)
    frames = NodeOperations(np.zeros(len(work), np.int64), ((),), ("train.py(3): main\ntrain.py(12): step",))
    (listed,) = capturable(work, Selection(work, {0: frames}), 8)
    assert (listed.name, listed.nodes, listed.launches, listed.cuda_graph) == (PART, 1, 2, f"^{PART}$")
    assert listed.why_not.startswith(why) and (", called in function step (train.py:12))" in listed.why_not) is bool(
        why
    )
