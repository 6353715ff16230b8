from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from graphlink.doctor.kinds import _ALL, KINDS, Kind
from graphlink.doctor.records import Finding, merged

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([a-z-]+)` \| (lost|inferred|note) \| .* \| (.*) \|$", re.MULTILINE)


def test_names_are_used_once() -> None:
    assert len(KINDS) == len(_ALL)


def test_each_finding_is_found_somewhere_and_nothing_else_is() -> None:
    found_in = [*(ROOT / "graphlink" / "doctor").glob("*.py"), *(ROOT / "graphlink").glob("*/lacking.py")]
    found_in += (ROOT / "graphlink").glob("*/wing.py")
    modules = [path.read_text() for path in found_in if path.name != "kinds.py"]
    assert set(KINDS) == {name for name in KINDS if any(f'"{name}"' in text for text in modules)}
    found = {name for text in modules for name in re.findall(r'(?:Finding|if_any)\(\s*"([^"]+)"', text)}
    assert found <= set(KINDS)


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
    features = kind.name.startswith("env-")  # those of PyTorch are looked at one by one
    assert features or any(f'"{kind.name}"' in text for text in texts())


@cache
def texts() -> list[str]:
    """Of all other tests."""
    return [path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_texts_are_whole(kind: Kind) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind.name)
    assert kind.lacks
    assert kind.costs
    assert kind.record
    assert not kind.lacks.endswith(".")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three more findings, a, b and c."""
    for kind in (
        Kind("a", "note", "{n} rows", "{n} of {m}; {t_ms} ms of them", "x"),
        Kind("b", "lost", "b", "b", "y"),
        Kind("c", "lost", "c", "c", "y"),
    ):
        monkeypatch.setitem(KINDS, kind.name, kind)


def finding(kind: str, share: float = 1.0, **figures: int) -> Finding:
    return Finding(kind, share, figures)


@pytest.mark.usefixtures("listed")
def test_findings_of_ranks_add_up_and_the_worst_comes_first() -> None:
    found = merged(
        [
            Finding("a", 0.2, {"n": 1_000, "m": 5, "t_ns": 1_500_000}, {"x": 1}, ("said",), (1,), ("f1",)),
            finding("c", 0.5),
            Finding("a", 0.1, {"n": 2_000, "m": 5, "t_ns": 500_000}, {"y": 3, "x": 1}, ("said", "more"), (0,), ("f0",)),
            finding("b", 0.9),
        ]
    )
    assert [f.name for f in found] == ["b", "c", "a"]
    last = found[-1]
    assert (last.lacks, last.costs) == ("3,000 rows", "3,000 of 10; 2.000 ms of them")
    assert (last.parts, last.told, last.ranks, last.files, last.share) == (
        {"y": 3, "x": 2},
        ["said", "more"],
        [0, 1],
        ["f1", "f0"],
        0.2,
    )


@pytest.mark.usefixtures("listed")
def test_what_is_zero_costs_nothing_and_what_is_one_has_no_plural(monkeypatch: pytest.MonkeyPatch) -> None:
    assert merged([finding("a", n=0, m=5, t_ns=2_000_000)])[0].costs == "2.000 ms of them"
    monkeypatch.setitem(KINDS, "b", Kind("b", "lost", "{n:API call}", "{n:wait}; {m:call}", "y"))
    found = [merged([finding("b", n=n, m=0)])[0] for n in (1, 2_000)]
    assert [(one.lacks, one.costs) for one in found] == [("1 API call", "1 wait"), ("2,000 API calls", "2,000 waits")]
    assert merged([finding("a", n=0, m=5, t_ns=0)])[0].costs == "nothing in this recording"
