"""A user's file as a stream of plain bytes, whatever it is packed with.

Packing is recognised by the first bytes, never by the name. Everything that can be wrong with the file itself (missing,
a folder, no permission, cut or damaged packing) is an ``InputError`` that names the place in the unpacked text.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from graphlink.engine.memory import GZIP, ZSTD
from graphlink.errors import InputError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_DAMAGED: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile, zstd.ZstdError)
try:
    from isal import igzip, isal_zlib
except ImportError:  # no wheel for this platform
    _open_gzip: Any = gzip.open
else:
    _open_gzip = igzip.open
    _DAMAGED = (*_DAMAGED, cast("type[Exception]", isal_zlib.error))

MOST_RATIO = 256  # unpacked to packed: recordings have 5 to 31; deflate reaches 1,032
_SURELY_BYTES = 64 << 20  # unpacked, up to which nobody asks
_UNREADABLE: dict[type[Exception], tuple[str, str]] = {
    IsADirectoryError: ("is a folder", "name a file, or give the folder without a flag"),
    FileNotFoundError: ("there is no such file", "check the name"),
    PermissionError: ("may not be read", "change its permissions"),
}


class Source:
    """Sequential reader of one file. ``position`` counts the unpacked bytes given out, from ``packed_file`` where it is
    packed.
    """

    def __init__(self, path: Path, stream: BinaryIO, packed: str, packed_file: BinaryIO | None = None):
        self.path, self.packed, self._packed_file = path, packed, packed_file
        self.position = 0
        self._stream, self._ahead = stream, b""

    @property
    def file(self) -> BinaryIO:
        """Return the file itself, which may be packed."""
        return self._packed_file or self._stream

    def ahead(self, size: int) -> bytes:
        """Return the next ``size`` bytes, which ``read`` gives once more."""
        self._ahead = self.read(size)
        self.position -= len(self._ahead)
        return self._ahead

    def read(self, size: int) -> bytes:
        """Read up to ``size`` bytes; fewer only near the end, none at the end.

        InputError when the packing is cut or damaged, or unpacks to far more than recordings do (a "zip bomb").
        """
        with reading(self.path):
            try:
                data, self._ahead = self._ahead[:size], self._ahead[size:]
                if len(data) < size:
                    data += self._stream.read(size - len(data))
            except _DAMAGED as error:
                cut = isinstance(error, EOFError)
                raise InputError(
                    f"the {self.packed} file is {'cut off' if cut else 'damaged'} ({error})",
                    path=self.path,
                    where=f"its end, after byte {self.file.tell()}" if cut else f"after {self.where(self.position)}",
                    todo="copy it again, once the program that writes it has ended, or record again",
                ) from None
        self.position += len(data)
        file = self._packed_file
        if file is not None and self.position > _SURELY_BYTES and self.position > MOST_RATIO * file.tell():
            raise InputError(
                f"the {self.packed} file unpacks to more than {MOST_RATIO} times its size, as no recording does",
                path=self.path,
                where=f"after {self.where(self.position)}",
                todo="unpack it yourself and give the plain file, if it is a recording",
            )
        return data

    def where(self, offset: int) -> str:
        """Describe a position in the text."""
        return f"byte {offset} of the decompressed text" if self.packed else f"byte {offset}"


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Open the file at ``path``, unpacked while it is read. InputError when it cannot be opened."""
    path = Path(path)
    with reading(path):
        file = path.open("rb")
        magic = file.peek(4)[:4]
    with file:
        if magic.startswith(GZIP):
            with _open_gzip(file, "rb") as unpacked:
                yield Source(path, cast(BinaryIO, unpacked), "gzip", file)
        elif magic == ZSTD:
            with zstd.ZstdFile(file) as unpacked:
                yield Source(path, cast(BinaryIO, unpacked), "zstd", file)
        else:
            yield Source(path, file, "")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn why a file or folder cannot be read into an InputError that names it, with what to do."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        what, todo = _UNREADABLE.get(type(error), (f"cannot be read ({reason})", "check the file"))
        raise InputError(what, path=path, todo=todo) from None
