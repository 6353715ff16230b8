"""Values in a dump of the Flight Recorder, each of which may be anything: what is not what it should be counts as not recorded."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from graphlink.read.comms import rank_list

_MOST_COUNT: Final = (1 << 63) - 1
_MOST_DIMENSIONS: Final = 64
_MOST_MS: Final = 1e12


class ListedGroup(msgspec.Struct, frozen=True):
    desc: str = ""
    ranks: tuple[int, ...] | None = None


NOTHING: Final = ListedGroup()


def listed_groups(config: object) -> dict[str, ListedGroup]:
    """Of ``pg_config``: ``{name: {desc, ranks}}``, the same under each rank, or a list of ``{name, desc, ranks}``.

    Ranks are a list or its text.
    """
    pairs: list[tuple[Any, Any]] = []
    for name, group in config.items() if isinstance(config, dict) else ():
        pairs += [(name, group)] if not isinstance(group, dict) or "ranks" in group else group.items()
    for group in config if isinstance(config, list) else ():
        pairs += [(group.get("name", group.get("uid")), group)] if isinstance(group, dict) else []
    return {
        str(name): ListedGroup(text_of(group.get("desc")), rank_list(group.get("ranks")) or None)
        for name, group in pairs
        if isinstance(name, (str, int)) and isinstance(group, dict)
    }


def elements(sizes: object) -> int | None:
    """Of all tensors of ``[[2, 3], [4]]``; None where it lists none."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        return None
    total = 0
    for shape in sizes:
        if not isinstance(shape, (list, tuple)) or not all(type(size) is int and 0 <= size < _MOST_COUNT for size in shape):
            return None
        product = 1
        for size in shape[:_MOST_DIMENSIONS]:
            product *= size
        total += product
    return total if total < _MOST_COUNT else None


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""


def first_text(values: object) -> str:
    return text_of(values[0]) if isinstance(values, (list, tuple)) and values else ""


def ns_of_ms(ms: object) -> int:
    return round(ms * 1_000_000) if isinstance(ms, (int, float)) and 0 < ms < _MOST_MS else 0
