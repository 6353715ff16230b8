"""The display of records: a ``repr`` that fits on a line or two, tables for notebooks, and the lines and tables that
verbs print.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Any, Final

MOST: Final = 300  # characters
_FEW: Final = 40
_FRAME: Final = re.compile(r"(.*)\((\d{1,9})\): (.*)", re.DOTALL)
UNITS: Final = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
_BYTES: Final = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_PATH: Final = 76  # characters of a path, where it is not printed in full
_END: Final = 34  # of its first and of its last name
NOTE: Final = "note: "  # begins warnings that change no figure
IDLE_GPU: Final = "idle GPU stream"  # device delays: launched, not begun, and nothing explains why
IDLE_COMM: Final = "late communication"  # the same of communication on the host
IDLE_HOST: Final = "idle host thread"  # host gaps: nothing was recorded between ops
_SHARE_WORDS: Final = {
    **dict.fromkeys(("idle", "gap", "delay"), "unexplained"),
    "kernel": "compute",
    "comm": "communication",
}


class Short:
    """Give a dataclass (``repr=False``) or msgspec struct a ``repr`` of shapes and sizes: ``Graph(kind=uint8[356],
    ...)``.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value}" for name, value in self._fields())
        return f"{type(self).__name__}({text if len(text) <= MOST else text[:MOST] + '...'})"

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, (), self._shown())

    def _shown(self) -> list[tuple[str, str]]:
        """Return what notebooks show, name and value of each: the fields, where a record has nothing better."""
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


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text for ``cli.out`` to align. ``align``: ``<`` or ``>`` a column, ``<`` where it says nothing;
    ``indent``: in spaces.

    ``spare``: headings of columns that are left out, the first one first, where a terminal is too narrow for all.
    """

    rows: Sequence[Sequence[str]]
    head: Sequence[str] = ()
    align: str = ""
    indent: int = 2
    spare: Sequence[str] = ()


Lines = list[str | Table]  # what a verb prints


def command_lines(commands: Mapping[str, str]) -> Lines:
    """Return commands to copy, a line each, with what they tell behind it; ``cli.out`` breaks none of them."""
    widest = max(map(len, commands), default=0)
    return [f"  {command:<{widest}}  # {tells}" for command, tells in commands.items()]


def joined(blocks: Iterable[Sequence[str | Table]]) -> Lines:
    """Return the lines and tables of several blocks, with an empty line between two."""
    return [part for block in blocks for part in ("", *block)][1:]


def ms(ns: float) -> str:
    """Return a time in ms with three decimals: ``1,234.567``."""
    return f"{ns / 1e6:,.3f}"


def in_ms(ns: float) -> str:
    """Return a time as ``ms`` does, with its unit: ``1,234.567 ms``."""
    return f"{ms(ns)} ms"


def three_digits(value: float) -> str:
    """Return three digits, and no fewer than there are before the point: ``1.23``, ``61.3``, ``1,234``."""
    return f"{value:,.2f}" if abs(value) < 9.995 else f"{value:,.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def time(ns: float) -> str:
    """Return a time with three digits and its unit: ``1.23 ms``, ``45.0 us``, ``0 ns``."""
    return _with_unit(ns, UNITS)


def size(count: float) -> str:
    """Return bytes with three digits and a unit of 1,000: ``227 kB``."""
    return _with_unit(count, _BYTES)


def _with_unit(value: float, units: Sequence[tuple[float, str]]) -> str:
    step, unit = next((one for one in units if abs(value) >= 0.9995 * one[0]), units[-1])
    return f"{value:.0f} {unit}" if step == 1 else f"{three_digits(value / step)} {unit}"


def signed(ns: float) -> str:
    """Return a difference of times with its sign: ``+1.23 ms``."""
    return f"+{time(ns)}" if ns > 0 else time(ns)


def times(factor: float) -> str:
    """Return how many times as long something takes: ``1.50 x``, ``0.015 x``."""
    return f"{factor:,.2f} x" if factor >= 0.095 else f"{factor:.2g} x"


def in_function(frame: str) -> str:
    """Return a Python frame of Kineto, ``train.py(12): step``, in words: ``function step (train.py:12)``. Its number is
    the first line of the function, not the line that runs (``co_firstlineno`` in PyTorch's profiler)."""
    return _FRAME.sub(r"function \3 (\1:\2)", frame)


def percent(part: float, whole: float) -> str:
    """Return ``12.3 %``; 0.0 where the whole is nothing."""
    return f"{100 * part / whole if whole else 0.0:.1f} %"


def share_word(share: str) -> str:
    """Return what people read for a share of a path (``graph.critical``) or a sort of work (``replay.workload``): one
    word for each thing.

    ``idle`` is there time that nothing explains, not a GPU's idle time.
    """
    return _SHARE_WORDS.get(share, share)


def path_words(parts: Mapping[str, float], whole: float, gap_share: float, delay_share: float) -> str:
    """Return the parts of a path by their words, and where the unexplained one lies: ``host 65.5 %, unexplained 34.3 %
    (idle GPU stream 34.0 %, idle host thread 0.3 %)``.
    """
    unexplained = share_word("idle")
    told = f"{unexplained} {percent(parts.get(unexplained, 0), whole)}"
    inside = shares_words({began_late(parts): delay_share, IDLE_HOST: gap_share}, 1)
    return shares_words(parts, whole).replace(told, f"{told} ({inside})" if inside else told)


def began_late(parts: Mapping[str, float]) -> str:
    """Return what began late on a path: where nothing of a GPU is on it, communication on the host."""
    return IDLE_GPU if parts.get("compute") or parts.get("copy") else IDLE_COMM


def shares_words(parts: Mapping[str, float], whole: float, most: int | None = None) -> str:
    """Return the largest parts and their shares that are not 0.0 %: ``host 65.5 %, copy 0.1 %``."""
    order = sorted(parts.items(), key=lambda part: -part[1])[:most]
    return ", ".join(f"{name} {percent(part, whole)}" for name, part in order if part >= 0.0005 * whole > 0)


def against_recorded(error_pct: float) -> str:
    """Return how long a replay takes beside the recording: ``takes as long as recorded``, ``takes 0.120 % longer than
    recorded``.
    """
    if abs(error_pct) < 0.0005:
        return "takes as long as recorded"
    return f"takes {abs(error_pct):.3f} % {'longer' if error_pct > 0 else 'less'} than recorded"


def shortened(text: str, most: int = 60, end: int = 17) -> str:
    """Return the two ends of a name of more than ``most`` characters: names of kernels run over hundreds, and differ at
    both ends.
    """
    return text if len(text) <= most else f"{text[: most - end - 3]}...{text[-end:]}"


def apart(texts: Sequence[str], short: Callable[[str], str] = shortened) -> list[str]:
    """Return texts as ``short`` makes them; different ones that would look alike also with where they differ."""
    alike: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        alike[short(text)].add(text)
    out = {text: words for words, same in alike.items() for text in same}
    for same in alike.values():
        begin = next((k for k, each in enumerate(zip(*same, strict=False)) if len({*each}) > 1), 0)
        if len(same) > 1:
            out.update((text, f"{text[:17]}...{text[begin:][:17]}...{text[-17:]}") for text in same)
    return [out[text] for text in texts]


def short_path(path: Sequence[str]) -> str:
    """Return a path with its first and its last names, as many as fit: ``VGG/.../aten::conv2d/aten::convolution``."""
    whole = "/".join(path)
    if len(whole) <= _PATH or len(path) < 2:
        return shortened(whole, _PATH)
    first, inner, kept = shortened(path[0], _END), path[1:-1], [shortened(path[-1], _END)]
    while inner and len("/".join((first, "...", inner[-1], *kept))) <= _PATH:
        inner, kept = inner[:-1], [inner[-1], *kept]
    return "/".join([first, *(["..."] if inner else []), *kept])


def before_what(before: Sequence[str]) -> str:
    """Return what came late (of a family of delays), behind its name: ``, most before aten::copy_ / Memcpy HtoD``."""
    return f", most before {' / '.join(shortened(text, 40) for text in before)}" if before else ""


def counted(number: int, word: str) -> str:
    """Return ``1 rank``, ``2 ranks``."""
    return f"{number:,} {word}{'s' * (number != 1)}"


def amount(number: float) -> str:
    """Return a number to 4 digits, or all digits of a whole one, without an exponent: ``12.35``, ``12,760``."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:,.4g}"


def first_few(values: Sequence[object], most: int, between: str = ", ") -> str:
    """Return ``1, 2, 3``; of more than ``most`` values the first ones: ``1, 2, 3, ...``."""
    return between.join([*map(str, values[:most]), *["..."] * (len(values) > most)])


def first_absent(there: Container[int], world: int, most: int = 8) -> str:
    """Return the first of the ranks of a run that are not ``there``, as ``first_few`` does; a recording may say any
    number of ranks.
    """
    return first_few([*islice((rank for rank in range(world) if rank not in there), most + 1)], most)


def visible(text: str) -> str:
    """Return ``text`` with everything but line breaks that is not printable written out: ``\\x1b``, ``\\u202e``. JSON
    stays the same JSON.

    Controls of ASCII are not in JSON; the others are written as JSON does, in UTF-16.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _written_out(c) for c in text)


def plain(text: str) -> str:
    """Return ``text`` as ``visible`` does, on one line."""
    return visible(text).replace("\n", "\\n")


def _written_out(character: str) -> str:
    if character < "\x20":
        return f"\\x{ord(character):02x}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[k : k + 4]}" for k in range(0, len(units), 4))


def told(warning: str, *, verbose: bool) -> list[tuple[str, str]]:
    """Return a warning behind its kind; a note, which changes no figure, only where ``verbose`` asks for it."""
    if not warning.startswith(NOTE):
        return [("warning", warning)]
    return [("note", warning.removeprefix(NOTE))] if verbose else []


def like_it(count: int) -> str:
    """Return `` (and 3 more like it)``, or nothing where there are no more."""
    return f" (and {count - 1:,} more like it)" if count > 1 else ""
