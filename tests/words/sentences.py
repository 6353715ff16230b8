"""Every sentence that graphlink can print: strings of its modules and of the page's templates, but names, patterns and
code. ``python -m tests.words`` writes them into ``sentences.txt``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parents[2] / "graphlink"
LISTED: Final = Path(__file__).parent / "sentences.txt"
_LEAST: Final = 4  # words of a sentence; less are names, headings and units
_WORD: Final = re.compile(r"(?<![\w$.])[A-Za-z][a-z']*(?![\w(\[])")
_CODE: Final = re.compile(r"\(\?|\\[dwsb]|[<>]/?\w+[ >]|^[^a-z]*$|\$\{|:root|font-family|^[Mm]-?\d")


@cache
def sentences() -> dict[str, list[str]]:
    """The sentences of each file, in its order, each once; what is put into them is ``{}``."""
    of_file = {}
    for path in sorted(PACKAGE.rglob("*")):
        texts = dict.fromkeys(text for text in _texts(path) if _is_sentence(text))
        if texts:
            of_file[str(path.relative_to(PACKAGE))] = [*texts]
    return of_file


def listed(of_file: dict[str, list[str]]) -> str:
    """The list as it is kept: a file, and its sentences below it."""
    return "".join(f"{name}\n{''.join(f'    {text}{chr(10)}' for text in texts)}" for name, texts in of_file.items())


def _texts(path: Path) -> Iterator[str]:
    if path.suffix == ".py":
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = {  # docstrings
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if id(node) not in skipped and isinstance(node, ast.Constant | ast.JoinedStr):
                yield " ".join(_text(node).split())
    elif path.suffix == ".js":
        for quoted in re.findall(r"\"([^\"\n]*)\"|`([^`\n]*)`", path.read_text(encoding="utf-8")):
            yield re.sub(r"\$\{[^}]*\}", "{}", "".join(quoted))
    elif path.suffix == ".j2":
        text = re.sub(r"\{[{%].*?[}%]\}", "{}", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        yield from (" ".join(part.split()) for part in re.split(r"<[^>]*>", text))


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def _is_sentence(text: str) -> bool:
    return len(_WORD.findall(text)) >= _LEAST and not _CODE.search(text)
