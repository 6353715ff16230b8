"""Regular expressions: for names that several stages look for, and those that users give.

The latter are matched within a time: a catastrophic one is an error, not an endless run. ``re`` decides what is a
regular expression; ``regex`` matches, since it can stop on the way.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from graphlink.errors import UsageError
from graphlink.model import Bool

if TYPE_CHECKING:
    import regex

LOADER: Final = re.compile(  # what gets the next batch, as PyTorch, Megatron and users name it
    r"\A(?:enumerate\(DataLoader\).*|batch-generator|batch_generator|DataLoader.*|dataloader.*|data[-_ ]?load.*)\Z",
    re.IGNORECASE,
)
NEXT_BATCH: Final = re.compile(r"enumerate\(DataLoader\)#.*", re.DOTALL)  # PyTorch's own loaders
AUTOGRAD_ENGINE: Final = re.compile("autograd::engine::evaluate_function.*", re.DOTALL)  # ops that run backward nodes
ALLOCATOR: Final = re.compile(  # calls that allocate or free memory
    r"(?:cuda|hip|cu)(?:Malloc|Free|Host(?:Alloc|Malloc|Free)|Mem(?:Alloc|Free|Create|Map|Unmap|Release|PoolTrimTo)).*"
)
DIGITS: Final = re.compile(r"\d+")
LAYOUT: Final = re.compile(r"(?i)nchwToNhwc|nhwcToNchw")  # kernels that convert between layouts of images
GRAPH_LAUNCH: Final = re.compile(r"(cuda|cu|hip)GraphLaunch.*")  # calls that launch a CUDA graph
LAUNCH: Final = re.compile(r".*[Ll]aunch(?!HostFunc).*", re.DOTALL)  # calls that launch work for a device
COPY: Final = re.compile(r"(?i).*mem_?cpy.*", re.DOTALL)  # calls that copy
# ops of the dispatcher and nodes of autograd, aten::add or ReluBackward1, whole or a part after a cut
OPERATOR: Final = re.compile(r"\A(?:.*::.*|\w*Backward\d*|record_param_comms)(?: \(cont\.\))?\Z", re.DOTALL)
END: Final = re.compile(r"\Aend\Z")  # the node after the last op of a thread
MOST_SECONDS: Final = 10.0  # of matching, for a pattern in a process: 1 M names take 1 s
MOST_CHARACTERS: Final = 10_000
_SPECIAL: Final = re.compile(r"[][(){}?*+|^$\\.]")
_MOST_REPEATS: Final = 100_000  # counted ones inside each other; compiling takes 1 kB for each
_COUNTED: Final = re.compile(r"(\)?)\{(\d{0,20}),?(\d{0,20})\}")


def fits(form: re.Pattern[str], strings: Sequence[str]) -> Bool:
    """Mark the texts that match a form as a whole."""
    return np.fromiter((form.fullmatch(text) is not None for text in strings), np.bool_, len(strings))


def containing(strings: Sequence[str], *words: str) -> Bool:
    """Mark the texts that contain any of the words."""
    return np.fromiter((any(word in text for word in words) for text in strings), np.bool_, len(strings))


def escaped(text: str) -> str:
    """Return the expression of ``text`` itself; ``re.escape`` marks more, which expressions take as they are."""
    return _SPECIAL.sub(r"\\\g<0>", text)


class UserPattern:
    """A compiled expression. ``option``: which one gave it, as messages name it."""

    def __init__(self, text: str, option: str):
        """Compile ``text``.

        Raises:
            UsageError: it is no regular expression, or too large a one.
        """
        import regex

        self.pattern, self._option = text, option
        self._left_s = MOST_SECONDS
        what = f"{option} {text!r}"
        if len(text) > MOST_CHARACTERS or _repeats(text) > _MOST_REPEATS:
            raise UsageError(
                f"{what:.200} is too large a regular expression", todo="write a shorter one, with smaller counts"
            )
        try:
            self.groups = frozenset(re.compile(text).groupindex)
            self._compiled = regex.compile(text)
        except (re.error, regex.error, RecursionError, OverflowError, ValueError) as problem:
            raise UsageError(f"{what} is no regular expression: {problem}") from None

    def __repr__(self) -> str:
        return f"UserPattern({self.pattern!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserPattern) and other.pattern == self.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def fullmatch(self, name: str) -> regex.Match[str] | None:
        """Match all of the text as ``re.fullmatch`` does. Raises UsageError: matching takes too long, over all names so
        far.
        """
        return self._timed(self._compiled.fullmatch, name)

    def search(self, name: str) -> regex.Match[str] | None:
        """Search the text as ``re.search`` does. Raises UsageError: as ``fullmatch``."""
        return self._timed(self._compiled.search, name)

    def _timed(self, match: Callable[..., regex.Match[str] | None], name: str) -> regex.Match[str] | None:
        began = time.monotonic()
        try:
            found = match(name, timeout=max(self._left_s, 1e-3))
        except TimeoutError:
            raise UsageError(
                f"{self._option} {self.pattern!r} takes more than {MOST_SECONDS:g} s to match",
                where=f"the name {name[:80]!r}",
                todo="write it without repeats inside repeats, such as (a+)+",
            ) from None
        self._left_s -= time.monotonic() - began
        return found


def _repeats(text: str) -> int:
    """Bound how often the expression repeats a part of itself by counts: those of groups may lie inside each other."""
    counts = [(bool(m[1]), int(m[3] or m[2] or 0)) for m in _COUNTED.finditer(text)]
    return math.prod(n for group, n in counts if group and n) * max((n for group, n in counts if not group), default=1)
