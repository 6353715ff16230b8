"""Which files of folders, patterns and flags are of one rank, what is missing of a run, and how it is said."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphlink.errors import GraphlinkError, InputError, UsageError
from graphlink.read.heads import read_head
from graphlink.run.discover.inputs import of_files, of_folders
from graphlink.run.discover.pairing import Discovered
from tests.cli.conftest import Ran
from tests.cli.test_errors import is_said
from tests.simulator import cuspy
from tests.tiny_traces import et, info, kineto, written

Run = Callable[..., Ran]
TRACES = Path(__file__).parents[3] / "shared" / "traces"
public = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/traces")
MINUTE_US = 60_000_000


def folder(path: Path, rank: int | None = None) -> Discovered:
    return of_folders([str(path)], rank)


def pairs(found: Discovered) -> list[tuple[int | None, str, str | None]]:
    return [
        (one.expected_rank, one.kineto.name if one.kineto else "", one.et.name if one.et else None)
        for one in found.ranks
    ]


def packed(path: Path) -> None:
    kineto(path, us=len(list(path.parent.glob("*"))))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))


def refused(kind: type[GraphlinkError], *folders: Path) -> str:
    with pytest.raises(kind) as problem:
        of_folders([str(path) for path in folders], None)
    assert len(problem.value.text().splitlines()) <= 5
    return problem.value.text()


# where files are looked for


def test_several_folders_and_patterns_of_folders_are_one_run(tmp_path: Path) -> None:
    for rank in range(4):
        kineto(tmp_path / f"host{rank // 2}" / f"kineto_{rank}.json", info(rank, 4))
    (tmp_path / "hosts.txt").write_text("two")
    want = [(rank, f"kineto_{rank}.json", None) for rank in range(4)]
    assert pairs(of_folders([str(tmp_path / "host0"), str(tmp_path / "host1")], None)) == want
    assert pairs(of_folders([str(tmp_path / "host*"), str(tmp_path / "host1")], None)) == want
    found = of_files(
        [
            str(tmp_path / "host0" / "*.json"),
            str(tmp_path / "*" / "kineto_*"),
            str(tmp_path / "host1" / "kineto_3.json"),
        ],
        [],
        None,
    )
    assert pairs(found) == want
    assert (found.warnings, found.missing) == ((), ())


def test_a_folder_of_folders_is_read_one_level_down(tmp_path: Path) -> None:
    for rank in range(3):
        kineto(tmp_path / f"rank_{rank}" / "trace_9.json", pid=rank)
        et(tmp_path / f"rank_{rank}" / "et.json", pid=rank)
    (tmp_path / "mlflow.db").write_text("none of nsys")
    (tmp_path / "logs").mkdir()
    kineto(tmp_path / "deep" / "deeper" / "kineto_7.json", info(7))
    found = folder(tmp_path)
    assert pairs(found) == [(rank, "trace_9.json", "et.json") for rank in range(3)]
    assert found.missing == ()
    assert of_folders([str(tmp_path), str(tmp_path / "rank_1")], None) == found
    kineto(tmp_path / "kineto_5.json", info(5))
    assert pairs(folder(tmp_path)) == [(5, "kineto_5.json", None)]


def test_logs_of_machines_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "machine0").mkdir()
    (tmp_path / "machine0" / "workerlog.0").write_text("")
    assert f"{tmp_path}: no Kineto trace" in refused(InputError, tmp_path)
    assert f"--paddle-logs {tmp_path}/machine0" in refused(InputError, tmp_path / "machine0")


def test_a_folder_whose_name_is_the_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto(tmp_path / str(rank) / "trace.json", pid=rank)
    assert pairs(folder(tmp_path)) == [(0, "trace.json", None), (1, "trace.json", None)]


def test_a_folder_without_a_recording_is_missing_if_others_have_one(tmp_path: Path) -> None:
    kineto(tmp_path / "a" / "kineto_0.json", info(0))
    (tmp_path / "b").mkdir()
    found = of_folders([str(tmp_path / "a"), str(tmp_path / "b")], None)
    assert found.missing == (f"no recording was found in {tmp_path / 'b'}",)
    shutil.rmtree(tmp_path / "a")
    text = refused(InputError, tmp_path / "b", tmp_path)
    assert str(tmp_path / "b") in text
    assert f"nor in {tmp_path}" in text


def test_a_pattern_of_files_is_those_files(tmp_path: Path) -> None:
    kineto(tmp_path / "kineto_0.json", info(0))
    assert pairs(of_folders([str(tmp_path / "kineto*")], None)) == [(0, "kineto_0.json", None)]
    assert "no file matches" in refused(InputError, tmp_path / "none*")


# which rank a file is of


def test_an_et_belongs_to_the_kineto_trace_of_its_process(tmp_path: Path) -> None:
    for rank, pid in ((0, 51), (1, 52), (2, 53)):
        kineto(tmp_path / f"{'abc'[rank]}.json", info(rank), pid=pid)
        et(tmp_path / f"host_{'xyz'[rank]}.json", pid=pid)
    assert pairs(folder(tmp_path)) == [
        (0, "a.json", "host_x.json"),
        (1, "b.json", "host_y.json"),
        (2, "c.json", "host_z.json"),
    ]


def test_a_process_id_that_repeats_says_nothing(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank), pid=1)
        et(tmp_path / f"et_{rank}.json", pid=1)
    assert pairs(folder(tmp_path)) == [(0, "kineto_0.json", "et_0.json"), (1, "kineto_1.json", "et_1.json")]


def test_what_an_et_records_comes_before_its_process_id(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto(tmp_path / f"k{rank}.json", info(rank), pid=50 + rank)
        et(tmp_path / f"e{rank}.json", pid=51 - rank, groups=[{"pg_name": "1", "ranks": [rank]}])
    assert pairs(folder(tmp_path)) == [(0, "k0.json", "e0.json"), (1, "k1.json", "e1.json")]


@pytest.mark.parametrize(
    ("names", "rank"),
    [
        (("resnet50_rank3.json", "resnet50_rank1.json"), 3),
        (("et_20_rank_3.json", "et_20_rank_1.json"), 3),
        (("rank-3.json.gz", "rank-1.json.gz"), 3),  # HTA
        (("trace_rank_3_step_5.json", "trace_rank_1_step_5.json"), 3),
        (("rank3_trace.json", "rank1_trace.json"), 3),  # torchtitan
        (("h_17-rank-3.1694128201545.pt.trace.json.gz", "h_18-rank-1.1694128201546.pt.trace.json.gz"), 3),  # vLLM
        (("dp0_pp0_tp3_rank3.1694128201545.pt.trace.json", "dp0_pp0_tp1_rank1.1694128201545.pt.trace.json"), 3),
        (("tp_rank_0_rank_3.json", "tp_rank_0_rank_1.json"), 3),
        (("rank3of8.json", "rank1of8.json"), 3),
        (("rank_3_of_8.json", "rank_1_of_8.json"), 3),
        (("kineto.3.json", "kineto.1.json"), 3),
        (("trace.3.json.gz", "trace.1.json.gz"), 3),
    ],
)
def test_names_tell_where_content_does_not(tmp_path: Path, names: tuple[str, str], rank: int) -> None:
    for name in names:
        packed(tmp_path / name)
    found = folder(tmp_path)
    assert pairs(found) == [(1, names[1], None), (rank, names[0], None)]
    assert found.warnings == ()


@pytest.mark.parametrize(
    "names",
    [
        ("run7_0.json", "run7_1.json", "run7_2.json"),
        ("worker0_step_12.1694128201545.pt.trace.json", "worker1_step_12.1694128201600.pt.trace.json"),
        ("1694128201.545-TP-0.trace.json.gz", "1694128201.545-TP-1.trace.json.gz"),  # SGLang
        ("local_rank_0.json", "local_rank_1.json"),
        ("hostA_0.json", "hostB_1.json"),
        ("mi250_0.json", "mi250_1.json"),
    ],
)
def test_numbers_of_a_full_set_are_ranks(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in reversed(names):
        packed(tmp_path / name)
    found = folder(tmp_path)
    assert pairs(found) == [(rank, name, None) for rank, name in enumerate(names)]
    assert found.warnings == ()


@pytest.mark.parametrize(
    "names",
    [
        (
            "node01_1375.1724066820235157909.pt.trace.json",
            "node01_1376.1724066820235157900.pt.trace.json",
        ),  # PyTorch's own
        (
            "node01_994.1724066820235.pt.trace.json.gz",
            "node01_1001.1724066820235.pt.trace.json.gz",
            "node02_17.1724066820235.pt.trace.json.gz",
        ),
        ("worker1_step_12.1694128201545.pt.trace.json", "worker3_step_12.1694128201600.pt.trace.json"),
        ("mi250_minitoy.json", "mi300_resnet.json"),
        ("dataset7_1.pt.trace.json", "dataset7_3.pt.trace.json"),
        (
            "tp_rank_0_pp_rank_0.json",
            "tp_rank_0_pp_rank_1.json",
            "tp_rank_1_pp_rank_0.json",
            "tp_rank_1_pp_rank_1.json",
        ),
        ("kineto_step_5.json", "kineto_step_7.json"),
        ("a.json", "b.json"),
    ],
)
def test_numbers_that_no_name_calls_a_rank_are_none(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in reversed(names):
        packed(tmp_path / name)
    found = folder(tmp_path)
    assert pairs(found) == [(rank, name, None) for rank, name in enumerate(names)]
    (warning,) = found.warnings
    assert f"in order of names {tmp_path / names[0]} (rank 0), {tmp_path / names[1]} (rank 1)" in warning


@pytest.mark.parametrize(
    ("kineto_name", "et_name"),
    [
        ("torch_profile/rank-{}.json.gz", "chakra/rank-{}.json.gz"),  # Megatron-LM, Megatron-Bridge, ms-swift
        (
            "dp0_pp0_tp{0}_dcp0_ep{0}_rank{0}.16.pt.trace.json.gz",
            "execution_trace_dp0_pp0_tp{0}_dcp0_ep{0}_rank{0}.json",
        ),
        ("trace_rank{}.json.gz", "execution_trace_rank{}.json"),  # vllm-omni; above, vLLM
        ("iteration_10/rank{}_trace.json.gz", ""),  # torchtitan
    ],
)
def test_what_frameworks_write_by_a_flag_is_read_as_it_is(tmp_path: Path, kineto_name: str, et_name: str) -> None:
    """Kineto traces that say their rank, as those of a run with process groups do, and ETs that do not."""
    for rank in range(4):
        for name, write in ((kineto_name, kineto), (et_name, et)):
            path = tmp_path / name.format(rank)
            if name:
                path.parent.mkdir(exist_ok=True)
                write(path, info(rank, 4)) if write is kineto else write(path, pid=rank + 1)
                if path.suffix == ".gz":
                    path.write_bytes(gzip.compress(path.read_bytes()))
    folders = sorted({str(path.parent) for path in tmp_path.rglob("*.json*")})
    found = of_folders(folders, None)
    ets = [Path(et_name.format(rank)).name or None for rank in range(4)]
    assert pairs(found) == [(rank, Path(kineto_name.format(rank)).name, ets[rank]) for rank in range(4)]


def test_binary_traces_that_torchtitan_writes_are_of_the_ranks_of_their_names(tmp_path: Path) -> None:
    packed = gzip.compress(cuspy.pftrace(cuspy.document(cuspy.run(cuspy.Program.random(3)))))
    for rank in range(4):
        (tmp_path / f"rank{rank}_trace.pftrace.gz").write_bytes(packed)
    assert pairs(folder(tmp_path)) == [(k, f"rank{k}_trace.pftrace.gz", None) for k in range(4)]


def test_one_file_is_of_rank_0_whatever_numbers_its_name_has(tmp_path: Path) -> None:
    for name in (
        "mi250_minitoy.json",
        "host_1375.1724066820235157909.pt.trace.json",
        "worker3_step_12.1694128201545.pt.trace.json",
        "kineto_2ns.json",
        "kineto_shift_110.json",
    ):
        path = kineto(tmp_path / name / name)
        for found in (
            folder(path.parent),
            of_files([str(path)], [], None),
            of_files([f"{path.parent}/*.json"], [], None),
        ):
            assert [one.expected_rank for one in found.ranks] == [None]
            assert found.warnings == ()


def test_numbers_of_a_full_set_that_the_recordings_contradict_are_no_ranks(tmp_path: Path) -> None:
    kineto(tmp_path / "step_0.json", info(1))
    kineto(tmp_path / "step_1.json")
    kineto(tmp_path / "step_2.json", pid=2)
    found = folder(tmp_path)
    assert pairs(found) == [(0, "step_1.json", None), (1, "step_0.json", None), (2, "step_2.json", None)]
    assert f"{tmp_path}/step_1.json (rank 0), {tmp_path}/step_2.json (rank 2)" in found.warnings[0]


def test_ets_that_nothing_tells_apart_are_of_the_kineto_traces_in_order(tmp_path: Path) -> None:
    for rank, name in ((4, "x"), (6, "y")):
        kineto(tmp_path / f"{name}.json", info(rank))
        et(tmp_path / f"host_{rank * 100}.json", pid=9)
    found = folder(tmp_path)
    assert pairs(found) == [(4, "x.json", "host_400.json"), (6, "y.json", "host_600.json")]
    (warning,) = found.warnings
    assert "host_400.json (rank 4)" in warning


def test_a_file_that_contradicts_the_number_of_ranks_is_named(tmp_path: Path) -> None:
    for case, name, head, words in (
        ("a", "rank0of8.json", info(0, 4), "its name says 8 ranks, and it records 4"),
        ("b", "rank5.json", info(None, 4), "is of rank 5, and it records 4 ranks"),
        ("c", "kineto_0.json", info(4, 4), "is of rank 4, and it records 4 ranks"),
        ("d", "rank_9_of_8.json", None, "is of rank 9, and its name says 8 ranks"),
    ):
        path = kineto(tmp_path / case / name, head)
        assert f"{path}: {words}" in refused(InputError, tmp_path / case)
        assert folder(tmp_path / case, 0).ranks[0].rank == 0  # --rank overrules
        kineto(tmp_path / case / "rank1.json")
        assert f"{path}: {words}" in refused(InputError, tmp_path / case)


def test_a_single_file_that_contradicts_itself_is_named(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    document = json.loads((traces / "kineto_0.json").read_text())
    path = written(tmp_path / "rank0of9.json", document | {"distributedInfo": {"rank": 0, "world_size": 4}})
    is_said(graphlink("--kineto", path, "--out", tmp_path / "out"), 1, f"{path}: its name says 9 ranks", "--rank")
    path = written(tmp_path / "one.json", document | {"distributedInfo": {"rank": 4, "world_size": 4}})
    is_said(
        graphlink("--kineto", path, "--out", tmp_path / "out"),
        1,
        f"{path}: is of rank 4, and it records 4 ranks",
        "--rank",
    )
    assert graphlink("--kineto", path, "--rank", "3", "--out", tmp_path / "out").status == 0
    named = written(tmp_path / "rank7.json", document | {"distributedInfo": {}})
    assert graphlink("--kineto", named, "--rank", "3", "--out", tmp_path / "named").status == 0
    (summed,) = json.loads((tmp_path / "named" / "summary.json").read_text())["ranks"]
    assert summed["rank"] == 3
    assert "the name of the file says rank 7; written as rank 3, as --rank says" in summed["warnings"]


def test_a_copy_is_no_rank_of_its_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        kineto(tmp_path / f"{name}.json", us=5)
    assert f"{tmp_path}/b.json: is of the process and the moment of {tmp_path}/a.json" in refused(InputError, tmp_path)
    kineto(tmp_path / "b.json", us=6)
    assert len(folder(tmp_path).ranks) == 2


def test_windows_of_one_process_are_no_ranks(tmp_path: Path) -> None:
    for us in (5, 7_000_000, 14_000_000):
        kineto(tmp_path / f"host_41.17000000{us:08}.pt.trace.json", us=us, pid=41)
    text = refused(InputError, tmp_path)
    assert text.startswith(
        f"{tmp_path}: host_41.1700000000000005.pt.trace.json, host_41.1700000007000000.pt.trace.json"
    )
    assert "(3 files) are of one process, 41: windows that its profiler recorded one after the other, not ranks" in text
    assert "give one of them, or each by itself with an --out of its own" in text
    for k, us in enumerate((5, 7_000_000)):  # as in containers, each with a process 41
        kineto(tmp_path / "other" / f"host{k}_41.17000000{us:08}.pt.trace.json", us=us, pid=41)
    assert len(folder(tmp_path / "other").ranks) == 2


# recordings of several runs


@pytest.mark.parametrize(
    ("other", "us", "words"),
    [
        ({"distributedInfo": info(2, 4)}, 0, "the number of ranks, 3 and 4"),
        ({"SLURM_JOB_ID": "78"}, 0, "the job (SLURM_JOB_ID)"),
        ({"distributedInfo": info(2, 3, job_id=78)}, 0, "the job (SLURM_JOB_ID and job_id)"),
        ({}, 10.1 * MINUTE_US, "the time, 0 min and 10 min"),
    ],
)
def test_recordings_of_two_runs_are_refused(tmp_path: Path, other: dict[str, Any], us: float, words: str) -> None:
    for rank in range(3):
        path = kineto(tmp_path / f"kineto_{rank}.json", info(rank, 3), us=us if rank == 2 else rank)
        document = {"SLURM_JOB_ID": "77", **json.loads(path.read_text())}
        written(path, document | (other if rank == 2 else {}))
        if rank == 2 and "job_id" in str(other):
            document.pop("SLURM_JOB_ID")
            written(path, document | other)
    text = refused(InputError, tmp_path)
    assert text.startswith(
        f"{tmp_path}/kineto_2.json: belongs to another run than {tmp_path}/kineto_0.json: they differ by {words}"
    )
    assert "--same-run" in text
    insisted = of_folders([str(tmp_path)], None, same_run=True)
    assert len(insisted.ranks) == 3
    assert any(words in warning for warning in insisted.warnings)


def test_content_holds_where_the_name_says_another_rank(tmp_path: Path) -> None:
    kineto(tmp_path / "trace_rank5.json", info(2), pid=52)
    kineto(tmp_path / "host_1375.json", info(1), pid=51)  # a number, but not named as a rank
    et(tmp_path / "et_4.json", pid=52)
    found = folder(tmp_path)
    assert pairs(found) == [(1, "host_1375.json", None), (2, "trace_rank5.json", "et_4.json")]
    (warning,) = found.warnings
    assert f"{tmp_path}/trace_rank5.json (rank 2), {tmp_path}/et_4.json (rank 2)" in warning


# what is too much


def test_two_traces_of_a_rank_are_named(tmp_path: Path) -> None:
    for rank in range(3):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 3))
    copy = kineto(tmp_path / "copy_of_kineto_1.json", info(1, 3))
    text = refused(InputError, tmp_path)
    assert str(copy) in text
    assert "kineto_1.json: is of rank 1, as is" in text
    copy.unlink()
    et(tmp_path / "et_1.json")
    et(tmp_path / "et_old_1.json")
    text = refused(InputError, tmp_path)
    assert "et_1.json" in text
    assert "et_old_1.json" in text


def test_of_two_ets_of_a_rank_the_merged_one_is_left_aside(tmp_path: Path) -> None:
    kineto(tmp_path / "kineto_0.json", info(0), pid=5)
    et(tmp_path / "et_0.json", pid=5)
    merged = json.loads(et(tmp_path / "et_plus_0.json", pid=5).read_text())
    written(
        tmp_path / "et_plus_0.json", merged | {"nodes": [*merged["nodes"], {"id": 9, "name": "k", "cat": "kernel"}]}
    )
    found = folder(tmp_path)
    assert pairs(found) == [(0, "kineto_0.json", "et_0.json")]
    assert found.warnings == (
        f"note: {tmp_path / 'et_plus_0.json'} is left aside: it is merged with device rows already",
    )


@pytest.mark.parametrize(
    ("other", "start_us", "apart"),
    [
        (info(0, 8), 0, "the number of ranks, 4 and 8"),
        (info(0, 4, pg_count=9), 0, "the number of process groups, 3 and 9"),
        (info(0, 4, pg_count=3, backend="gloo"), 0, "the backend"),
        (info(0, 4, pg_count=3), 25 * MINUTE_US, "the time, 0 min and 25 min"),
    ],
)
def test_two_runs_in_a_folder_are_told_by_content(
    tmp_path: Path, other: dict[str, Any], start_us: int, apart: str
) -> None:
    for rank in range(4):
        kineto(tmp_path / f"a_{rank}.json", info(rank, 4, pg_count=3), us=rank * MINUTE_US)
    for rank in range(2):
        kineto(tmp_path / f"z_{rank}.json", other | {"rank": rank}, us=start_us + rank)
    text = refused(InputError, tmp_path)
    assert text.startswith(f"{tmp_path}/z_0.json: belongs to another run")
    assert f"than {tmp_path}/a_0.json: they differ by {apart}" in text
    assert "rank 0, 1, which a_0.json, a_1.json, ... (4 files) hold, and again z_0.json, z_1.json" in text
    assert "--kineto" in text


def test_two_runs_are_told_by_their_names_and_folders(tmp_path: Path) -> None:
    for run in ("one2", "two2"):
        for rank in range(3):
            kineto(tmp_path / "names" / f"{run}_rank{rank}.json", info(rank, 3))
            kineto(tmp_path / run / "kineto" / f"rank{rank}.json", info(rank, 3))
            kineto(tmp_path / f"{run}_by_rank" / f"rank{rank}" / "x.json", info(rank, 3))
    assert "differ by name, one2_rank* and two2_rank*" in refused(InputError, tmp_path / "names")
    assert f"differ by folder, {tmp_path}/one2/kineto" in refused(
        InputError, tmp_path / "one2" / "kineto", tmp_path / "two2"
    )
    assert f"differ by folder, {tmp_path}/one2_by_rank" in refused(
        InputError, tmp_path / "one2_by_rank", tmp_path / "two2_by_rank"
    )


def test_recordings_of_one_run_that_begin_minutes_apart_are_one(tmp_path: Path) -> None:
    for rank in range(6):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 6), us=rank * 1.9 * MINUTE_US)
    assert len(folder(tmp_path).ranks) == 6


def test_ets_of_two_runs(tmp_path: Path) -> None:
    for rank in (0, 1):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank))
        et(tmp_path / f"et_{rank}.json", at="2026-01-01 10:00:01")
        et(tmp_path / f"et_again_{rank}.json", at="2026-01-01 12:00:01")
    text = refused(InputError, tmp_path)
    assert "the time, 0 min and 120 min" in text
    assert "et_0.json" in text
    assert "et_again_0.json" in text


# what is missing


def test_ranks_that_were_not_recorded(tmp_path: Path) -> None:
    for rank in (0, 1, 3, 4, 6, 7):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 8))
    assert folder(tmp_path).missing == ("ranks 2, 5 of 8 were not recorded",)
    for rank in (0, 1, 3, 4, 6, 7):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 300))
    assert folder(tmp_path).missing == ("ranks 2, 5, 8, 9, 10, 11, 12, 13, ... (294 in all) of 300 were not recorded",)


def test_a_single_trace_of_many_ranks(tmp_path: Path) -> None:
    path = kineto(tmp_path / "kineto_0.json", info(1, 2))
    want = ("rank 0 of 2 was not recorded",)
    assert folder(tmp_path).missing == of_files([f"{tmp_path}/kineto_*.json"], [], None).missing == want
    assert of_files([str(path)], [], None).missing == ()


def test_half_pairs(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 3))
    assert folder(tmp_path).missing == ()
    for rank in (1, 2, 5):
        et(tmp_path / f"et_{rank}.json")
    found = folder(tmp_path)
    assert pairs(found) == [
        (0, "kineto_0.json", None),
        (1, "kineto_1.json", "et_1.json"),
        (2, "kineto_2.json", "et_2.json"),
    ]
    assert found.missing == (
        f"without an execution trace, linked from Kineto alone: {tmp_path}/kineto_0.json (rank 0)",
        f"left aside, as no Kineto trace is of their rank: {tmp_path}/et_5.json (rank 5)",
    )
    for rank in (1, 2):
        (tmp_path / f"et_{rank}.json").unlink()
    et(tmp_path / "et_6.json")
    text = refused(UsageError, tmp_path)
    assert "et_5.json" in text
    assert "kineto_0.json" in text


def test_a_single_pair_is_one_whatever_the_names_say(tmp_path: Path) -> None:
    device, host = kineto(tmp_path / "kineto_0.json", info(0, 4)), et(tmp_path / "et_3.json", pid=2)
    found = of_files([str(device)], [str(host)], 2)
    assert pairs(found) == [(0, "kineto_0.json", "et_3.json")]
    assert (found.ranks[0].rank, found.missing, found.warnings) == (2, (), ())
    (odd,) = of_files([str(device)], [str(host)], None).warnings
    assert odd == f"{host} is named as of rank 3, {device} as of rank 0: are they a pair?"
    assert of_files([str(device)], [str(et(tmp_path / "et_0.json"))], None).warnings == ()
    (tmp_path / "et_0.json").unlink()
    assert folder(tmp_path, 2).ranks == found.ranks
    text = refused(UsageError, tmp_path)
    assert "et_3.json (rank 3)" in text
    assert "kineto_0.json (rank 0)" in text
    et(tmp_path / "et_3.json", groups=[{"pg_name": "0", "ranks": [0]}])
    assert pairs(folder(tmp_path)) == [(0, "kineto_0.json", "et_3.json")]
    kineto(tmp_path / "kineto_1.json", info(1, 4))
    with pytest.raises(UsageError, match="--rank"):
        folder(tmp_path, 2)


def test_what_is_missing_is_published_and_strict_refuses_it(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    both = tmp_path / "in"
    shutil.copytree(traces, both)
    (both / "et_1.json").unlink()
    ran = graphlink(both, "--out", tmp_path / "out", "--jobs", "1")
    assert (ran.status, ran.err) == (0, "")
    (warning,) = json.loads((tmp_path / "out" / "summary.json").read_text())["warnings"]
    assert "kineto_1.json (rank 1)" in warning
    assert f"warning: {warning} " in " ".join(ran.out.split())
    is_said(graphlink(both, "--strict", "--out", tmp_path / "strict"), 1, "kineto_1.json (rank 1)", "--strict")
    is_said(graphlink(both, "--linked", "--out", tmp_path / "strict"), 2, "kineto_1.json", "--linked")
    (both / "kineto_0.json").unlink()
    (both / "et_0.json").unlink()
    is_said(graphlink(both, "--strict", "--out", tmp_path / "strict"), 1, "rank 0 of 2 was not recorded")
    assert not (tmp_path / "strict").exists()
    assert graphlink(traces, "--strict", "--out", tmp_path / "strict", "--jobs", "1").status == 0


# heads that are none


@pytest.mark.parametrize(
    ("rank", "told"),
    [
        ("3", 3),
        ("three", None),
        (-1, None),
        (10**12, None),
        (1.5, None),
        (None, None),
        ([3], None),
        ({"rank": 3}, None),
    ],
)
def test_a_rank_that_is_no_number(tmp_path: Path, rank: object, told: int | None) -> None:
    assert read_head(kineto(tmp_path / "kineto_7.json", info(rank, None if told else rank))).rank == told
    kineto(tmp_path / "kineto_5.json", info(5))
    assert [one.expected_rank for one in folder(tmp_path).ranks] == sorted([5, 7 if told is None else told])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = kineto(tmp_path / f"kineto_{rank}.json", info(rank))
    path.write_bytes(gzip.compress(path.read_bytes())[:-20])
    message = refused(InputError, tmp_path)
    assert f"{path}: the gzip file is cut off" in message
    assert f"its end, after byte {path.stat().st_size}" in message


# many


def test_thousands_of_ranks_are_paired_in_seconds(tmp_path: Path) -> None:
    ranks = 2_000
    for rank in range(ranks):
        kineto(tmp_path / f"a{rank}.json", info(rank, ranks), pid=rank % 8)
        et(tmp_path / f"b{rank}.json", pid=rank % 8, groups=[{"pg_name": "1", "ranks": [rank]}] if rank % 2 else None)
    began = time.process_time()
    found = folder(tmp_path)
    assert time.process_time() - began < 20
    assert pairs(found) == [(rank, f"a{rank}.json", f"b{rank}.json") for rank in range(ranks)]
    assert (found.warnings, found.missing) == ((), ())


# real recordings


@public
@pytest.mark.parametrize(
    ("name", "ranks"),
    [("megatron-tp2-v100", 2), ("dlrm8-v100", 8), ("pipelining-cpu/1f1b", 4), ("pipelining-cpu/interleaved-zb", 4)],
)
def test_public_runs_are_paired_whatever_their_names(tmp_path: Path, name: str, ranks: int) -> None:
    found = folder(TRACES / name)
    assert pairs(found) == [(rank, f"kineto_{rank}.json.gz", f"et_{rank}.json.gz") for rank in range(ranks)]
    assert found.missing == ()
    aside = [warning for warning in found.warnings if "holds no recording" not in warning]  # communicators.json
    assert [warning.removeprefix("note: ").split()[0].rpartition("/")[2] for warning in aside] == [
        "et_plus_reference_0.json.gz"
    ] * (name == "dlrm8-v100")
    for rank in range(ranks):
        (tmp_path / f"{'abcdefgh'[rank]}.json").symlink_to(TRACES / name / f"kineto_{rank}.json.gz")
        (tmp_path / f"{'stuvwxyz'[rank]}.json").symlink_to(TRACES / name / f"et_{rank}.json.gz")
    assert pairs(folder(tmp_path)) == [
        (rank, f"{'abcdefgh'[rank]}.json", f"{'stuvwxyz'[rank]}.json") for rank in range(ranks)
    ]


@public
def test_the_two_public_pipelines_together_are_two_runs() -> None:
    text = refused(InputError, TRACES / "pipelining-cpu")
    assert "1f1b/kineto_0.json.gz" in text
    assert "interleaved-zb" in text


def test_what_is_named_as_a_recording_and_is_none_is_said(tmp_path: Path) -> None:
    for rank in range(2):
        kineto(tmp_path / f"kineto_{rank}.json", info(rank, 2))
    (tmp_path / "kineto_2.json").write_text("{")
    (tmp_path / "notes.json").write_text("{}")
    (told,) = folder(tmp_path).missing
    assert told == f"left aside, by their beginning neither traces nor side files of NCCL: {tmp_path / 'kineto_2.json'}"
