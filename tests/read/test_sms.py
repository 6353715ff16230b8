"""How much of a device's SMs a kernel can fill, from what recordings say of its grid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphlink.model import Gpu
from graphlink.read.devices import sm_share
from graphlink.read.kineto import read_kineto

DEVICES = [{"id": 0, "name": "GPU", "numSms": 80}]


def share_of(
    tmp_path: Path, args: dict[str, Any], call: str = "cudaLaunchKernel", devices: object = DEVICES, cat: str = "kernel"
) -> float:
    kernel = {"ph": "X", "cat": cat, "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 3}
    rows = [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": call,
            "pid": 1,
            "tid": 1,
            "ts": 1,
            "dur": 1,
            "args": {"correlation": 3},
        },
        kernel | {"args": {"device": 0, "stream": 7, "correlation": 3, **args}},
    ]
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": rows}))
    (share,) = read_kineto(path).device.sm_share.tolist()
    return float(share)


@pytest.mark.parametrize(
    ("args", "share"),
    [
        ({"blocks per SM": 0.625, "grid": [50, 1, 1]}, 0.625),
        ({"blocks per SM": 39.2, "grid": [3136, 1, 1]}, 1.0),
        ({"grid": [4, 5, 2], "block": [256, 1, 1]}, 0.5),
        ({"grid": [80, 80, 80], "block": [256, 1, 1]}, 1.0),
        ({"blocks per SM": 10**400}, 1.0),
    ],
)
def test_a_grid_tells(tmp_path: Path, args: dict[str, Any], share: float) -> None:
    assert share_of(tmp_path, args) == share


@pytest.mark.parametrize(
    ("call", "share"), [("hipExtModuleLaunchKernel", 0.25), ("hipExtLaunchKernel", 1.0), ("hipModuleLaunchKernel", 1.0)]
)
def test_some_calls_of_hip_record_threads_as_their_grid(tmp_path: Path, call: str, share: float) -> None:
    assert share_of(tmp_path, {"grid": [19 * 256 + 1, 1, 1], "block": [256, 1, 1]}, call) == share


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"grid": []},
        {"grid": [0, 1, 1]},
        {"grid": "80"},
        {"grid": [1, 1, 1, 1]},
        {"grid": [1 << 41, 1, 1]},
        {"grid": [True, 1, 1]},
    ]
    + [{"blocks per SM": value} for value in ("0.5", 0, -1, True, [1])],
)
def test_what_is_no_grid_tells_nothing(tmp_path: Path, args: dict[str, Any]) -> None:
    assert share_of(tmp_path, args) == 0


def test_nothing_is_told_without_sms_and_of_copies(tmp_path: Path) -> None:
    grid = {"grid": [80, 1, 1]}
    assert share_of(tmp_path, grid, devices=[{"id": 0}]) == 0
    assert share_of(tmp_path, {"bytes": 5}, cat="gpu_memcpy") == 0


def test_sms_of_a_device_that_is_numbered_otherwise_are_those_of_all() -> None:
    blocks, device = np.array([20, 20, 0]), np.array([5, 0, 0])
    alike, differ = (Gpu(0, "", None, 80), Gpu(1, "", None, 80)), (Gpu(0, "", None, 80), Gpu(1, "", None, 40))
    assert sm_share(blocks, device, alike).tolist() == [0.25, 0.25, 0]
    assert sm_share(blocks, device, differ).tolist() == [0, 0.25, 0]
