"""Readable dumps of output files: text that a diff can name a line of, as short as it can be kept."""

from __future__ import annotations

import hashlib
import html
import json
import re
import textwrap
from pathlib import Path
from typing import Any, Final

from tests.e2e.graph_rules import File, read

WIDTH: Final = 120
MOST: Final = 12_000  # bytes of a dump; of a longer one only the first are kept, and the hash of all
KEPT: Final = 6_000
_SIMPLE: Final = (str, int, float, bool, type(None))


def readable(path: Path) -> str:
    """Return the dump of a file: by lines where it is text, a hash where it is binary."""
    content = path.read_bytes()
    if path.suffix == ".et":
        return graph(read(path))
    if path.suffix == ".json":
        return _json(_rounded(json.loads(content)), 0) + "\n"
    digest = f"sha256 {hashlib.sha256(content).hexdigest()}\n"
    if path.suffix in (".html", ".svg"):
        return digest + page(content.decode())
    if path.suffix in (".txt", ".csv", ".yml", ".sh"):
        return content.decode()
    return digest


def shortened(text: str) -> str:
    """Return a dump as it is kept: a long one by its hash and its head."""
    if len(text) <= MOST:
        return text
    head = text[:KEPT]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"sha256 of these {len(text)} characters: {digest}\n{head[: head.rfind(chr(10)) + 1]}"


def graph(file: File) -> str:
    """Return a line a node: its fields, and each attribute that is not in the line above it already."""
    lines = [f"{file.head}\n"]
    for node, attributes in zip(file.nodes, file.attributes, strict=True):
        known = {"dep_kinds", "start_ns", "end_ns"}
        after = " ".join(f"{dep}:{kind}" for dep, kind in zip(node.data_deps, attributes["dep_kinds"], strict=True))
        others = " ".join(f"{name}={_number(value)}" for name, value in attributes.items() if name not in known)
        callers = f" in {' '.join(map(str, node.ctrl_deps))}" * bool(node.ctrl_deps)
        times = f"{attributes['start_ns']}..{attributes['end_ns']} {node.duration_micros} us"
        lines.append(f"{node.id} type {node.type} {node.name!r} {times} after [{after}]{callers} {others}\n")
    return "".join(lines)


def page(text: str) -> str:
    """Return the text of a page or picture, without its tags, styles and scripts, a line a piece of it."""
    text = re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)
    pieces = (" ".join(html.unescape(piece).split()) for piece in re.split(r"<[^>]*>", text))
    return textwrap.fill(" | ".join(piece for piece in pieces if piece), WIDTH, break_on_hyphens=False) + "\n"


def _json(value: Any, indent: int) -> str:
    """Return JSON with what fits into a line in one, and lists of plain values wrapped."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent <= WIDTH or isinstance(value, _SIMPLE):
        return flat
    margin = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [
            f"{margin}{json.dumps(key, ensure_ascii=False)}: {_json(inner, indent + 1)}" for key, inner in value.items()
        ]
        return "{\n" + ",\n".join(rows) + f"\n{margin[1:]}}}"
    if all(isinstance(inner, (int, float, type(None))) for inner in value):
        wrapped = textwrap.fill(
            flat[1:-1],
            WIDTH,
            initial_indent=margin,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
        return f"[\n{wrapped}\n{margin[1:]}]"
    return "[\n" + ",\n".join(f"{margin}{_json(inner, indent + 1)}" for inner in value) + f"\n{margin[1:]}]"


def _rounded(value: Any) -> Any:
    """Return JSON with floats to six digits: the last ones differ between processors."""
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else _number(value)


def _number(value: Any) -> Any:
    """Return a float to six digits: the last ones differ between processors."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
