"""Kineto traces and execution traces of a few rows: what tells their rank, run and process, and little else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def info(rank: object, world: object = None, **more: object) -> dict[str, object]:
    """``distributedInfo`` as PyTorch writes it, but with a nested value before the rank."""
    size = {} if world is None else {"world_size": world}
    return {"backend": "nccl", "pg_config": [{"pg_name": "0", "ranks": [0, 1]}], "rank": rank, **size, **more}


def kineto(path: Path, head: object = None, *, pid: int = 1, us: float = 0) -> Path:
    device = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": us, "dur": 1}
    host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": pid, "tid": pid, "ts": us, "dur": 1}
    return written(
        path, {"schemaVersion": 1} | ({"distributedInfo": head} if head else {}) | {"traceEvents": [device, host, host]}
    )


def et(
    path: Path,
    *,
    pid: int = 1,
    groups: list[Any] | None = None,
    inputs: list[Any] | None = None,
    at: str = "2026-01-01 10:00:00",
) -> Path:
    nodes: list[Any] = [{"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "inputs": {"values": []}}]
    if groups is not None:
        nodes.append({"id": 3, "name": "## process_group:init ##", "inputs": {"values": [json.dumps(groups)]}})
    if inputs is not None:
        nodes += [{"id": 4, "name": "record_param_comms", "inputs": {"values": inputs}}]
    nodes.append({"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "inputs": {"values": []}})
    return written(path, {"schema": "1.1.0-chakra.0.0.4", "pid": pid, "time": at, "nodes": nodes})


def written(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path
