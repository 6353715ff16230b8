"""The public names: all are seen, explained, and shown on a line or two."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import graphlink
from graphlink.graph import path_file as path
from graphlink.graph.read_et import read_et
from graphlink.replay.across import across
from graphlink.replay.workload import workload

PIPELINE = Path(__file__).parents[1] / "fixtures" / "real" / "pipeline"
DEMO = Path(__file__).parents[1] / "fixtures" / "demo"
VERBS = (
    *(
        "Answer",
        "Build",
        "Check",
        "Classify",
        "Decide",
        "Do",
        "Encode",
        "Find",
        "Give",
        "Join",
        "Keep",
        "Link",
        "Name",
        "Open",
        "Pair",
        "Parse",
        "Read",
        "Replay",
    ),
    *("Return", "Say", "Walk", "Write"),
)
NAMES = sorted({*graphlink.__all__, "open"} - {"__version__"})


def records(value: object) -> Iterator[object]:
    """All records in ``value``, itself included."""
    names: Any = getattr(value, "__struct_fields__", None) or getattr(value, "__dataclass_fields__", ())
    if names and not isinstance(value, type):
        yield value
        for name in names:
            yield from records(getattr(value, name))
    elif isinstance(value, tuple | list | dict):
        for inner in [*(value.values() if isinstance(value, dict) else value)][:40]:
            yield from records(inner)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What the public functions return, of the demo."""
    out = tmp_path_factory.mktemp("made")
    options = graphlink.Options(linked=True)
    prepared = graphlink.prepare(graphlink.Inputs(kineto=DEMO / "kineto_0.json", et=DEMO / "et_0.json"), options)
    graph, comm, linked = prepared.built.graph, prepared.comm, prepared.linked
    played = graphlink.replay_graph(graph, graphlink.cost_ns(graph))
    run = graphlink.link(DEMO, options=options, out=out / "run")
    ranks = {0: read_et(out / "run" / "trace.0.et")}
    pipeline = graphlink.link(PIPELINE, out=out / "pipeline")
    return [
        *(pipeline, pipeline.summary, pipeline.replay(scale="host=0.5"), pipeline.advice()),
        *(prepared, played, run, run.summary, run.graph(0), run.replay(scale="kernel=0.5")),
        *(path.load(out / "run" / "critical_path.0.json"), ranks, workload(ranks), across(ranks, {})),
        graphlink.critical_path(graph, played.end_ns, graphlink.cost_ns(graph), graphlink.shares(graph, linked, comm)),
        graphlink.cut(linked.trace, linked.match, graphlink.parse_steps("1")),
        graphlink.Recordings(folders=("x" * 1000,) * 3),
        graphlink.Options(range_rules=(f"(?P<phase>F){'x' * 1000}",)),
    ]


def test_every_public_object_is_shown_in_less_than_400_characters(made: list[object]) -> None:
    found = {type(record).__name__: record for value in made for record in records(value)}
    assert {"Trace", "Linked", "Graph", "Built", "HostTrace", "Summary", "Report", "PathFile", "CriticalPath"} <= set(
        found
    )
    seen = [record for value in made for record in [value, *records(value)]]
    long = {
        type(record).__name__: len(repr(record))
        for record in seen
        if len(repr(record)) >= 400 and not isinstance(record, list)
    }
    assert not long


def test_notebooks_show_small_tables(made: list[object]) -> None:
    shown = {type(one).__name__: one._repr_html_() for one in made if hasattr(one, "_repr_html_")}
    assert "<td>356</td>" in shown["Run"] and "edges: launch" in shown["Graph"]
    assert all(text.startswith("<table>") and len(text) < 4_000 for text in shown.values())


def test_all_public_names_are_listed_and_there() -> None:
    assert set(NAMES) <= set(dir(graphlink))
    for name in NAMES:
        assert getattr(graphlink, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = graphlink.nothing  # type: ignore[attr-defined]


def test_a_stage_that_is_imported_hides_no_function_of_its_name() -> None:
    from graphlink.linking.step_cut import cut

    assert graphlink.cut is cut
    assert [*inspect.signature(graphlink.link).parameters][:3] == ["recordings", "options", "out"]
    assert "Link the recordings of a run" in pydoc.render_doc(graphlink.link)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "capture" and not n.endswith(("Error", "Failed"))])
def test_the_help_of_a_public_name_begins_with_a_verb(name: str) -> None:
    text = inspect.getdoc(getattr(graphlink, name)) or ""
    first = text.split()[0]
    assert first in VERBS, f"{name}: {first}"


def test_all_tables_of_a_run_say_what_a_row_is_and_its_units() -> None:
    for name, method in inspect.getmembers(graphlink.Run, inspect.isfunction):
        if not name.startswith("_"):
            text = method.__doc__ or ""
            assert text.split()[0] in ("Return", "Replay"), name
            assert name == "edges" or re.search(r"\bns\b|_ns|CSR|call", text), name
