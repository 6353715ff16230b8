"""Texts of arguments, each once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphlink.model import I32, I64, U8
from graphlink.perfetto.packets import Arg


class Texts:
    """Texts of arguments by number."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._number.setdefault(text, len(self._number))

    def arg(self, name: str, slices: I64, words: Sequence[str], which: I64 | I32 | U8) -> Arg:
        """An argument of ``slices``: of each the word that ``which`` says."""
        numbers = np.array([self.number(w) for w in words], np.int64)
        return Arg(name, slices, numbers[which], text=True)

    def all(self) -> list[str]:
        return list(self._number)
