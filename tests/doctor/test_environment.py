from __future__ import annotations

from pathlib import Path

import pytest

from graphlink.capture.support import Feature, Support
from graphlink.doctor.verb_doctor import ENOUGH, FEATURES, POOLS, environment_lacking

VERSIONS = {"python": "3.12.1", "torch": "2.9.0", "cuda": "12.8"}


def support(*missing: str) -> Support:
    return Support(VERSIONS, tuple(Feature(name, name not in missing, "", "as found", "the line") for name in FEATURES))


@pytest.fixture
def path(tmp_path: Path) -> dict[str, str]:
    """An environment with nsys on PATH."""
    nsys = tmp_path / "nsys"
    nsys.write_text("#!/bin/sh\n")
    nsys.chmod(0o755)
    return {"PATH": str(tmp_path), "TORCH_NCCL_ENABLE_TIMING": "1"}


def names(given: Support, environ: dict[str, str]) -> set[str]:
    return {finding.kind for finding in environment_lacking(given, environ)}


def test_nothing_is_missing_where_all_is_there(path: dict[str, str]) -> None:
    assert names(support(), path) == set()


@pytest.mark.parametrize("feature", FEATURES)
def test_each_feature_that_is_missing_is_found(feature: str, path: dict[str, str]) -> None:
    (finding,) = environment_lacking(support(feature), path | {"TORCH_NCCL_ENABLE_TIMING": "1"})
    assert (finding.kind, finding.told, finding.record) == (FEATURES[feature], ("as found",), "the line")


def test_without_a_gpu_rows_of_waits_are_not_missed(path: dict[str, str]) -> None:
    assert names(support("device", "cuda_sync", "event_records", "cuspy"), path) == {"env-no-device"}


def test_without_torch_only_that_is_said(path: dict[str, str]) -> None:
    bare = Support(
        {"python": "3.12.1"},
        (Feature("torch", False, "", "PyTorch is not installed", "pip install '.[capture]' in a clone of graphlink"),),
    )
    assert names(bare, path) == {"env-no-torch"}


def test_nsys_is_looked_for_on_path(tmp_path: Path) -> None:
    assert names(support(), {"PATH": str(tmp_path), "TORCH_NCCL_ENABLE_TIMING": "1"}) == {"env-no-nsys"}


def test_variables_of_the_plugin_count_once_it_is_set(path: dict[str, str]) -> None:
    assert names(support(), path | {"NCCL_PROFILE_EVENT_MASK": "0"}) == set()
    set_ = path | {"NCCL_PROFILER_PLUGIN": "example"}
    assert names(support(), set_) == {"env-nccl-mask", "env-nccl-rings", "env-nccl-dump-file"}
    all_pools = {f"NCCL_PROFILE_{pool}_POOL_SIZE": str(ENOUGH) for pool in POOLS}
    whole = set_ | all_pools | {"NCCL_PROFILE_DUMP_FILE": "out/nccl", "NCCL_PROFILE_EVENT_MASK": "4095"}
    assert names(support(), whole) == set()
    assert names(support(), whole | {"NCCL_PROFILE_EVENT_MASK": "0xFBF"}) == {"env-nccl-kernel-events"}
    assert names(support(), whole | {"NCCL_PROFILE_EVENT_MASK": "4087"}) == {"env-nccl-proxy-steps"}
    assert names(support(), whole | {"NCCL_PROFILE_EVENT_MASK": "all"}) == {"env-nccl-mask"}


def test_a_small_ring_is_named(path: dict[str, str]) -> None:
    sizes = {f"NCCL_PROFILE_{pool}_POOL_SIZE": str(ENOUGH) for pool in POOLS} | {"NCCL_PROFILE_COLL_POOL_SIZE": "256"}
    environ = (
        path | sizes | {"NCCL_PROFILER_PLUGIN": "x", "NCCL_PROFILE_EVENT_MASK": "4095", "NCCL_PROFILE_DUMP_FILE": "f"}
    )
    (finding,) = environment_lacking(support(), environ)
    assert finding.record == f"NCCL_PROFILE_COLL_POOL_SIZE={ENOUGH}"


def test_defaults_of_the_inspector_lose_much(path: dict[str, str]) -> None:
    on = path | {"NCCL_INSPECTOR_ENABLE": "1"}
    assert names(support(), on) == {
        "env-inspector-verbose",
        "env-inspector-min-size",
        "env-inspector-kernel-timing",
        "env-inspector-interval",
    }
    told = {
        "NCCL_INSPECTOR_DUMP_VERBOSE": "1",
        "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES": "0",
        "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING": "0",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "100000",
    }
    assert names(support(), on | told) == set()


def test_timing_of_the_flight_recorder_is_a_matter_of_gpus(path: dict[str, str]) -> None:
    del path["TORCH_NCCL_ENABLE_TIMING"]
    assert names(support(), path) == {"env-flight-timing"}
    assert names(support("device"), path) == {"env-no-device"}


def test_versions_are_told() -> None:
    assert support().versions_line == "python 3.12.1, torch 2.9.0, cuda 12.8"
