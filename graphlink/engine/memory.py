"""The number of jobs that fit on this machine at once: its cores, its memory, and what a container or a batch system
leaves of them.

Sources: ``/proc/meminfo`` and ``cgroups(7)``, ``cgroup-v2.rst`` and ``cgroup-v1/memory.rst`` of the Linux kernel; RFC
1952 (gzip) and RFC 8878 (zstd) for the size of what is packed.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final

HELD_BACK: Final = 0.2  # share of the available memory that is not given out
USUAL_PACKING: Final = 20  # times a trace shrinks by gzip or zstd: 13 to 29 measured on large ones
MOST_PACKING: Final = 1032  # times anything can shrink by deflate
_MOST_TEXT: Final = 3  # bytes of JSON for one of a binary trace: 1.6 to 2.8 in real ones
_PROC, _CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def workers(estimates_bytes: Sequence[int], jobs: int | None, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Choose how many of the jobs, which need so much memory each, may run at once; at least 1. ``jobs`` is the user's
    word and holds.

    As many as there are cores, and as fit in four fifths of the available memory should the largest meet. What cannot
    be found out limits nothing.
    """
    count = max(len(estimates_bytes), 1)
    if jobs is not None:
        return min(jobs, count)
    free = available_bytes(proc, cgroup)
    room = math.inf if free is None else free * (1 - HELD_BACK)
    fit = sum(total <= room for total in accumulate(sorted(estimates_bytes, reverse=True)))
    return max(min(cores(proc, cgroup), fit, count), 1)


def estimate_bytes(unpacked_bytes: int) -> int:
    """Estimate the memory that a rank takes at its peak when its files have ``unpacked_bytes`` together.

    Peak RSS of ``graphlink --kineto X`` on ``benchmarks/synthetic.py``'s traces: 124 MB at 1 MB, 224 MB at 107 MB (223
    MB at 90 MB when minified), 472 MB at 357 MB: 123 MB and 0.98 to 1.1 bytes a byte. With ``--et`` it is 0.64 bytes a
    byte of both files. A process that runs rank after rank does not grow (183 MB after the third as after the eighth of
    107 MB each).
    """
    return 125_000_000 + unpacked_bytes * 11 // 10


def unpacked_bytes(path: Path, whole_bytes: int | None = None) -> int:
    """Return the size of a plain, gzip or zstd file once unpacked, without unpacking it; of a binary trace, that of its
    text. ``whole_bytes``: its size, where ``path`` is only its start.

    0 for what is no regular file or cannot be read: who reads it will say so.
    """
    return _unpacked_bytes(path, whole_bytes) * (_MOST_TEXT if ".pftrace" in path.name else 1)


def _unpacked_bytes(path: Path, whole_bytes: int | None) -> int:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            return 0
        with path.open("rb") as file:
            head = file.read(18)  # the longest header of a zstd frame
            if head.startswith(GZIP) and whole_bytes is not None:
                return whole_bytes * USUAL_PACKING
            if head.startswith(GZIP) and status.st_size >= 18:
                file.seek(-4, os.SEEK_END)
                return _gzip_bytes(int.from_bytes(file.read(4), "little"), status.st_size)
    except OSError:
        return 0
    size = status.st_size if whole_bytes is None else whole_bytes
    return _zstd_bytes(head, size) if head.startswith(ZSTD) else size


def _gzip_bytes(trailer: int, packed: int) -> int:
    """Estimate the size of an unpacked gzip file. gzip writes the size of its last member modulo 4 GiB: of what it may
    stand for, that which is nearest to the usual packing."""
    usual = packed * USUAL_PACKING
    size = trailer + max(round((usual - trailer) / 2**32), 0) * 2**32
    return size if packed <= size <= packed * MOST_PACKING else usual


def _zstd_bytes(head: bytes, packed: int) -> int:
    """Return the content size of the frame header, if it has one and it can be that of the file (there may be more
    frames).
    """
    flags = head[4] if len(head) > 4 else 0
    single = flags >> 5 & 1
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    at = 5 + (not single) + (0, 1, 2, 4)[flags & 3]
    size = int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)
    return size if width and size >= packed else packed * USUAL_PACKING


def available_bytes(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int | None:
    """Return the memory that can be had without swapping: what the machine and each cgroup around this process have
    left. None if unknown."""
    told = (_mem_available(proc), *map(_cgroup_rest, _cgroups(proc, cgroup, "memory")))
    return min((max(left, 0) for left in told if left is not None), default=None)


def cores(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Count the CPU cores that this process may use: its affinity, and the CPU quota of each cgroup around it, rounded
    up.
    """
    have = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = map(_cpu_quota, _cgroups(proc, cgroup, "cpu"))
    return max(min([have, *(math.ceil(quota) for quota in quotas if quota is not None)]), 1)


def _mem_available(proc: Path) -> int | None:
    words = _text(proc / "meminfo").split()
    if not words:
        return _sysconf_bytes()
    return int(words[words.index("MemAvailable:") + 1]) * 1024 if "MemAvailable:" in words else None


def _sysconf_bytes() -> int | None:
    """Return available memory where there is no ``/proc``: free memory if the system tells, else all that it has."""
    names = getattr(os, "sysconf_names", {})
    pages = next((name for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES") if name in names), None)
    return None if pages is None else os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _cgroups(proc: Path, cgroup: Path, controller: str) -> Iterator[Path]:
    """Return the folders of the cgroups that hold this process, inner to outer, of v2 and of v1's ``controller``.

    In a container the path in ``/proc/self/cgroup`` may be that of the host: then only its root is here, and that is
    the container's own.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, inner = line.split(":", 2)
        if controllers == "":
            root = cgroup
        elif controller in controllers.split(","):
            root = next((found for name in (controller, controllers) if (found := cgroup / name).is_dir()), cgroup)
        else:
            continue
        path = root / inner.lstrip("/")
        yield from (folder for folder in (path, *path.parents) if folder == root or root in folder.parents)


def _cgroup_rest(folder: Path) -> int | None:
    """Return the limit less the use of a memory cgroup, of v2 or v1. Cached file contents that can be dropped at once
    count as free.
    """
    for limit_file, use_file, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, use = _number(folder / limit_file), _number(folder / use_file)
        if limit is not None and use is not None:
            words = _text(folder / "memory.stat").split()
            return limit - use + int(dict(zip(words[::2], words[1::2], strict=True)).get(cached, 0))
    return None


def _cpu_quota(folder: Path) -> float | None:
    """Return the cores' worth of time that a cgroup may use, of v2 or v1; None without a limit."""
    both = _text(folder / "cpu.max").split()
    if len(both) == 2 and both[0] != "max":
        return int(both[0]) / int(both[1])
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _number(path: Path) -> int | None:
    """Return the number in a file; None where there is none ("max")."""
    text = _text(path).strip()
    return int(text) if text and text != "max" else None


def _text(path: Path) -> str:
    """Return all of a file; nothing where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
