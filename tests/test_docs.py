"""The pages of docs/ that newcomers read are true: every command shown runs and prints what is shown; words and links
are explained.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphlink.cli import main, out
from graphlink.cli.parser import parser_of
from graphlink.cli.verbs import VERBS
from graphlink.records import Table

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
SHOWN = ("tutorial.md", "index.md", "faq.md", "export.md", "bubbles.md")  # in the order in which they share a folder
BLOCK = re.compile(r"^```\n(\$ .*?)^```", re.MULTILINE | re.DOTALL)
ASKED = [
    *("idle out", "ops out", "advice out", "critical-path out", "critical-path pipeline --across", "show -v pipeline")
]
ASKED += ["replay out --list", "replay out --scale host=0.5", "bubbles pipeline", "export out --format csv --out other"]
PLAIN = (
    "ms at count name file rows columns time before after most by until type from half as long of which in what "
    "if "
    "it took no and for that"
)
PLAIN += " that error longest mostly gpu comm meaning"


class Shell:
    """Runs graphlink in a folder that has ``fixtures``. What links a recording runs once, and ``-q`` shows nothing of
    it.
    """

    def __init__(self) -> None:
        self.linked: dict[str, str] = {}

    def run(self, command: str) -> str:
        words = shlex.split(command)
        if words[0] == "ls":
            return "".join(f"{path.name}\n" for path in sorted(Path(words[1]).iterdir()))
        assert words.pop(0) == "graphlink", command
        if words[0] in VERBS:
            return self._call(words)
        quiet = words[-1] == "-q"
        made = shlex.join(words[:-1] if quiet else words)
        if made not in self.linked:
            self.linked[made] = self._call(shlex.split(made))
        return "" if quiet else self.linked[made]

    @staticmethod
    def _call(words: list[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            assert main(words) == 0, words
        return printed.getvalue()


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    folder = tmp_path_factory.mktemp("shell")
    (folder / "fixtures").symlink_to(ROOT / "fixtures")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield Shell()


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """The commands of a page's blocks, each with the lines that are shown below it."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *lines = part.rstrip("\n").split("\n")
            yield command, lines


def fits(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are those printed; a line ``...`` stands for any number of them."""
    parts: list[list[str]] = [[]]
    for line in shown:
        if line == "...":
            parts.append([])
        else:
            parts[-1].append(line)
    if len(parts) == 1:
        return shown == printed
    at = len(parts[0])
    if printed[:at] != parts[0]:
        return False
    for part in parts[1:-1]:
        found = next((k for k in range(at, len(printed)) if printed[k : k + len(part)] == part), None)
        if found is None:
            return False
        at = found + len(part)
    last = parts[-1]
    return not last or (len(printed) - len(last) >= at and printed[len(printed) - len(last) :] == last)


@pytest.mark.parametrize("name", SHOWN)
def test_commands_print_what_is_shown(shell: Shell, name: str) -> None:
    shown = list(commands(PAGES[name]))
    assert shown
    for command, lines in shown:
        printed = shell.run(command).rstrip("\n").split("\n")
        printed = [] if printed == [""] else printed
        assert fits(lines, printed), f"{command}\n" + "\n".join(printed)


def test_the_file_of_changes_that_is_shown_does_what_is_shown(shell: Shell) -> None:
    page = PAGES["replay.md"]
    (changes,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    Path("faster.toml").write_text(changes)
    if not Path("before").exists():  # which the tutorial makes
        shell.run("graphlink fixtures/real/dataloader -o before -q")
    for command, lines in commands(page):
        assert fits(lines, shell.run(command).splitlines()), command


def test_a_line_that_is_not_printed_is_found() -> None:
    assert fits(["a", "...", "c"], ["a", "b", "c"]) and fits(["..."], []) and fits(["...", "b", "..."], ["a", "b", "c"])
    assert (
        not fits(["a", "...", "c"], ["a", "b"]) and not fits(["a"], ["a", "b"]) and not fits(["...", "x", "..."], ["a"])
    )
    assert not fits(["a", "...", "a"], ["a"])


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("architecture.md", "modules.md")])
def test_commands_named_are_understood(name: str) -> None:
    """All commands of all pages have verbs and options that exist."""
    page = PAGES[name]
    for line in re.findall(r"^(?:\$ )?graphlink (.+)$", page, re.MULTILINE) + re.findall(r"`graphlink ([^`]+)`", page):
        verb = VERBS.get(line.split()[0], VERBS["link"])
        known = {option for action in parser_of(verb)._actions for option in action.option_strings}
        assert set(re.findall(r"(?<=\s)--[a-z-]+", f" {line.split('#')[0]}")) <= known, line


def test_every_table_heading_is_in_the_glossary(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, _ in [*commands(PAGES["faq.md"])][:2]:  # which link both
        shell.run(command)
    heads: set[str] = set()
    parts_of = out._renderables

    def noting(report: list[str | Table], *given: object) -> Iterator[object]:
        heads.update(cell for part in report if isinstance(part, Table) for cell in part.head)
        heads.update(
            " ".join(line.split()) for line in report if isinstance(line, str) and re.match(r" +(rank|ms) {2,}", line)
        )
        yield from parts_of(report, *given)

    monkeypatch.setattr(out, "_renderables", noting)
    for command in ASKED:
        shell.run(f"graphlink {command}")
    assert len(heads) > 30
    words = {
        word.strip("`, ")
        for cell in re.findall(r"^\| (.+?) \|", PAGES["glossary.md"], re.MULTILINE)
        for word in cell.split(", ")
    }
    known = {part.lower().rstrip("s") for word in words for part in word.split()} | {
        word.rstrip("s") for word in PLAIN.split()
    }
    causes = set(re.findall(r"^\| `(\w+)` \|", PAGES["bubbles.md"] + PAGES["idle.md"], re.MULTILINE))
    used = {word.strip("%,()").lower() for head in heads for word in head.split()} - {"", *causes}
    unknown = sorted(word for word in used if word.rstrip("s") not in known and word not in causes)
    assert not unknown, ", ".join(unknown)
