"""What the rows of a public recording say, read without graphlink: times in ms."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Span = tuple[float, float]
COMM = re.compile(r"nccl|rccl|mscclpp|SendRecv", re.IGNORECASE)
_ON_DEVICE = {"kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "copy", "Memcpy": "copy", "gpu_memset": "copy"}
_ON_DEVICE["mtia_ccp_events"] = "kernel"
_HOST = {"cpu_op", "Operator", "user_annotation"}


@dataclass(frozen=True)
class Raw:
    """``device``: (sort, name, start, end, device) of kernels and copies; ``host``: (name, start, end, thread) of ops
    and ranges; ``calls``: (name, start, end) of the runtime."""

    device: list[tuple[str, str, float, float, int]]
    host: list[tuple[str, float, float, int]]
    calls: list[tuple[str, float, float]]

    @property
    def length(self) -> float:
        spans = [(row[2], row[3]) for row in self.device] + [(row[1], row[2]) for row in self.host]
        spans += [(row[1], row[2]) for row in self.calls]
        return max(end for _, end in spans) - min(start for start, _ in spans)

    def on_device(self, *sorts: str, device: int | None = None, name: str = "") -> float:
        """Return how long devices did one of these sorts of work, overlaps counted once on each."""
        devices = {row[4] for row in self.device} if device is None else {device}
        return sum(union(spans_of(self.device, sorts, one, name)) for one in devices)

    def exposed(self, sort: str) -> float:
        """Return how long devices did that sort of work and no kernel that computes."""
        both, compute = self.on_device(sort, "kernel"), self.on_device("kernel")
        return both - compute

    def in_ops(self, name: str) -> float:
        """Return what ops and ranges of a name took, those inside each other once."""
        threads = {row[3] for row in self.host}
        return sum(
            union((s, e) for n, s, e, thread in self.host if thread == one and re.search(name, n)) for one in threads
        )

    def longest(self, name: str) -> float:
        return max(end - start for n, start, end, _ in self.host if re.search(name, n))

    def in_calls(self, name: str) -> float:
        return sum(end - start for n, start, end in self.calls if re.search(name, n))


def spans_of(
    rows: Iterable[tuple[str, str, float, float, int]], sorts: Iterable[str], device: int, name: str
) -> list[Span]:
    return [(s, e) for sort, n, s, e, d in rows if sort in sorts and d == device and re.search(name, n)]


def union(spans: Iterable[Span]) -> float:
    whole = reach = 0.0
    for start, end in sorted(spans):
        whole += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return whole


def kineto(path: Path) -> Raw:
    """Read a Kineto trace."""
    rows = json.loads(gzip.decompress(path.read_bytes()), strict=False)["traceEvents"]
    device, host, calls = [], [], []
    for row in rows:
        if row.get("ph") != "X" or "dur" not in row:
            continue
        start = float(row["ts"]) / 1e3
        end, name, sort = start + float(row["dur"]) / 1e3, str(row["name"]), str(row.get("cat"))
        if sort in _ON_DEVICE:
            what = "comm" if COMM.search(name) else _ON_DEVICE[sort]
            device.append((what, name, start, end, int(row["args"].get("device", row["pid"]))))
        elif sort in _HOST:
            host.append((name, start, end, int(row["tid"])))
        elif sort in ("cuda_runtime", "cuda_driver", "Runtime"):
            calls.append((name, start, end))
    return Raw(device, host, calls)


def nsys(path: Path) -> Raw:
    """Read the sqlite export of a Nsight Systems report."""

    def rows(query: str) -> list[Any]:
        return db.execute(query).fetchall()

    with closing(sqlite3.connect(path)) as db, db:
        names = dict(rows("SELECT id, value FROM StringIds"))
        kernels = rows("SELECT demangledName, start, end, deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL")
        copies = rows("SELECT start, end, deviceId FROM CUPTI_ACTIVITY_KIND_MEMCPY")
        calls = rows("SELECT nameId, start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    device = [
        ("comm" if COMM.search(names[name]) else "kernel", names[name], start / 1e6, end / 1e6, int(number))
        for name, start, end, number in kernels
    ]
    device += [("copy", "copy", start / 1e6, end / 1e6, int(number)) for start, end, number in copies]
    return Raw(device, [], [(names[name], start / 1e6, end / 1e6) for name, start, end in calls])


Evidence = Callable[[list[Raw]], float]
