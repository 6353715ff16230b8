"""Public recordings of which only some are read as CUDA's are today: ranges among the ops, another kind of device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRACES = Path(__file__).parents[3] / "shared" / "traces"
Run = Callable[..., Any]


def recording(name: str) -> Path:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"public traces are not at {TRACES}")
    return path


def test_steps_of_2021_are_ranges_so_that_the_main_thread_sleeps(graphlink: Run) -> None:
    """Without that, gaps were 78 % of the path and 11 hand-overs were missed."""
    rank = graphlink(
        "--kineto", recording("legacy/v100_resnet50_2021_operator_steps"), "--sync", "cuda", "--no-timeline"
    ).rank
    assert rank["replay"]["gap_share"] < 0.02
    assert rank["edges"]["thread"] >= 1080
    assert rank["host"]["nodes"] == 23646


def test_what_a_launch_takes_beside_its_kernel_is_time_of_the_call(graphlink: Run) -> None:
    """Four launches outside any op, the first of 1,414 us: its kernel began after 12."""
    done = graphlink("--kineto", recording("legacy/categories_2021"), "--sync", "cuda", "--no-timeline")
    assert done.rank["replay"]["gap_share"] < 0.12
    (once,) = done.rank["once"]
    assert (once["name"], once["once_ns"]) == ("cudaLaunchKernel", 1_402_000)


def test_rows_of_mtia_are_ops_linked_where_a_call_is_there(graphlink: Run) -> None:
    done = graphlink("--kineto", recording("other-devices/mtia_inference_rank_0"), "--sync", "cuda", "--no-timeline")
    rank = done.rank
    assert (rank["device"]["ops"], rank["device"]["linked"]) == (1313, 991)
    assert rank["device"]["orphans"] == {"no correlation id": 322}
    assert abs(rank["replay"]["error_pct"]) < 0.01
    assert rank["sync"]["by_source"]["cuda_sync"] >= 150  # each of the 113 synchronisations has a row of the queue
    assert not any("mtia" in reason for reason in rank["left_out"])
