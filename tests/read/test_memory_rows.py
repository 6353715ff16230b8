"""What the allocator held at most, of each device, from its instant rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import graphlink
from graphlink.model import DeviceMemory
from graphlink.read.kineto import read_kineto
from graphlink.report.summary import table
from tests.simulator import Shape, random_program, run, write_kineto

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
GPUS = [
    {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 1000},
    {"id": 1, "totalGlobalMem": "?"},
    {"id": 2, "totalGlobalMem": 0},
    7,
]


def row(
    device: Any, kind: Any, allocated: Any, reserved: Any, category: str | None = "cpu_instant_event"
) -> dict[str, Any]:
    args = {
        "Device Id": device,
        "Device Type": kind,
        "Total Allocated": allocated,
        "Total Reserved": reserved,
        "Bytes": 5,
        "Addr": 9,
    }
    told = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": 5.5, "args": args}
    return told if category is None else {**told, "cat": category}


def recorded(path: Path, rows: list[dict[str, Any]], gpus: Any = GPUS) -> tuple[DeviceMemory, ...]:
    write_kineto(run(random_program(1, Shape())), path, dialect="2026")
    document = json.loads(path.read_text())
    document["traceEvents"] = [*rows, *document["traceEvents"], row(0, 1, 1, 1)]
    path.write_text(json.dumps({**document, "deviceProperties": gpus}))
    return read_kineto(path).memory


def test_the_largest_of_each_device(tmp_path: Path) -> None:
    rows = [
        row(0, 1, 100, 400),
        row(0, 1, 300, 200),
        row(1, 6, 7, 8, None),
        row(-1, 0, 9_000, 0),
        row(0, 0, 9_999, 9_999),
    ]
    found = recorded(tmp_path / "kineto.json", rows)
    assert found == (
        DeviceMemory(device=0, rows=3, allocated_bytes=300, reserved_bytes=400, total_bytes=1000),
        DeviceMemory(device=1, rows=1, allocated_bytes=7, reserved_bytes=8),
    )


def test_rows_that_say_nothing_or_nonsense_are_none(tmp_path: Path) -> None:
    rows = [row(0, 1, None, 5), row("x", 1, 5, 5), row(0, 1, -5, 5), row(0, 1, "a", 5), row(0, 1, 1e300, [])]
    assert recorded(tmp_path / "kineto.json", rows, "?") == (
        DeviceMemory(device=0, rows=1, allocated_bytes=1, reserved_bytes=1),
    )


def test_the_summary_has_it_and_prints_it_with_all_counts(tmp_path: Path) -> None:
    recorded(
        tmp_path / "kineto_0.json",
        [row(0, 1, 37_613_000_000, 61_652_000_000)],
        [{"id": 0, "totalGlobalMem": 84_929_000_000}],
    )
    made = graphlink.link(tmp_path / "kineto_0.json", out=tmp_path / "out", options=graphlink.Options(sync="cuda"))
    (rank,) = made.summary.ranks
    assert [(one.device, one.reserved_bytes) for one in rank.memory] == [(0, 61_652_000_000)]  # type: ignore[union-attr]
    text = "at most 37.613 GB allocated, 61.652 GB reserved, of 84.929 GB (72.6 % reserved)"
    assert ("memory 0", text) in [
        row for part in table(made.summary, verbose=True) for row in getattr(part, "rows", ())
    ]
    assert text not in str(table(made.summary))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("vgg13-h100/kineto_0", (360, 39_343_881_216, 61_652_074_496, 84_929_347_584)),
        ("ddp/many_allreduces", (26_770, 6_629_508_096, 12_782_141_440, 34_089_730_048)),
        ("legacy/triton_example", None),
    ],
)
def test_recordings(name: str, most: tuple[int, ...] | None) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip("the public recordings of ../shared/traces are not here")
    found = [(one.rows, one.allocated_bytes, one.reserved_bytes, one.total_bytes) for one in read_kineto(path).memory]
    assert found == ([] if most is None else [most])
