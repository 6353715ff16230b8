"""Stage one: recordings as they lie on disk -> the records of ``graphlink.model``.

``read_kineto``, ``read_nsys`` and ``read_host`` take plain, gzip and zstd files; ``looks_like`` distinguishes files by
content. Everything wrong with a file is an ``InputError``.
"""
