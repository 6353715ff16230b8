"""How much of a device the blocks of a kernel can fill: blocks over SMs (compute units), 1 at most; 0 where no
recording tells.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from graphlink.model import F64, I64, Bool, Gpu
from graphlink.read.columns import Parts, Strings, loose
from graphlink.tables import numbered_values

_OF_THREADS: Final = re.compile(
    r"hip(?:Ext|Hcc)ModuleLaunchKernel"
)  # take the number of threads in all, and that is their ``grid``
_MOST: Final = 1 << 40  # blocks or threads of a launch; more is damage


class Extents(dict[bytes, int]):
    """Numbers the elements of a grid or block that is recorded as ``[x, y, z]``; 0 for what is none."""

    def __missing__(self, text: bytes) -> int:
        sizes = loose(text.decode("utf-8", "replace"))
        whole = (
            isinstance(sizes, list)
            and bool(sizes)
            and all(type(size) is int and 0 < size < _MOST for size in sizes[:4])
        )
        number = math.prod(sizes) if whole and len(sizes) <= 3 else 0
        self[text] = number = number if number < _MOST else 0
        return number

    def column(self, texts: Sequence[msgspec.Raw | bytes]) -> I64:
        """Return the number of each text."""
        return np.fromiter(map(self.__getitem__, map(bytes, texts)), np.int64, len(texts))


def recorded(blocks_per_sm: Sequence[Any]) -> F64:
    """Return the share that Kineto's ``blocks per SM`` tell."""
    return np.array([min(n, 1.0) if type(n) in (int, float) and n > 0 else 0.0 for n in blocks_per_sm], np.float64)


def sm_share(blocks: I64, device: I64, gpus: Sequence[Gpu]) -> F64:
    """Return the share of launches of so many ``blocks`` (0 and less: unknown), by the SMs of their ``device``; of one
    that is numbered otherwise than its rows by those of all, where they agree."""
    known = {gpu.device: gpu.sms for gpu in gpus if gpu.sms is not None}
    common = next(iter(known.values())) if len({*known.values()}) == 1 else 0
    numbers, which = numbered_values(device)
    sms = np.array([known.get(number, common) for number in numbers.tolist()], np.int64)[which]
    told = (blocks > 0) & (sms > 0)
    return np.where(told, np.minimum(blocks / np.maximum(sms, 1), 1.0), 0.0)


def fill_in(device: Parts, calls: Parts, strings: Strings, gpus: Sequence[Gpu]) -> None:
    """Put the share of rows that have a grid in place of ``blocks per SM``, in place. AMD's recordings are such.
    Linear, and a sort.
    """
    share, blocks = device.seen("sm_share"), device.seen("blocks")
    if not ((share == 0) & (blocks > 0)).any():
        return
    of_threads = [code for text, code in strings.items() if _OF_THREADS.fullmatch(text)]
    ids = calls.seen("correlation")[np.isin(calls.seen("name"), of_threads)]
    by_threads: Bool = np.isin(device.seen("correlation"), ids)
    threads = np.maximum(device.seen("threads"), 1)
    blocks = np.where(by_threads, -(-blocks // threads), blocks)
    open_ = share == 0
    share[open_] = sm_share(blocks, device.seen("device"), gpus)[open_]
