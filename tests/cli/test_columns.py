"""Tables on narrow terminals: nothing is cut inside a word without saying so, and what matters least goes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlink.cli import main, out
from graphlink.cli.out import plain, rendered
from graphlink.records import Table
from tests.simulator import Training, run, training_program, write_kineto

RANKS = 3
LONG = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>>(int)"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a run of several ranks."""
    traces = tmp_path_factory.mktemp("traces")
    for rank in range(RANKS):
        write_kineto(
            run(training_program(rank, Training(steps=2, ranks=RANKS, rank=rank))), traces / f"kineto_{rank}.json"
        )
    assert main([str(traces), "-o", str(traces / "out"), "--quiet", "--no-timeline", "--sync", "cuda"]) == 0
    return traces / "out"


def reports(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str | Table]]:
    """What a command prints, before it is rendered."""
    kept: list[Sequence[str | Table]] = []

    def keep(report: Sequence[str | Table], width: int | None = None, *, styled: bool = False) -> str:
        kept.append(report)
        return ""

    monkeypatch.setattr(out, "rendered", keep)
    assert main([*arguments]) == 0
    return kept


def tables(report: Sequence[str | Table]) -> Iterator[Table]:
    return (part for part in report if isinstance(part, Table))


def check(table: Table, width: int) -> None:
    """Every word of the table is a word of a cell, or has lost its middle; no line is longer than the terminal."""
    words = {word for row in (table.head, *table.rows) for cell in row for word in plain(cell).split()}
    for line in rendered([table], width).split("\n"):
        assert len(line) <= width, line
        assert all(word in words or "..." in word for word in line.split()), line


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    "verb",
    [["idle"], ["ops"], ["show"], ["show", "-v"], ["critical-path", "--across"], ["critical-path", "--rank", "1"]],
)
def test_no_cell_of_a_verb_is_cut_inside_a_word(
    folder: Path, monkeypatch: pytest.MonkeyPatch, verb: list[str], width: int
) -> None:
    found = [table for report in reports([verb[0], str(folder), *verb[1:]], monkeypatch) for table in tables(report)]
    assert found
    for table in found:
        check(table, width)


@pytest.mark.parametrize("width", [80, 100])
def test_a_line_a_rank_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for verb in ("idle", "show"):
        (report,) = reports([verb, str(folder)], monkeypatch)
        lines = rendered([next(table for table in tables(report) if [*table.head[:1]] == ["rank"])], width).split("\n")
        assert len(lines) == 1 + RANKS


def test_words_wrap_and_names_that_are_too_long_lose_their_middle() -> None:
    table = Table([("1.5", "host_work", LONG)], ("ms", "cause", "until"), "><<")
    check(table, 40)
    text = rendered([table], 40)
    assert "host_work" in text and "at::native:...array<char*," not in text and "..." in text
    assert rendered([table]) == f"   ms  cause      until\n  1.5  host_work  {LONG}", "no terminal, no limit"


def test_spare_columns_go_first_and_in_their_order() -> None:
    rows = [
        ("1,234.567", "host_work", "the host was busy with ops", "autograd::engine::evaluate_function: AddmmBackward0")
    ]
    table = Table(rows, ("ms", "cause", "meaning", "most by"), "><<<", spare=("meaning", "cause"))
    assert [name for name in table.head if name in rendered([table], 60)] == [*table.head]
    assert [name for name in table.head if name in rendered([table], 48)] == ["ms", "cause", "most by"]
    assert [name for name in table.head if name in rendered([table], 38)] == ["ms", "most by"]


def test_numbers_are_never_cut() -> None:
    numbers = tuple(f"{10**k:,}" for k in range(3, 12))
    lines = rendered([Table([numbers], [f"column {k}" for k in range(9)], ">" * 9)], 60).split("\n")
    shown = lines[-1].split()
    assert shown == [*numbers[: len(shown)]] and 2 <= len(shown) < 9


cells = st.text(st.sampled_from("ab 	é漢,.:%<"), max_size=30)


@given(
    st.lists(st.lists(cells, min_size=4, max_size=4), min_size=1, max_size=4),
    st.text(st.sampled_from("<>"), max_size=4),
    st.integers(40, 120),
)
def test_any_table_keeps_its_width(rows: list[list[str]], align: str, width: int) -> None:
    from rich.cells import cell_len

    sides = align.ljust(4, "<")
    table = Table(
        [[cell[:6] if side == ">" else cell for cell, side in zip(row, sides, strict=True)] for row in rows], (), align
    )
    words = {word for row in table.rows for cell in row for word in plain(cell).split()}
    for line in rendered([table], width).split("\n"):
        assert cell_len(line) <= width
        assert all(word in words or "..." in word for word in line.split())
