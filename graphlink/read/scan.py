"""Find where the elements of a JSON array end, without decoding it.

``guess_cut`` is quick and may be wrong; ``scan`` is exact for valid JSON. Both take a buffer that starts with the
array's ``[``.
"""

from __future__ import annotations

import re
from collections import deque

import numpy as np
from numpy.typing import NDArray

_BETWEEN = re.compile(rb"\}[ \t\r\n]*(,)[ \t\r\n]*\{")
_AROUND = re.compile(rb'\}[ \t\r\n]*,[ \t\r\n]*\{[ \t\r\n]*"[^"\\]{0,40}"')
_SPACE = b" \t\r\n"
_SLICE = 1 << 22  # bounds the memory of the columns below
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'

_STEP = np.full(256, 2, np.int8)  # 2 = no structure
for _byte, _step in zip(b"[{]},", (1, 1, -1, -1, 0), strict=True):
    _STEP[_byte] = _step


def guess_cut(buffer: bytes, separator: bytes = b"") -> int | None:
    """Guess the position of the last comma between elements: mostly, not surely, right.

    It is that of ``separator`` (if given and there), else the last one between ``}`` and ``{``.
    """
    if separator:
        at = buffer.rfind(separator)
        if at >= 0:
            return at + separator.index(b",")
    for window in (1 << 12, 1 << 16, len(buffer)):
        found = deque(_BETWEEN.finditer(buffer, max(0, len(buffer) - window)), maxlen=1)
        if found:
            return found[0].start(1)
    return None


def separator_at(buffer: bytes, cut: int) -> bytes:
    """Return the text around the comma at ``cut``, which tells it from commas inside elements: ``},\\n    {"id": ``."""
    match = _AROUND.match(buffer, max(0, len(buffer[:cut].rstrip(_SPACE)) - 1))
    return match[0] if match else b""


def scan(buffer: bytes, *, first_cut: bool = False) -> tuple[int | None, int | None]:
    """Find (cut, end): the last comma between elements, and the bracket that closes the array; None where the buffer
    has none.

    Counts brackets outside strings. Linear; exact if the text is valid JSON.

    ``first_cut``: the first one instead, and the end only where there is no cut before it.
    """
    text = np.frombuffer(buffer, np.uint8)
    depth, inside, cut = 0, 0, None
    for first in range(1, len(text), _SLICE):
        part = text[first : first + _SLICE]
        quotes = _real_quotes(text, first, part)
        marks = np.flatnonzero(_STEP[part] != 2)
        outside = ((np.searchsorted(quotes, marks) + inside) & 1) == 0
        marks = marks[outside]
        steps = _STEP[part[marks]]
        depths = depth + np.cumsum(steps, dtype=np.int64)
        closing = np.flatnonzero(depths < 0)
        stop = int(closing[0]) if len(closing) else len(marks)
        commas = np.flatnonzero((steps[:stop] == 0) & (depths[:stop] == 0))
        if len(commas):
            cut = first + int(marks[commas[0 if first_cut else -1]])
            if first_cut:
                return cut, None
        if len(closing):
            return cut, first + int(marks[stop])
        depth = int(depths[-1]) if len(depths) else depth
        inside = (inside + len(quotes)) & 1
    return cut, None


def _real_quotes(text: NDArray[np.uint8], first: int, part: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the positions in ``part`` of quotes that no backslash escapes (an odd run of backslashes before a quote
    escapes it).
    """
    quotes = np.flatnonzero(part == _QUOTE)
    doubtful = np.flatnonzero(text[first + quotes - 1] == _BACKSLASH)
    escaped = []
    for which in doubtful.tolist():
        at = run = first + int(quotes[which]) - 1
        while text[run] == _BACKSLASH:
            run -= 1
        if (at - run) % 2:
            escaped.append(which)
    return np.delete(quotes, escaped)
