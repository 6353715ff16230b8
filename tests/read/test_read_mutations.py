"""Damaged files are an InputError or are read; nothing else may happen."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

import pytest

from graphlink.errors import InputError
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto

TRACES = Path(__file__).parents[3] / "shared" / "traces"
VALUE = re.compile(rb'-?\d+\.?\d*|"[^"]*"|\[\]')
TOKENS = (b"null", b'"x"', b"-1", b"1e999", b"[]", b"{}", b"9" * 20, b"1.5", b"true", b'"7"', b'"\\ud800"', b'"\xff"', b"},{", b"NaN",
          b"9223372036854775807", b"-9223372036854775808", b"[[[]]]")  # fmt: skip
ARGS = {"correlation": 7, "device": 0, "stream": 7, "bytes": 8, "Ev Idx": 1, "Record function id": 2, "Input Dims": [[2], []],
        "Input type": ["float", ""], "Concrete Inputs": ["", "", "1", "0"], "Collective name": "allreduce", "Group size": 2,
        "Process Group Ranks": "[0, 1]", "Global rank start": 0, "Global rank stride": 1, "cuda_sync_kind": "Stream Sync",
        "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 3}  # fmt: skip
CATEGORIES = (
    "cpu_op",
    "cuda_runtime",
    "kernel",
    "gpu_memcpy",
    "cuda_sync",
    "cuda_event",
    "user_annotation",
    "Operator",
    "Memset",
)
KINETO = {
    "distributedInfo": {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]},
    "traceEvents": [
        {"ph": "X", "cat": cat, "name": "c10d::send", "pid": 1, "tid": 2, "ts": 10 + i, "dur": 1.5, "args": ARGS}
        for i, cat in enumerate(CATEGORIES)
    ] + [{"ph": ph, "cat": "fwdbwd", "id": 1, "pid": 1, "tid": 2, "ts": 3} for ph in "sf"],
    "baseTimeNanoseconds": 1719853884000000000,
}  # fmt: skip
TENSOR = [1, 2, 0, 6, 4, "cuda:0"]
ET = {
    "schema": "1.1.0",
    "pid": 3,
    "nodes": [
        {"id": 1, "name": "record_param_comms", "rf_id": 1, "parent": 1, "tid": 1, "inputs": [[TENSOR], 5, ["0", "d"], 0, "send", [1],
         [2], 0, 1, 2], "input_types": ["Tensor(float)"], "outputs": [TENSOR]},
        {"id": 2, "name": "c10d::recv_", "ctrl_deps": 1, "inputs": {"values": [[TENSOR], "<Object>", 1, 0], "shapes": [], "types": []},
         "attrs": [{"name": "rf_id", "type": "uint64", "value": 4}, {"name": "op_schema", "type": "string", "value": "x"}]},
        {"id": 3, "name": "## process_group:init ##", "inputs": {"values": ['[{"pg_name": "0", "ranks": [0], '
                                                                            '"backend_id": 9}]']}},
    ],
    "time": "2024-08-19 11:25:30",
}  # fmt: skip


def texts() -> dict[str, bytes]:
    found = {"kineto": json.dumps(KINETO).encode(), "et": json.dumps(ET, indent=1).encode()}
    for name in ("rocm/mi250_minitoy", "cuda-sync/event_sync", "simple-add-a100/et_0", "legacy/categories_2021"):
        path = TRACES / f"{name}.json.gz"
        if path.exists():
            found[name] = gzip.decompress(path.read_bytes())
    return found


def mutate(data: bytes, rng: random.Random) -> bytes:
    kind = rng.randrange(6)
    if kind == 0:
        damaged = bytearray(gzip.compress(data))
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        return bytes(damaged)
    if kind == 1:
        flipped = bytearray(data)
        for _ in range(rng.choice((1, 3))):
            flipped[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(flipped)
    if kind == 2:
        return data[: rng.randrange(len(data))]
    for _ in range(rng.choice((1, 2))):
        match = rng.choice(list(VALUE.finditer(data)))
        data = data[: match.start()] + rng.choice(TOKENS) + data[match.end() :]
    return data


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (3, 4, 5))])
def test_mutations(tmp_path, seed):
    rng, files, path = random.Random(seed), texts(), tmp_path / "t.json"
    outcomes = {"read": 0, "refused": 0}
    for _ in range(60):
        name = rng.choice(sorted(files))
        path.write_bytes(mutate(files[name], rng))
        try:
            (read_host if "et" in name.split("/")[-1] and "kineto" not in name else read_kineto)(
                path, block_bytes=rng.choice((300, 1 << 20))
            )
        except InputError as error:
            assert len(str(error).splitlines()) <= 5
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 5
