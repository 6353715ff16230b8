"""Stage one: recordings as they lie on disk -> the records of ``graphlink.model``.

``read_kineto`` and ``read_host`` take plain, gzip and zstd files, ``nsys.report.read_nsys`` sqlite exports; ``looks_like``
distinguishes files by content.
Everything wrong with a file is an ``InputError``.
"""

from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from graphlink.read.looks import looks_like

__all__ = ["looks_like", "read_host", "read_kineto"]
