from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphlink.doctor import comm, environment, et, kineto, nccl, nsys, ranks, waits
from graphlink.doctor.records import Finding, Kind, merged

MODULES = (kineto, waits, comm, et, ranks, nsys, nccl, environment)
LISTED = [kind for module in MODULES for kind in vars(module).values() if isinstance(kind, Kind)] + [*environment.FEATURES.values()]
KINDS: dict[str, Kind] = {kind.name: kind for kind in LISTED}
ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([a-z-]+)` \| (lost|inferred|note) \| .* \| (.*) \|$", re.MULTILINE)


def test_names_are_used_once() -> None:
    assert len(KINDS) == len(LISTED)


def test_docs_and_code_list_the_same_findings() -> None:
    rows = ROW.findall((ROOT / "docs" / "doctor.md").read_text())
    assert {name: level for name, level, _ in rows} == {name: kind.level for name, kind in KINDS.items()}
    assert len(rows) == len(KINDS)
    for name, _, record in rows:
        assert record.endswith("(capture)") == KINDS[name].by_capture, name
        first = KINDS[name].record.replace("<", "&lt;").replace("|", "\\|").split()[0]
        assert record.startswith(first) or name == "env-nccl-rings", name


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_some_test_names_each_finding(kind: Kind) -> None:
    """That a recording has it is what the test of that name says."""
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    features = kind.name.startswith("env-")  # those of PyTorch are looked at one by one
    assert features or any(f'"{kind.name}"' in path.read_text() for path in tests)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_texts_are_whole(kind: Kind) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.name)
    assert kind.lacks
    assert kind.costs
    assert kind.record
    assert not kind.lacks.endswith(".")


def finding(kind: Kind, share: float = 1.0, **figures: int) -> Finding:
    return Finding(kind, share, figures)


A = Kind("a", "note", "{n} rows", "{n} of {m}; {t_ms} ms of them", "x")
B = Kind("b", "lost", "b", "b", "y")
C = Kind("c", "lost", "c", "c", "y")


def test_findings_of_ranks_add_up_and_the_worst_comes_first() -> None:
    found = merged(
        [
            Finding(A, 0.2, {"n": 1_000, "m": 5, "t_ns": 1_500_000}, {"x": 1}, ("said",), (1,), ("f1",)),
            finding(C, 0.5),
            Finding(A, 0.1, {"n": 2_000, "m": 5, "t_ns": 500_000}, {"y": 3, "x": 1}, ("said", "more"), (0,), ("f0",)),
            finding(B, 0.9),
        ]
    )
    assert [f.name for f in found] == ["b", "c", "a"]
    last = found[-1]
    assert (last.lacks, last.costs) == ("3,000 rows", "3,000 of 10; 2.000 ms of them")
    assert (last.parts, last.told, last.ranks, last.files, last.share) == ({"y": 3, "x": 2}, ["said", "more"], [0, 1], ["f1", "f0"], 0.2)


def test_what_is_zero_costs_nothing() -> None:
    assert merged([finding(A, n=0, m=5, t_ns=2_000_000)])[0].costs == "2.000 ms of them"
    assert merged([finding(A, n=0, m=5, t_ns=0)])[0].costs == "nothing in this recording"
