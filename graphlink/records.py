"""A ``repr`` of records that fits on a line or two, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

MOST: Final = 300  # characters
_FEW: Final = 40


class Short:
    """Give a dataclass (``repr=False``) or msgspec struct a ``repr`` of shapes and sizes: ``Graph(kind=uint8[356], ...)``."""

    __slots__ = ()

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value}" for name, value in self._fields())
        return f"{type(self).__name__}({text if len(text) <= MOST else text[:MOST] + '...'})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, (), self._shown())

    def _shown(self) -> list[tuple[str, str]]:
        """Return what notebooks show, a name and a value each: the fields, where a record has nothing better."""
        return self._fields()

    def _fields(self) -> list[tuple[str, str]]:
        names: Any = getattr(self, "__struct_fields__", None) or getattr(self, "__dataclass_fields__", ())
        return [(name, _brief(getattr(self, name))) for name in names]


def _brief(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{[*value.shape]}"
    if isinstance(value, Short):
        return f"{type(value).__name__}(...)"
    if isinstance(value, tuple | list | dict | frozenset | bytes) and len(value) > 2:
        return f"{type(value).__name__}[{len(value):,}]"
    text = repr(value)
    return text if len(text) <= _FEW else f"{text[:_FEW]}..."


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a small table for notebooks; all text is escaped."""
    lines = [("th", head), *(("td", row) for row in rows)] if head else [("td", row) for row in rows]
    body = "".join(f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>" for tag, cells in lines)
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"
