"""Names of both recordings in one numbering, so that they compare as integers."""

from __future__ import annotations

import re
from collections import Counter

import msgspec
import numpy as np

from graphlink.model import I64, Bool, HostTrace, Trace
from graphlink.tables import marked

# ranges that end when somebody waits for the work, even where they happen to nest
ASYNCHRONOUS = re.compile("gloo:.*", re.DOTALL)


class HostNames(msgspec.Struct, frozen=True):
    """``kineto`` and ``et`` have a code per row; ``text[code]`` is the spelling, the same for both sides."""

    kineto: I64
    et: I64
    text: tuple[str, ...]

    def count(self, codes: I64) -> dict[str, int]:
        """Count how often each name occurs, the most frequent first."""
        return {self.text[code]: n for code, n in Counter(codes.tolist()).most_common()}

    def present(self, codes: I64) -> Bool:
        """Mark the codes of the table that occur in ``codes``."""
        return marked(len(self.text), codes)


def common_names(trace: Trace, et: HostTrace | None) -> HostNames:
    """Number the host names of both sides alike; ``et`` is empty where there is none."""
    codes: dict[str, int] = {}

    def numbered(strings: tuple[str, ...]) -> I64:
        # as the newest Kineto writer spells names: backslashes turned into slashes, no newlines
        spelled = (text.replace("\\", "/").replace("\n", "").replace("\r", "") for text in strings)
        return np.array([codes.setdefault(text, len(codes)) for text in spelled], np.int64)

    kineto = numbered(trace.strings)[trace.host.name]
    other = numbered(et.strings)[et.name] if et is not None else np.zeros(0, np.int64)
    return HostNames(kineto, other, tuple(codes))
