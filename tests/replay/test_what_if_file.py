"""``--what-if FILE``: what it chooses and does, that it is the same as options, and what is wrong in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphlink.cli import main
from graphlink.errors import InputError, UsageError
from graphlink.graph_model import EdgeKind
from graphlink.replay.assumptions import ASSUMPTIONS
from graphlink.replay.changes import ACTIONS, Changes, TimeChange, changes_of
from graphlink.replay.changes_file import load_changes
from graphlink.replay.counterparts import in_other_run
from graphlink.replay.folder import graph_files
from graphlink.replay.folder import load as load_files
from graphlink.replay.machines import play_ideal
from graphlink.replay.matching import matched
from graphlink.replay.report import ranges
from graphlink.replay.selection import NodeOperations, Selection
from graphlink.replay.whatif import Changed, apply, fit
from graphlink.replay.workload import Workload, workload
from tests.astra.et_files import coll, node, written
from tests.replay.hand import COLL, CPU, GPU, N, load

H, L, S, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.SYNC


def changes(folder: Path, text: str) -> Changes:
    path = folder / "what-if.toml"
    path.write_text(text)
    return load_changes(path)


def steps() -> list[N]:
    """Two steps on thread 7, each with a kernel on stream 20 that ``aten::item`` waits for; a worker on thread 8."""
    out: list[N] = []
    for k in range(2):
        at, t = 10 * k, 100 * k
        before = ((at - 5, H),) if k else ()
        out += [
            N(at, CPU, 2, before, f"ProfilerStep#{k + 3}", t, lane=7),
            N(at + 1, CPU, 8, ((at, H),), "aten::mm", t + 2, lane=7),
            N(
                at + 2,
                GPU,
                40,
                ((at + 1, L),) + (((at - 8, S),) if k else ()),
                "gemm",
                t + 10,
                lane=20,
                correlation=k + 1,
                delay_us=0,
            ),
            N(at + 3, CPU, 5, ((at + 1, H),), "aten::item", t + 10, lane=7),
            N(
                at + 4,
                CPU,
                4,
                ((at + 3, H), (at + 2, Y)),
                "aten::item (cont.)",
                t + 50,
                lane=7,
                calls=("cudaStreamSynchronize",),
                wake_us=3,
            ),
            N(at + 5, CPU, 20, ((at + 4, H),), "aten::add", t + 54, lane=7),
            N(at + 6, CPU, 1, (), "worker", t, lane=8),
        ]
    return out


def chosen(work: Workload, text: str, folder: Path, **more: Any) -> list[tuple[int, int]]:
    (change,) = changes(folder, f"[[time]]\n{text}\nscale = 2\n").time
    return [(work.rank(i), work.id(i)) for i in np.flatnonzero(Selection(work, **more).nodes(change)).tolist()]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("sort = 'kernel'", [2, 12]),
        ("step = 4\nsort = 'kernel'", [12]),
        ("step = '3-4'\nname = 'item'", [3, 4, 13, 14]),
        ("thread = 8", [6, 16]),
        ("thread = [8, 9]\nstep = '4'", [16]),
        ("thread = 7\nsort = 'kernel'", [2, 12]),  # launched there
        ("stream = 20", [2, 12]),
        ("stream = 21", []),
        ("rank = 0\nname = '^aten::mm$'", [1, 11]),
        ("rank = [1, 2]", []),
        ("name = 'mm|item'\nnth = 1", [1, 2, 3, 11, 12, 13]),  # of each name in each step
        ("thread = 7\nevery = 2", [4, 14]),
    ],
)
def test_a_selector_chooses_what_all_of_it_is_true_of(text: str, ids: list[int], tmp_path: Path) -> None:
    nodes = steps()
    for k in (0, 10):  # marks last until the next one begins
        nodes[nodes.index(next(n for n in nodes if n.id == k))] = next(n for n in nodes if n.id == k)._replace(us=2)
    work = load(nodes)
    file = work.files[0]
    file.end_ns[np.isin(file.id, [0, 10])] += 90_000
    assert chosen(work, text, tmp_path) == [(0, i) for i in ids]


def test_turns_are_of_a_step_and_what_is_inside_goes_along(tmp_path: Path) -> None:
    """Four reductions a step, each with a copy inside, a row of gloo's that it asked for, and its communication."""
    nodes = list[Any]()

    def add(start_us: int, name: str, us: int = 1, **more: Any) -> None:
        times = {"start_ns": 1000 * start_us, "end_ns": 1000 * (start_us + us), "duration_ns": 1000 * us}
        nodes.append(more.pop("make", node)(len(nodes), micros=us, is_cpu_op="device" not in more, **times, **more))
        nodes[-1].name = name

    for k in range(8):
        if k % 4 == 0:
            add(100 * k, f"ProfilerStep#{k // 4}", us=390)
        at = len(nodes)
        add(100 * k + 2, "c10d::allreduce_", us=9)
        add(100 * k + 3, "aten::copy_", data=[at], ctrl=[at])
        row: dict[str, Any] = {"data": [at], "tid": 5, "dep_kinds": ("string_list", ["thread"])}
        add(100 * k + 4, "gloo:all_reduce", us=0, **row)
        comm: dict[str, Any] = {"data": [at + 2], "device": -1, "dep_kinds": ("string_list", ["launch"])}
        add(100 * k + 4, "gloo:all_reduce", us=30, make=coll, ctrl=[at + 2], **comm)
    written(tmp_path, nodes)
    work = workload(load_files(graph_files(tmp_path)))
    of_turn = {text: chosen(work, f"path = 'allreduce_'\n{text}", tmp_path) for text in ("nth = '1-3'", "every = 4")}
    inside = [(0, i) for i, each in enumerate(nodes) if not each.name.startswith("Profiler")]
    assert of_turn == {"nth = '1-3'": inside[:12] + inside[16:28], "every = 4": inside[12:16] + inside[28:]}
    for text in ("nth = '5-6'", "every = 9\nnth = 5", "every = 5"):
        with pytest.raises(UsageError, match="no turn 5, as all else chooses at most 4 of one name in a step"):
            chosen(work, f"path = 'allreduce_'\n{text}", tmp_path)
    of_comm = chosen(work, "path = 'allreduce_'\nsort = 'comm'\nevery = 2\nnth = 1", tmp_path)
    assert of_comm == inside[3::8]


def test_turns_are_counted_among_nodes_of_the_sort_alone(tmp_path: Path) -> None:
    """The op has the name, too: it takes no turn, and does not take its kernels along."""
    on: dict[str, Any] = {"is_cpu_op": False, "device": 0, "stream": 7, "ctrl": [0]}
    nodes = [
        node(0, micros=8, is_cpu_op=True, start_ns=0, end_ns=8000, duration_ns=8000),
        node(1, micros=10, data=[0], dep_kinds=("string_list", ["launch"]), start_ns=10_000, end_ns=20_000, **on),
        node(2, micros=10, data=[0, 1], dep_kinds=("string_list", ["launch", "stream"]), start_ns=20_000, end_ns=30_000, **on),
    ]  # fmt: skip
    for each, name in zip(nodes, ("aten::mm", "gemm_mm", "gemm_mm"), strict=True):
        each.name = name
    written(tmp_path, nodes)
    work = workload(load_files(graph_files(tmp_path)))
    changed = made(work, tmp_path, "[[time]]\nname = 'mm'\nsort = 'kernel'\nnth = 2\nscale = 2\n").work
    assert (changed.cost_ns - work.cost_ns).tolist() == [0, 0, 10_000]


def test_a_path_is_of_the_callers_outermost_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    nodes = [
        node(0, micros=1, is_cpu_op=True),
        node(1, data=[0], ctrl=[0], micros=1, is_cpu_op=True),
        node(2, data=[1], ctrl=[1], micros=1, is_cpu_op=True),
        node(3, data=[2], ctrl=[2], micros=9, is_cpu_op=False),
        node(4, data=[2], ctrl=[1], micros=1, is_cpu_op=True),
    ]
    for one, name in zip(nodes, ("ProfilerStep#1", "Attention", "aten::mm", "gemm", "Attention (cont.)"), strict=True):
        one.name = name
    folder.mkdir()
    written(folder, nodes)
    work = workload(load_files(graph_files(folder)))
    of_node, paths = Selection(work).paths
    assert ["/".join(paths[path]) for path in of_node] == [
        "",
        "Attention",
        "Attention/aten::mm",
        "Attention/aten::mm",
        "Attention",
    ]
    assert chosen(work, "path = '^Attention/aten::mm$'", tmp_path) == [(0, 2), (0, 3)]
    operations = NodeOperations(
        np.array([-1, 0, 1, 1, 0]),
        (["Model", "Attention"], ["Model", "Attention", "aten::mm"]),
        ("train.py(3): step", "a\nmodel.py(7): forward"),
    )
    assert chosen(work, "path = 'Model/.*mm'", tmp_path, operations={0: operations}) == [(0, 2), (0, 3)]
    assert chosen(work, 'line = "model.py.7.: forward"\nsort = "kernel"', tmp_path, operations={0: operations}) == [
        (0, 3)
    ]
    with pytest.raises(UsageError, match="lines of these graphs are not known"):
        chosen(work, "line = 'x'", tmp_path)


def test_ranges_with_slashes_in_their_names_are_listed_whole(tmp_path: Path) -> None:
    """What is listed for a name is what its text chooses, be it by callers or by operations."""
    names = ("region: 0/0", "region: 0", "aten::mm", "gemm", "aten::add")
    nodes = [
        node(0, micros=1, is_cpu_op=True),
        node(1, data=[0], ctrl=[0], micros=2, is_cpu_op=True),
        node(2, data=[1], ctrl=[1], micros=4, is_cpu_op=True),
        node(3, data=[2], ctrl=[2], micros=8, is_cpu_op=False),
        node(4, data=[2], micros=16, is_cpu_op=True),
    ]
    for each, name in zip(nodes, names, strict=True):
        each.name = name
    written(tmp_path, nodes)
    work = workload(load_files(graph_files(tmp_path)))
    operations = {0: NodeOperations(np.array([-1, -1, -1, -1, 0]), (["a/b", "aten::add"],), ("",))}
    rows = ranges(Selection(work, operations), None)
    assert [(row.name, row.nodes) for row in rows] == [("a/b", 1), ("region: 0", 4), ("region: 0/0", 4)]
    for row in rows:
        path = json.dumps(row.scale.removeprefix("path:"))
        assert len(chosen(work, f"path = {path}", tmp_path, operations=operations)) == row.nodes


def test_a_step_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no step 5 in the graph\n  do: choose among 3, 4"):
        chosen(load(steps()), "step = '4-5'", tmp_path)
    with pytest.raises(UsageError, match="has no ProfilerStep"):
        chosen(load([N(0)]), "step = 1", tmp_path)


def made(work: Workload, folder: Path, text: str, groups: dict[int, tuple[int, ...]] | None = None) -> Changed:
    return apply(work, changes(folder, text), groups or {})


def total(work: Workload, folder: Path, text: str) -> int:
    return play_ideal(made(work, folder, text).work).total_ns // 1000


def test_what_each_action_does(tmp_path: Path) -> None:
    work = load(steps())
    both = "[[time]]\nname = 'gemm'\nscale = 0.5\n[[time]]\nname = 'add'\nadd_us = 5\n"
    assert play_ideal(work).total_ns == 2 * 74_000
    assert total(work, tmp_path, "[[time]]\nname = 'gemm'\nadd_us = 10\n") == 168
    assert (
        total(work, tmp_path, "[[time]]\nname = 'gemm'\nadd_us = -1000\n") == 2 * (2 + 8 + 5 + 20) + 2 * 1
    )  # waking up takes 3 of 4
    assert total(work, tmp_path, "[[time]]\nname = 'item'\nadd_us = 5\n") == 2 * 74, (
        "once for each op, not for its parts, in the wait's time"
    )
    assert total(work, tmp_path, "[[time]]\nname = 'add'\nremove = true\n") == 2 * 54
    assert total(work, tmp_path, "[[time]]\nname = 'item'\nremove = true\n") == 10 + 40 + 40, (
        "and does not wait: the device is behind"
    )
    assert total(work, tmp_path, "[[time]]\nname = 'gemm'\nremove = true\n") == 2 * 36, "and nobody waits for it"
    assert total(work, tmp_path, "[[time]]\nthread = 7\nlaunch_us = 3\n") == 2 * 77
    assert total(work, tmp_path, both + "[[wait]]\nremove = true\n") == 2 * (2 + 8 + 5 + 1 + 25)


def uneven_steps() -> list[N]:
    """Six steps of ``aten::mm`` and its kernel: in the fifth it takes twice as long, and the fourth saves a file."""
    out: list[N] = []
    for k in range(6):
        at, t = 10 * k, 100 * k
        before = ((10 * (k - 1) + 1 + 2 * (k == 4), H),) if k else ()
        out += [
            N(at, CPU, 1, before, f"ProfilerStep#{k}", t, lane=7),
            N(at + 1, CPU, 8, ((at, H),), "aten::mm", t + 1, lane=7),
            N(
                at + 2,
                GPU,
                80 if k == 4 else 41 if k == 5 else 40,
                ((at + 1, L),) + (((at - 8, S),) if k else ()),
                "gemm",
                t + 10,
                lane=20,
                correlation=k + 1,
                delay_us=3 if k == 2 else 1,
            ),
        ]
        out += [N(at + 3, CPU, 500, ((at + 1, H),), "save", t + 20, lane=7)] if k == 3 else []
    return out


def test_steps_are_as_the_quicker_ones(tmp_path: Path) -> None:
    work = load(uneven_steps())
    file = work.files[0]
    file.end_ns[np.isin(file.id, range(0, 60, 10))] += 90_000  # marks last until the next one begins
    (one,) = made(work, tmp_path, "[[time]]\nstep = '0-5'\nsort = 'kernel'\neven_out = true\n").done
    assert one.what == "kernel of step 0-5 as in the quicker steps: 1 nodes, -0.040 ms of work"
    (one,) = made(work, tmp_path, "[[time]]\nstep = '0-5'\neven_out = true\n").done
    assert one.what == "step 0-5 as in the quicker steps: 2 nodes, -0.540 ms of work"
    (one,) = made(work, tmp_path, "[[time]]\nstep = '3-5'\neven_out = true\n").done
    assert one.nodes == 0, "three steps do not tell which are usual"


def test_no_node_takes_longer(tmp_path: Path) -> None:
    work = load(uneven_steps())
    (one,) = made(work, tmp_path, "[[time]]\nname = 'gemm'\nmost_us = 40\n").done
    assert (one.kind, one.nodes, one.ns) == ("most_us", 2, -41_000)
    (one,) = made(work, tmp_path, "[[time]]\nsort = 'delay'\nmost_us = 1\n").done
    assert (one.nodes, one.ns) == (1, -2_000)


def test_what_is_removed_says_how_much(tmp_path: Path) -> None:
    (one,) = made(load(steps()), tmp_path, "[[time]]\nname = 'item'\nremove = true\n").done
    assert (one.kind, one.nodes, one.ns) == ("remove", 4, -18_000) and one.what.endswith(
        "4 nodes, -0.018 ms of work, 2 waits"
    )
    (one,) = made(load(steps()), tmp_path, "[[time]]\nname = 'gemm'\nadd_us = -50\n").done
    assert one.what == "gemm -50 us each: 2 nodes, -0.080 ms of work, 2 of them shorter than that: down to 0"


def test_a_wait_is_moved(tmp_path: Path) -> None:
    work = load(steps())
    file = work.files[0]
    file.end_ns[np.isin(file.id, [0, 10])] += 72_000
    moved = made(work, tmp_path, "[[wait]]\nmove_to_end_of_step = true\n")
    assert (
        moved.done[0].what
        == "sync all moved to the end of its step: 1 waits, 1 edges; 1 stay, as there is no such place behind them"
    )
    sync = moved.work.kind == Y
    assert sorted(zip(moved.work.source[sync].tolist(), moved.work.target[sync].tolist(), strict=True)) == [
        (2, 7),
        (9, 11),
    ]
    before = made(work, tmp_path, "[[wait]]\nwhich = 'aten::item'\nmove_before = 'add'\n")
    sync = before.work.kind == Y
    assert sorted(zip(before.work.source[sync].tolist(), before.work.target[sync].tolist(), strict=True)) == [
        (2, 5),
        (9, 12),
    ]
    gone = made(work, tmp_path, "[[wait]]\nmove_before = 'add'\n[[wait]]\nremove = true\n")
    assert not (gone.work.kind == Y).any(), "a wait that was moved can be removed"
    gone = made(work, tmp_path, "[[wait]]\nremove = true\n[[wait]]\nmove_before = 'add'\n")
    assert not (gone.work.kind == Y).any(), "one that was removed cannot be moved"


def test_a_moved_wait_awaits_what_is_on_its_stream_by_then(tmp_path: Path) -> None:
    nodes = [
        N(0, CPU, 5, name="a", start_us=0),
        N(1, GPU, 10, ((0, L),), start_us=5),
        N(2, CPU, 1, ((0, H), (1, Y)), name="a (cont.)", start_us=15, calls=("cudaStreamSynchronize",)),
        N(3, CPU, 5, ((2, H),), name="b", start_us=16),
        N(4, GPU, 50, ((1, S), (3, L)), start_us=21),
        N(5, CPU, 5, ((3, H),), name="c", start_us=21),
    ]
    for call, awaited in (
        ("cudaStreamSynchronize", {1, 4}),
        ("cudaDeviceSynchronize", {1, 4}),
        ("cudaEventSynchronize", {1}),
    ):
        work = load([n._replace(calls=(call,)) if n.calls else n for n in nodes])
        found = made(work, tmp_path, "[[wait]]\nmove_before = '^c$'\n").work
        assert set(found.source[found.kind == Y].tolist()) == awaited, call


def test_a_wait_that_found_all_done_stays_before_the_op_that_follows_if_that_is_where_it_goes(tmp_path: Path) -> None:
    nodes = [
        N(0, CPU, 5, name="a", start_us=0),
        N(1, GPU, 1, ((0, L),), start_us=1),
        N(2, CPU, 5, ((0, H), (1, Y)), name="b", start_us=5, calls=("cudaStreamSynchronize",)),
        N(3, CPU, 5, ((2, H),), name="b", start_us=10),
    ]
    found = made(load(nodes), tmp_path, "[[wait]]\nmove_before = '^b$'\n").work
    assert found.target[found.kind == Y].tolist() == [2]


@pytest.mark.parametrize(("launched_us", "awaited"), [(14, {1, 3}), (17, {1, 3}), (30, {1})])
def test_an_event_counts_from_the_middle_of_when_its_stream_can_have_been_told(
    launched_us: int, awaited: set[int], tmp_path: Path
) -> None:
    """Stream 1 was told to wait for node 3 between its launch (8 us) and that of node 6; the wait goes to 13 us."""
    nodes = [
        N(0, CPU, 3, name="a", start_us=0),
        N(1, GPU, 1, ((0, L),), start_us=1, lane=1),
        N(2, CPU, 4, ((0, H), (1, Y)), name="a (cont.)", start_us=4, calls=("cudaStreamSynchronize",)),
        N(3, GPU, 40, ((4, L),), start_us=9, lane=2),
        N(4, CPU, 5, ((2, H),), name="b", start_us=8),
        N(5, CPU, 1, ((4, H),), name="c", start_us=13),
        N(6, GPU, 5, ((1, S), (3, EdgeKind.EVENT), (7, L)), start_us=50, lane=1),
        N(7, CPU, 5, ((5, H),), name="d", start_us=launched_us),
    ]
    found = made(load(nodes), tmp_path, "[[wait]]\nmove_before = '^c$'\n").work
    assert set(found.source[found.kind == Y].tolist()) == awaited


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("step = 4", 1),
        ("thread = 7", 2),
        ("stream = 20", 2),
        ("name = 'Stream.*Sync'", 2),
        ("sort = 'kernel'", 2),
        ("which = 14", 1),
    ],
)
def test_waits_are_chosen(text: str, waits: int, tmp_path: Path) -> None:
    work = load(steps())
    file = work.files[0]
    file.end_ns[np.isin(file.id, [0, 10])] += 90_000
    assert made(work, tmp_path, f"[[wait]]\n{text}\nremove = true\n").done[0].nodes == waits
    with pytest.raises(UsageError, match="no wait of that id or name among 2"):
        made(work, tmp_path, f"[[wait]]\n{text}\nrank = 5\nremove = true\n")


def ranks(*us: int) -> Workload:
    """A rank each: two kernels of an op that take so long."""
    return load(
        *(
            [N(0, CPU, 1, name="op"), N(1, GPU, n, ((0, L),), "gemm"), N(2, GPU, 2 * n, ((0, L), (1, S)), "gemm")]
            for n in us
        )
    )


def test_a_rank_becomes_as_the_others(tmp_path: Path) -> None:
    changed = made(ranks(10, 90, 30, 20), tmp_path, "[[time]]\nrank = 1\neven_out = true\n")
    assert changed.work.cost_ns[3:6].tolist() == [1_000, 20_000, 40_000] and changed.done[0].nodes == 3
    assert changed.work.cost_ns[:3].tolist() == [1_000, 10_000, 20_000]
    with pytest.raises(UsageError, match="no other rank is replayed with it"):
        made(ranks(10), tmp_path, "[[time]]\nrank = 0\neven_out = true\n")


def test_times_of_another_run(tmp_path: Path) -> None:
    def kernels(*given: tuple[str, int]) -> list[Any]:
        nodes = [node(0, micros=5, is_cpu_op=True)]
        for i, (name, us) in enumerate(given, 1):
            nodes.append(node(i, data=[0], ctrl=[0], micros=us, is_cpu_op=False, dep_kinds=("string_list", ["launch"])))
            nodes[-1].name = name
        return nodes

    for folder, nodes in (
        ("here", kernels(("a", 1), ("b", 1), ("b", 1), ("c", 7))),
        ("there", kernels(("a", 9), ("b", 2), ("b", 4), ("b", 6))),
    ):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, nodes)
    selection = Selection(workload(load_files(graph_files(tmp_path / "here"))))
    everything = np.ones(len(selection.work), np.bool_)
    (tmp_path / "there" / "trace.0.et").rename(tmp_path / "there" / "trace.5.et")
    with pytest.raises(UsageError, match="has no graph of rank 0"):
        in_other_run(selection, everything, str(tmp_path / "there"))
    of_rank_5 = in_other_run(selection, everything, str(tmp_path / "there"), 5)
    (tmp_path / "there" / "trace.5.et").rename(tmp_path / "there" / "trace.0.et")
    of_rank_0 = in_other_run(selection, everything, str(tmp_path / "there"))
    assert of_rank_5[0].tolist() == of_rank_0[0].tolist() and of_rank_5[1] == of_rank_0[1] == 2
    (tmp_path / "what-if.toml").write_text("[[time]]\nsort = 'kernel'\nlike = 'there'\n")
    out = tmp_path / "out.json"
    assert (
        main(["replay", str(tmp_path / "here"), "--what-if", str(tmp_path / "what-if.toml"), "--json", str(out)]) == 0
    )
    (what_if,) = json.loads(out.read_bytes())["what_if"]
    told = what_if["done"][0]
    assert told["nodes"] == 3 and told["ns"] == (9 + 4 + 4 - 3) * 1000
    assert told["what"].endswith(
        ", 2 of them by the median of their name; 1 with 0.007 ms have no counterpart and stay"
    )


def test_a_network_by_latency_and_bandwidth(tmp_path: Path) -> None:
    work = load(
        [N(0, COLL, 50, group=1, size=4_000_000), N(1, COLL, 50, ((0, S),), group=2, size=4_000_000, comm_type=2)]
    )
    groups = {1: (0, 1, 2, 3), 2: (0, 1)}
    text = "[[network]]\nbandwidth_gb_per_s = 100\nlatency_us = 5\n"
    # ALL_REDUCE of 4: 6 steps, 1.5 of its bytes; ALL_GATHER of 2: a step, a shard
    assert made(work, tmp_path, text, groups).work.cost_ns.tolist() == [90_000, 45_000]
    assert made(work, tmp_path, text + "group = 2\n", groups).work.cost_ns.tolist() == [50_000, 45_000]
    with pytest.raises(UsageError, match="there are 1, 2"):
        made(work, tmp_path, text + "group = 'dp'\n", groups)


def test_removed_communication_meets_nobody(tmp_path: Path) -> None:
    work = load(
        [N(0, CPU, 5), N(1, COLL, 3, ((0, L),), name="nccl")], [N(0, CPU, 90), N(1, COLL, 3, ((0, L),), name="nccl")]
    )
    gone = made(work, tmp_path, "[[time]]\nname = 'nccl'\nremove = true\n").work
    met = matched(gone, {})
    assert not met.code.any() and set(met.partner.tolist()) == {-1}
    one = matched(made(work, tmp_path, "[[time]]\nrank = 0\nname = 'nccl'\nremove = true\n").work, {})
    assert one.expected.tolist() == [1]


def test_what_is_gone_delays_nobody(tmp_path: Path) -> None:
    """What waited for it waits for what it had waited for; a call that waited for it alone does not wake up late."""
    work = load(
        [
            N(0, CPU, 5),
            N(1, GPU, 30, ((0, L),), "real"),
            N(2, CPU, 5, ((0, H),)),
            N(3, GPU, 10, ((1, S), (2, L)), "gone"),
            N(4, CPU, 9, ((2, H), (3, Y)), "b (cont.)", wake_us=8),
        ]
    )
    found = made(work, tmp_path, "[[time]]\nname = 'gone'\nremove = true\n").work
    sync = found.kind == Y
    assert (found.source[sync].tolist(), found.target[sync].tolist(), found.lags()[sync].tolist()) == (
        [1],
        [4],
        [8_000],
    )
    assert play_ideal(found).total_ns == 35_000 + 9_000
    found = made(work, tmp_path, "[[time]]\nsort = 'kernel'\nremove = true\n").work
    assert not (found.kind == Y).any() and play_ideal(found).total_ns == 11_000


# the same by options


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    def rank(us: int) -> list[Any]:
        nodes = [
            node(0, micros=5, is_cpu_op=True),
            node(1, data=[0], micros=us, is_cpu_op=False, dep_kinds=("string_list", ["launch"])),
            node(2, data=[0, 1], micros=1, is_cpu_op=True, dep_kinds=("string_list", ["host", "sync"])),
            coll(3, [2], comm_type=0, pg_name="1"),
        ]
        nodes[1].name, nodes[2].name = "gemm", "aten::item"
        return nodes

    (tmp_path / "run").mkdir()
    return written(tmp_path / "run", rank(40), rank(60), groups={"1": [0, 1]})


OPTIONS = [
    ("[[time]]\nsort = 'kernel'\nname = 'gemm'\nscale = 0.5", ["--scale", "kernel:gemm=0.5"]),
    ("[[time]]\nrank = 1\nname = 'gemm'\nscale = 0", ["--scale", "rank1:gemm=0"]),
    ("[[time]]\nlaunch_us = 2.5", ["--launch-cost", "2.5"]),
    ("[[wait]]\nremove = true", ["--remove-sync", "all"]),
    ("[[wait]]\nwhich = 'aten::item'\nremove = true", ["--remove-sync", "aten::item"]),
    ("[[network]]\nbandwidth_gb_per_s = 0.001", ["--bandwidth", "0.001"]),
]


def reported(folder: Path, *arguments: str) -> Any:
    out = folder / "r.json"
    assert main(["replay", str(folder), *arguments, "--json", str(out)]) == 0
    return json.loads(out.read_bytes())


@pytest.mark.parametrize("which", [[k] for k in range(len(OPTIONS))] + [[0, 2, 3, 5]])
def test_a_file_and_options_give_the_same(folder: Path, which: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "what-if.toml"
    path.write_text("\n".join(OPTIONS[k][0] for k in which))
    options = [part for k in which for part in OPTIONS[k][1]]
    by_file = reported(folder, "--what-if", str(path))
    text = capsys.readouterr().out
    assert by_file["what_if"][0]["gain_pct"] and by_file == reported(folder, *options)
    assert capsys.readouterr().out == text
    for one in by_file["what_if"][0]["done"]:
        assert ASSUMPTIONS[one["kind"]] == (one["rests_on"], one["cannot_know"])
        assert f"{one['kind'].replace('_', ' ')}: {one['rests_on']} {one['cannot_know']}" in " ".join(text.split())


def test_options_add_to_a_file(folder: Path) -> None:
    path = folder / "what-if.toml"
    path.write_text(OPTIONS[0][0])
    both = reported(folder, "--what-if", str(path), *OPTIONS[3][1])
    assert both == reported(folder, *OPTIONS[0][1], *OPTIONS[3][1])


def test_records_of_options_and_file_are_equal(tmp_path: Path) -> None:
    given = changes_of(["kernel:gemm=0.5", "host=2"], ["all", "5"], 25.0, -2.0)
    text = "\n".join(
        (
            "[[time]]\nsort = 'kernel'\nname = 'gemm'\nscale = 0.5\n[[time]]\nsort = 'host'\nscale = "
            "2\n[[time]]\nlaunch_us = -2",
            "[[wait]]\nwhich = 'all'\nremove = true\n[[wait]]\nwhich = '5'\nremove = "
            "true\n[[network]]\nbandwidth_gb_per_s = 25",
        )
    )
    assert changes(tmp_path, text) == given


def test_a_change_that_another_one_leaves_nothing_of_is_made_all_the_same(tmp_path: Path) -> None:
    text = (
        "[[time]]\nname = 'item'\nremove = true\n[[time]]\nsort = 'kernel'\nremove = true\n[[wait]]\nwhich = "
        "'aten::item'\nremove = true\n"
    )
    found = fit(load(steps()), changes(tmp_path, text), {})
    assert not found.refused and len(found.done) == 3


# what is wrong


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("[[time]]\nrank = 1\nscale = 'a'", "Expected `float | null`, got `str`", "[[time]] number 1, key scale"),
        (
            "[[time]]\nrank = 1\nscale = 1\n[[time]]\nscael = 1",
            "there is no key 'scael'",
            "[[time]] number 2, key scael",
        ),
        ("[[tim]]\nrank = 1", "there is no key 'tim'", "key tim"),
        ("[[time]]\nrank = 1", "wants one of scale, add_us", "[[time]] number 1"),
        ("[[time]]\nrank = 1\nscale = 1\nremove = true", "and has scale, remove", "[[time]] number 1"),
        ("[[time]]\nscale = 1", "names nothing to change", "[[time]] number 1"),
        ("[[time]]\nname = '('\nscale = 1", "is no regular expression", "[[time]] number 1, key name"),
        ("[[time]]\nname = 3\nscale = 1", "Expected `str`, got `int`", "[[time]] number 1, key name"),
        ("[[time]]\nstep = '3-1'\nscale = 1", "step '3-1' is neither", "[[time]] number 1"),
        ("[[time]]\nrank = 0\nscale = nan", "scale nan is no factor", "[[time]] number 1"),
        ("[[time]]\nrank = 0\nadd_us = inf", "add_us inf is no time", "[[time]] number 1"),
        ("[[time]]\nrank = 0\nnth = '3-'\nscale = 1", "nth '3-' is neither", "[[time]] number 1"),
        ("[[time]]\nnth = '0'\nscale = 1", "nth '0': turns count from 1", "[[time]] number 1"),
        ("[[time]]\nnth = '1,5-6'\nevery = 4\nscale = 1", "every 4 there is no turn 5", "[[time]] number 1"),
        ("[[time]]\nrank = 0\nscale = 1\nlike_rank = 1", "like_rank wants like", "[[time]] number 1"),
        ("[[time]]\neven_out = true", "wants the rank", "[[time]] number 1"),
        ("[[time]]\nmost_us = 3", "names nothing to change", "[[time]] number 1"),
        ("[[time]]\nrank = 0\nmost_us = -1", "most_us -1", "[[time]] number 1"),
        ("[[wait]]\nremove = true\nrank = [-1]", "Expected `int` >= 0", "[[wait]] number 1, key rank"),
        ("[[wait]]\nremove = true\nmove_before = 'x'", "and has remove, move_before", "[[wait]] number 1"),
        ("[[network]]\nlatency_us = 1", "missing required field `bandwidth_gb_per_s`", "[[network]] number 1"),
        ("[[network]]\nbandwidth_gb_per_s = 0", "is no bandwidth", "[[network]] number 1"),
        ("time = 3", "Expected `array`, got `int`", "[[time]]"),
        ("x =", "is no TOML", ""),
        ("", "has no changes", ""),
        ("[[time]]\nname = 'a\x07'\nscale = 1", "is no TOML", ""),
    ],
)
def test_what_is_wrong_is_named_with_file_entry_and_key(text: str, what: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        changes(tmp_path, text)
    assert what in error.value.what and (error.value.where or "") == where
    assert str(error.value.path).endswith("what-if.toml") and error.value.todo


def test_a_file_that_is_none_is_an_error_of_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "x.toml").write_bytes(b"\xff\xfe")
    for name in ("missing.toml", "x.toml"):
        assert main(["replay", str(folder), "--what-if", str(folder / name)]) == 1
        assert "Traceback" not in capsys.readouterr().err
    assert main(["replay", str(folder), "--list", "--what-if", str(folder / "x.toml")]) == 2


def test_each_kind_of_change_has_its_assumption() -> None:
    kinds = {TimeChange(rank=0, **{name: value}).kind for name, value in _actions().items()}
    assert kinds | {"remove_wait", "move_wait", "network", "cuda_graph", "buckets", "dataloader"} == set(ASSUMPTIONS)
    for rests_on, cannot_know in ASSUMPTIONS.values():
        assert rests_on.endswith(".") and cannot_know.startswith("It cannot know ")


def _actions() -> dict[str, Any]:
    return {name: {"remove": True, "even_out": True, "like": "x"}.get(name, 1) for name in ACTIONS}


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        "a = " + "{a=" * 100_000,
        "a" + ".a" * 100_000 + " = 1",
        "[" + "a" + ".a" * 100_000 + "]",
        "a = {b" + ".b" * 100_000 + " = 1}",
        "#" * 2_000_000,
        "[[time]]\nscale = 0.5\nthread = 99999999999999999999999999",
        "[[time]]\nscale = 0.5\nrank = 9223372036854775807",
    ],
)
def test_what_is_no_file_of_changes_is_refused_before_it_costs(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        changes(tmp_path, text)


def test_brackets_and_dots_in_texts_are_none(tmp_path: Path) -> None:
    text = "[[time]]\nscale = 0.5\nname = " + json.dumps("(.*." * 40 + "{[(")
    with pytest.raises(InputError, match="pattern"):
        changes(tmp_path, text)
    assert changes(tmp_path, "[[time]]\nscale = 0.5\nname = '" + r"\[\[." * 20 + "' # [[[[[[[[[[[[[[[[[[\n").any
    one_line = ", ".join(f"{{name = 'gemm{k}', scale = 0.5}}" for k in range(40))
    assert len(changes(tmp_path, f"time = [{one_line}]").time) == 40
    with pytest.raises(InputError, match="more than"):
        load_changes(Path("/dev/zero"))
