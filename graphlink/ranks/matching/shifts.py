"""By how many places one sequence is shifted against another: candidates for a closer look."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I64

SMALL: Final = 1 << 12  # product of lengths up to which all shifts are candidates
MOST: Final = 24  # candidates of long sequences


def likely_shifts(left: I64, right: I64) -> I64:
    """Shifts d by which ``left[k + d] == right[k]`` for many k, ascending; all there are for short sequences.

    Each code becomes a random phase, so that the correlation of the two is the number of equal codes, and noise of the order of
    its square root. O(n log n), however repetitive the sequences.
    """
    n, m = len(left), len(right)
    if n * m <= SMALL:
        return np.arange(-m + 1, n)
    size = 1 << (n + m - 1).bit_length()
    product = np.fft.fft(_phases(left), size) * np.conj(np.fft.fft(_phases(right), size))
    score = np.fft.ifft(product).real
    best = np.argpartition(score, len(score) - MOST)[-MOST:]
    shifts = np.where(best < n, best, best - size)
    return np.unique(np.append(shifts[shifts > -m], [0, n - m]))


def _phases(codes: I64) -> NDArray[np.complex128]:
    """A point of the unit circle for each code (splitmix64)."""
    x = codes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    angle = (x >> np.uint64(11)).astype(np.float64) * (2 * np.pi / 2**53)
    phases: NDArray[np.complex128] = np.exp(1j * angle)
    return phases
