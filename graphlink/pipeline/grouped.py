"""Rows of columns by what is equal in them: groups numbered, entries counted within their group."""

from __future__ import annotations

import numpy as np

from graphlink.model import I64


def codes(*columns: I64) -> I64:
    """Return one number from 0 for each different row of the columns, of shape (n,) each. O(n log n)."""
    out = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, place = np.unique(column, return_inverse=True)
        out = np.unique(out * max(len(values), 1) + place, return_inverse=True)[1]
    return out


def counted(code: I64) -> I64:
    """Count, for each entry, the ones of its code before it; codes are 0 and up. O(n log n)."""
    order = np.argsort(code, kind="stable")
    new = np.diff(code[order], prepend=-1) != 0
    at = np.arange(len(code))
    count = np.empty_like(at)
    count[order] = at - np.maximum.accumulate(np.where(new, at, 0))
    return count
