"""What a process sets for itself: when it collects garbage, which memory it keeps, whether it outlives its parent."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar

TaskT = TypeVar("TaskT")  # what work that is handed to processes is given, and what it returns
ResultT = TypeVar("ResultT")
_DIE_WITH_PARENT: Final = 1  # PR_SET_PDEATHSIG, sys/prctl.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause garbage collection: of many objects that stay, or are short-lived and acyclic, it costs more than
    it finds.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def keep_freed() -> None:
    """Let this process keep the memory that arrays give back, for the next ones: fresh pages cost a job in one process
    3 to 6 % of its time. The peak stays.

    Of glibc's allocator (``mallopt(3)``); where there is another, nothing changes.
    """
    with suppress(
        AttributeError, ImportError, OSError, TypeError
    ):  # TypeError: Windows; ImportError: a Python without libffi
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the most that it allows
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def give_back() -> None:
    """Give the system what ``keep_freed`` kept: where a process is forked, both would write into it, and have it
    twice.
    """
    with suppress(AttributeError, ImportError, OSError, TypeError):  # as above
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, which started it, is killed or ends; at once if it has
    already.

    Only on Linux. It is the thread that started this process whose end counts (``prctl(2)``): it must wait for this
    process.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, ImportError, OSError):
            import ctypes

            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() not in (parent, 0):  # 0: it is outside of this namespace of processes
            signal.raise_signal(signal.SIGKILL)
