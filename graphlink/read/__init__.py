"""Stage one: recordings as they lie on disk -> the records of ``graphlink.model``.

``read_kineto``, ``read_nsys`` and ``read_host`` take plain, gzip and zstd files; ``looks_like`` distinguishes files by
content. Everything wrong with a file is an ``InputError``.
"""

from typing import TYPE_CHECKING, Any

from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from graphlink.read.looks import looks_like

if TYPE_CHECKING:
    from graphlink.read.nsys.report import read_nsys

__all__ = ["looks_like", "read_host", "read_kineto", "read_nsys"]


def __getattr__(name: str) -> Any:
    if name != "read_nsys":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from graphlink.read.nsys.report import read_nsys  # only who reads an export needs sqlite

    return read_nsys
