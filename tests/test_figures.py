"""A figure is declared once, at its field, and its name says what the declaration leaves out."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from graphlink.figures import Column, column, columns, declared, figure, table, text
from graphlink.page import words
from graphlink.page.parts import Cell, Meaning, Section
from graphlink.records import Table, apart, shortened
from graphlink.run.tables import of_rows
from graphlink.wings import RowTable


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    lag_ns: int


class Row(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    calls: Annotated[int, figure("times", "How often it was called.", means="calls", spare=2)]
    busy_ns: Annotated[int, figure(spare=1)]
    idle_ns: int
    sent_bytes: int
    kind: Literal["op", "range"]
    name: str
    path: list[str]
    load: float
    gain_ns: int | None = None
    stream: int | UnsetType = UNSET
    inner: Inner

    @property
    def busy(self) -> Annotated[tuple[int, int], figure(means="busy")]:
        return self.busy_ns, self.busy_ns + self.idle_ns


ROWS = [
    Row(
        rank=1_000,
        calls=2_000,
        busy_ns=1_500_000,
        idle_ns=500_000,
        sent_bytes=2_048,
        kind="op",
        name="x" * 70,
        path=["a", "b"],
        load=0.5,
        inner=Inner(lag_ns=7_000),
    )
]


class Grown(Row, frozen=True, kw_only=True):
    """The record with a figure more, which no list of columns names."""

    @property
    def per_call_ns(
        self,
    ) -> Annotated[int, figure("per call", "Busy time of a call.", means="per_call", everywhere=True)]:
        return self.busy_ns // self.calls


def test_names_and_types_say_the_unit() -> None:
    units = {name: declared(Row, name).unit for name in (*Row.__struct_fields__[:-1], "busy", "inner.lag_ns")}
    assert units == {
        "rank": "number",
        "calls": "count",
        "busy_ns": "ns",
        "idle_ns": "ns",
        "sent_bytes": "bytes",
        "kind": "word",
        "name": "text",
        "path": "path",
        "load": "of one",
        "gain_ns": "ns",
        "stream": "number",
        "busy": "part",
        "inner.lag_ns": "ns",
    }


def test_a_declaration_says_what_the_name_does_not() -> None:
    calls = declared(Row, "calls")
    assert (calls.title, calls.head, calls.text, calls.means) == ("times", "times", "How often it was called.", "calls")
    assert (declared(Row, "busy_ns").title, declared(Row, "busy_ns").head) == ("busy", "busy ms")
    assert (declared(Row, "inner.lag_ns").name, declared(Row, "busy").name) == ("inner/lag_ns", "")


def test_a_table_of_a_terminal() -> None:
    names = ("rank", "calls", "busy_ns", "busy", "sent_bytes", "kind", "name", "path", "load", "gain_ns", "stream")
    assert table(columns(Row, ROWS, *names), indent=4) == Table(
        [
            (
                *("1000", "2,000", "1.500", "75.0 %", "2,048", "op", "x" * 40 + "..." + "x" * 17, "a/b", "50.0 %"),
                *("", ""),
            )
        ],
        ["rank", "times", "busy ms", "busy", "sent bytes", "kind", "name", "path", "load", "gain ms", "stream"],
        ">>>>><<<>>>",
        4,
        ["busy ms", "times"],
    )
    assert table(columns(Row, ROWS, "name"), whole=True).rows == [("x" * 70,)]


def test_a_table_of_a_page() -> None:
    also = column("also", "cause", ["python"])
    shown = words.table("t", "T", columns(Row, ROWS, "busy_ns", "inner.lag_ns", "busy", "path", also), "file#/rows")
    assert [(one.name, one.sort, one.means, one.field) for one in shown.columns] == [
        ("busy", "number", "", "busy_ns"),
        ("lag", "number", "", "inner/lag_ns"),
        ("busy", "number", "busy", ""),
        ("path", "text", "", ""),
        ("also", "text", "", ""),
    ]
    (row,) = shown.rows
    assert row.at == "/0"
    assert row.cells == [
        Cell("1.500 ms", 1_500_000),
        Cell("7.000 us", 7_000),
        Cell("75.0 %", 0.75),
        Cell("a/b", whole="a/b"),
        Cell("python", key="python"),
    ]


def test_no_rows_have_the_columns_all_the_same() -> None:
    empty = columns(Row, [], "calls", "busy")
    assert [shown.values for shown in empty] == [[], []]
    assert table(empty).head == ["times", "busy"]
    assert words.table("t", "T", empty, "file#/rows").rows == []


def test_a_figure_that_is_everywhere_needs_no_other_place() -> None:
    rows = [Grown(**msgspec.structs.asdict(ROWS[0]))]
    assert table(columns(Grown, rows, "calls")) == Table(
        [("2,000", "0.001")], ["times", "per call ms"], ">>", 2, ["times"]
    )
    shown = words.table("t", "T", columns(Grown, rows, "calls"), "file#/rows")
    assert [cell.text for cell in shown.rows[0].cells] == ["2,000", "750 ns"]
    assert words.meanings([], [Section("s", "S", [shown])])[-1] == Meaning(
        "per_call", "per call", "Busy time of a call."
    )
    frame = of_rows(RowTable(Grown, ("rank", "calls"), lambda *_: rows), rows)
    assert frame.to_dict("records") == [{"rank": 1_000, "calls": 2_000, "per_call_ns": 750}]


def test_what_a_row_does_not_have_is_empty() -> None:
    assert text("ns", None) == text("count", UNSET) == ""
    assert words.cell("ns", None) == words.cell("cause", UNSET) == Cell("")
    assert isinstance(column("a", "ns", [1]), Column)


def test_names_that_differ_inside_do_so_when_they_are_shortened() -> None:
    start, end = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::",
        "_kernel_cuda(TensorIteratorBase&)::lambda>",
    )
    gelu, tanh, other = f"{start}gelu{end}", f"{start}tanh{end}", "gemm"
    assert apart([gelu, other, gelu]) == [shortened(gelu), other, shortened(gelu)]
    names = apart([gelu, tanh, other])
    assert len({*names}) == 3 and "gelu_kernel" in names[0] and "tanh_kernel" in names[1] and names[2] == other
    assert all(len(name) <= 60 for name in names)
