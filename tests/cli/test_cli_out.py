"""All text of the command line goes one way, on which a terminal's controls are written out; JSON stays the JSON that
it is.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from graphlink.cli.out import rendered, tell
from graphlink.errors import OutputError
from graphlink.graph.attributes import framed
from graphlink.publish import as_json
from graphlink.records import Table, command_lines, plain, visible
from tests.cli.conftest import Ran

CLI = Path(__file__).parents[2] / "graphlink" / "cli"
HOSTILE = "\x1b[2J\x07\r\x9b31m\u202e\x7f\u2066"


@given(st.text(st.characters()))
def test_what_is_shown_can_be_printed_and_says_what_was_there(text: str) -> None:
    assert visible(text).replace("\n", "").isprintable() and plain(text).isprintable()
    assert (visible(text) == text) == text.replace("\n", "").isprintable()


@given(st.dictionaries(st.text(), st.text() | st.integers()))
def test_json_stays_the_same_json(value: dict[str, str | int]) -> None:
    for text in (json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, indent=1)):
        assert json.loads(visible(text)) == value


def test_what_is_written_out() -> None:
    assert visible(HOSTILE + "\n\U000e0001") == "\\x1b[2J\\x07\\x0d\\u009b31m\\u202e\\u007f\\u2066\n\\udb40\\udc01"


def test_only_one_module_prints() -> None:
    speak = {
        "print",
        "sys.stdout.write",
        "sys.stderr.write",
        "sys.stdout.buffer.write",
        "argparse.ArgumentParser",
        "logging.Formatter",
    }
    found = {
        (path.name, ast.unparse(node.func))
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in speak
    }
    assert {name for name, _ in found} == {"out.py"}


def no_controls(ran: Ran) -> None:
    text = ran.out + ran.err
    assert text.replace("\n", "").isprintable(), [c for c in text if not c.isprintable() and c != "\n"]


@pytest.fixture
def hostile(traces: Path, tmp_path: Path) -> Path:
    """A recording all of whose ops and calls have hostile names, and a folder with a hostile name."""
    folder = tmp_path / f"run{HOSTILE}"
    folder.mkdir()
    for kind, rows in (("kineto", "traceEvents"), ("et", "nodes")):
        document = json.loads((traces / f"{kind}_0.json").read_text())
        for row in document[rows]:
            row["name"] = row["name"] + HOSTILE if row.get("cat", "") != "ac2g" else row["name"]
        (folder / f"{kind}_0.json").write_text(json.dumps(document))
    return folder


def test_no_recorded_name_reaches_the_terminal_as_it_is(graphlink: Callable[..., Ran], hostile: Path) -> None:
    out = hostile / "out"
    pair = ["--kineto", hostile / "kineto_0.json", "--et", hostile / "et_0.json"]
    ran = graphlink(*pair, "--out", out, "--no-timeline", "--sync", "cuda", "-v")
    assert ran.status == 0, ran.err
    assert "\\x1b[2J" in ran.out
    no_controls(ran)
    graph = out / "trace.0.et"
    for verb in (
        ["show", out, "-v"],
        ["show", graph, "--node", 27],
        ["critical-path", out],
        ["replay", out],
        ["check", out],
        ["doctor", hostile],
    ):
        said = graphlink(*verb)
        no_controls(said)
        assert "\\x1b" in said.out or verb[0] in ("check", "replay"), verb
    assert HOSTILE.encode() in graph.read_bytes(), "graphs stay as recorded"


def test_errors_say_it_in_plain_text_too(graphlink: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / f"a{HOSTILE}.json"
    path.write_text("{")
    for arguments in (
        (path,),
        ("--kineto", path),
        ("show", path.parent / "x\x1b"),
        ("--bogus\x1b[2J",),
        ("--kineto", path, "\x1b"),
    ):
        ran = graphlink(*arguments, "--out", tmp_path / "out") if arguments[0] != "show" else graphlink(*arguments)
        assert ran.status in (1, 2) and "\\x1b" in ran.err
        no_controls(ran)


def test_json_on_standard_output_is_the_file(graphlink: Callable[..., Ran], tmp_path: Path) -> None:
    node = pb.Node(id=0, name=HOSTILE, type=pb.COMP_NODE, duration_micros=1)
    (tmp_path / "trace.0.et").write_bytes(
        framed([m.SerializeToString() for m in (pb.GlobalMetadata(version="0.0.4"), node)])
    )
    ran = graphlink("replay", tmp_path, "--json", "-")
    assert graphlink("replay", tmp_path, "--json", tmp_path / "x.json").status == ran.status == 0
    no_controls(ran)
    assert json.loads(ran.out) == json.loads((tmp_path / "x.json").read_bytes())


LONG = "several words that go on and on, until no line of forty columns holds them"


def test_a_report_is_aligned_and_off_a_terminal_each_row_is_a_line() -> None:
    report = [
        "head",
        Table([("name", LONG, "1"), ("a longer name", "[red]b[/]\n\x1b[1m", "1,000")], align="<<>"),
        "",
        "  end",
    ]
    hostile = r"[red]b[/]\n\x1b[1m"
    assert rendered(report).split("\n") == [
        "head",
        f"  name           {LONG}      1",
        f"  a longer name  {hostile:<{len(LONG)}}  1,000",
        "",
        "  end",
    ]
    assert rendered([Table([("x", "y" * 2_000_000)])]) == f"  x  {'y' * 2_000_000}"


def test_on_a_terminal_lines_and_cells_wrap_at_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    narrow = rendered([f"  {LONG}", Table([("name", LONG)], ("what", "text"))], 40)
    assert all(len(line) <= 40 for line in narrow.split("\n"))
    assert [word for line in narrow.split("\n") for word in line.split()] == [
        *LONG.split(),
        "what",
        "text",
        "name",
        *LONG.split(),
    ]
    assert all(line.startswith("  ") for line in narrow.split("\n"))
    command = f"graphlink replay {'folder' * 10} --scale copy=0"
    assert rendered(["line", *command_lines({command: "tells"})], 40).split("\n") == ["line", f"  {command}  # tells"]
    styled = rendered(["head", Table([("a\x1b", "b")])], 40, styled=True)
    assert styled.startswith("\x1b[1mhead\x1b[0m\n  a\\x1b")


def test_json_is_moved_in_whole_keeps_its_mode_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = tmp_path / "said.json", tmp_path / "other.txt"
    file.write_text("before")
    file.chmod(0o640)
    other.write_text("before")
    (tmp_path / "link.json").symlink_to(other)
    for path in (file, tmp_path / "link.json"):
        tell(str(path), {"a": 1}, list, quiet=True)
        assert (json.loads(path.read_text()), path.is_symlink()) == ({"a": 1}, False)
    assert (other.read_text(), file.stat().st_mode & 0o777) == ("before", 0o640)

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match="No space left"):
        tell(str(file), {"a": 2}, list, quiet=True)
    assert json.loads(file.read_text()) == {"a": 1}
    assert {path.name for path in tmp_path.iterdir()} == {"said.json", "link.json", "other.txt"}


def test_names_that_are_no_utf8_have_question_marks_in_json() -> None:
    data = {"folder": os.fsdecode(b"caf\xe9"), "ranks": [("a", os.fsdecode(b"\xff"), 1, None)]}
    assert json.loads(as_json(data)) == {"folder": "caf?", "ranks": [["a", "?", 1, None]]}
