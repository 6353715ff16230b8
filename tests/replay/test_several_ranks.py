"""What-ifs of a folder of ranks: each change on the ranks that it fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from graphlink.cli import main
from graphlink.errors import InputError, UsageError
from graphlink.graph_model import EdgeKind
from graphlink.replay.changes import Changes, changes_of, parse_scale
from graphlink.replay.folder import load_groups
from graphlink.replay.syncs import waiting_ranks
from graphlink.replay.whatif import fit, told_ranks
from tests.astra.et_files import coll, node, written
from tests.replay.hand import CPU, GPU, N, load

H, L, Y = EdgeKind.HOST, EdgeKind.LAUNCH, EdgeKind.SYNC


def waiting(first: int, kernel: str, *more: Any) -> list[Any]:
    """A host node, a kernel of 40 us, and a host node that waits for it: ids from ``first``."""
    a, b, c = first, first + 1, first + 2
    nodes = [
        node(a, micros=5, is_cpu_op=True),
        node(b, data=[a], micros=40, is_cpu_op=False, dep_kinds=("string_list", ["launch"])),
        node(c, data=[a, b], micros=1, is_cpu_op=True, dep_kinds=("string_list", ["host", "sync"])),
        *more,
    ]
    nodes[1].name = kernel
    return nodes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Node 2 waits on rank 0 alone, node 11 is awaited on ranks 1 and 2; rank 2 has communication."""
    return written(
        tmp_path,
        waiting(0, "gemm"),
        waiting(10, "relu"),
        waiting(10, "relu", coll(13, [10], comm_type=5, pg_name="1")),
        groups={"1": [2]},
    )


def report(folder: Path, *arguments: str) -> dict[str, Any]:
    out = folder / "r.json"
    assert main(["replay", str(folder), *arguments, "--json", str(out)]) == 0
    data: dict[str, Any] = json.loads(out.read_bytes())
    return data


def gains(report: dict[str, Any]) -> list[int]:
    return [w["before_ns"] - w["after_ns"] for w in report["what_if"]]


@pytest.mark.parametrize(
    ("change", "ranks"),
    [
        (["--remove-sync", "2"], [0]),
        (["--scale", "kernel:gemm=0"], [0]),
        (["--scale", "kernel:relu=0"], [1, 2]),
        (["--bandwidth", "0.0001"], [2]),
        (["--scale", "kernel:gemm=0", "--scale", "kernel:relu=0"], [0, 1, 2]),
    ],
)
def test_a_change_is_made_on_the_ranks_that_it_fits(
    folder: Path, change: list[str], ranks: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    data = report(folder, "--machine", "ideal", *change)
    assert [i for i, gain in enumerate(gains(data)) if gain] == ranks
    text = capsys.readouterr().out
    done, others = text.partition("what if")[2].split("\n\n")[0], [r for r in range(3) if r not in ranks]
    assert f"{told_ranks(ranks)}: " in done or len(change) > 2
    if others:
        assert f"{told_ranks(others)}: as recorded, nothing there is named by {' '.join(change)}" in done


def test_several_ranks_wait_for_each_other_where_no_machine_is_named(folder: Path) -> None:
    assert report(folder) == report(folder, "--machine", "coupled")
    assert report(folder, "--rank", "1") == report(folder, "--rank", "1", "--machine", "ideal")
    assert report(folder, "--machine", "ideal")["machine"] == "ideal"


def test_what_was_done_names_the_ranks_of_one_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder), "--machine", "ranks", "--scale", "kernel:relu=0", "--remove-sync", "2"]) == 0
    first = capsys.readouterr().out.split("\n\n")[0].splitlines()
    done = [line for line in first[1:] if ": " in line and "second run" not in line]  # below the gains
    assert [line.rpartition(" (")[2] for line in done] == ["ranks 1, 2)", "rank 0)"]


@pytest.mark.parametrize("machine", ["ideal", "astra-sim", "ranks", "coupled"])
def test_an_id_that_is_a_wait_on_several_ranks_is_refused(
    folder: Path, machine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder), "--remove-sync", "11", "--machine", machine]) == 2
    error = capsys.readouterr().err
    assert "a wait of that id is on ranks 1, 2" in error and "--rank N" in error
    assert main(["replay", str(folder), "--remove-sync", "11", "--machine", machine, "--rank", "1"]) == 0


@pytest.mark.parametrize("machine", ["ideal", "ranks"])
@pytest.mark.parametrize(
    ("change", "said"), [(["--remove-sync", "77"], "no wait of that id"), (["--scale", "kernel:xyz=0"], "no such node")]
)
def test_what_fits_no_rank_is_refused(
    folder: Path, machine: str, change: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder), "--machine", machine, "--scale", "kernel=0.5", *change]) == 2
    assert said in capsys.readouterr().err


def ranks(names: Sequence[str]) -> list[list[N]]:
    return [[N(0, CPU, 5), N(1, GPU, 40, ((0, L),), name=k), N(2, CPU, 1, ((0, H), (1, Y)))] for k in names]


def test_what_does_not_fit_leaves_the_rest_as_it_is() -> None:
    work = load(*ranks(["gemm", "relu"]))
    fitted = fit(work, Changes((parse_scale("kernel:gemm=0.5"), parse_scale("kernel:xyz=0"))), {})
    assert fitted.work.cost_ns.tolist() == [5000, 20000, 1000, 5000, 40000, 1000]
    assert [d.what for d in fitted.done] == ["kernel:gemm x 0.5: 1 nodes, -0.020 ms of work (rank 0)"]
    assert list(fitted.refused) == ["--scale kernel:xyz=0"]
    assert waiting_ranks(work, 1) == (0, 1) and waiting_ranks(work, 0) == ()
    with pytest.raises(UsageError, match="ranks 0, 1"):
        fit(work, changes_of(remove_sync=("2",)), {})


def test_what_was_changed_is_not_said_to_stay(tmp_path: Path) -> None:
    delayed = waiting(0, "gemm", node(3, data=[1], micros=60, is_cpu_op=False))
    delayed[-1].name = "device delay"
    for one in delayed:
        one.attr.add(name="start_ns", int64_val=0)
        one.attr.add(name="end_ns", int64_val=100_000)
    folder = written(tmp_path, delayed)
    assert any("device delays and host gaps stay" in text for text in report(folder, "--scale", "kernel=2")["cannot"])
    assert not any("device delays" in text for text in report(folder, "--scale", "delay=0")["cannot"])


def test_a_group_that_names_a_rank_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "comm_group.json").write_text('{"1": [0, 1], "2": [1, 0, 1]}')
    with pytest.raises(InputError, match="group 2 names a rank twice"):
        load_groups(tmp_path)
