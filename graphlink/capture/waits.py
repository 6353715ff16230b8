"""Waits for gloo, shown: PyTorch records when a receive or collective ended, but nothing of who waited for it.

While a window is open ``Work.wait`` runs in a range of its own, so that the wait ends where the range does and what Python does next is
not mistaken for it. NCCL's waits need none: they are calls and events on streams.
"""

from __future__ import annotations

from typing import Any

from graphlink.capture.place import running

WAIT = "graphlink::wait"


class Waits:
    """Puts the range around ``Work.wait`` and takes it away again."""

    def __init__(self) -> None:
        self._work: Any = None
        self._wait: Any = None
        self._shown: Any = None

    def show(self) -> None:
        """Where the default process group has gloo."""
        distributed = running()
        if distributed is None or "gloo" not in str(distributed.get_backend_config()):
            return
        from torch.profiler import record_function

        self._work, self._wait = distributed.Work, distributed.Work.wait
        wait = self._wait

        def shown(work: Any, *arguments: Any, **named: Any) -> Any:
            with record_function(WAIT):
                return wait(work, *arguments, **named)

        self._work.wait = self._shown = shown

    def hide(self) -> None:
        """What the program put there meanwhile stays, and around it a range that nobody records."""
        if self._work is not None and self._work.wait is self._shown:
            self._work.wait = self._wait
        self._work = None
