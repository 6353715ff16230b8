"""Rows of the tables that cross stages: taken, looked up by id, numbered and counted by what is equal in them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphlink.model import F64, I32, I64, NOWHERE, Bool, Comm, CommTable

Positions = NDArray[np.signedinteger]
MOST: Final = np.iinfo(np.int64).max
_Key = TypeVar("_Key", bound=Hashable)
ValueT = TypeVar("ValueT")
TableT = TypeVar("TableT", bound=Any)  # a dataclass of columns
_Rows = TypeVar("_Rows", bound=Any)  # a column of positions


def take(table: TableT, rows: Positions | Bool) -> TableT:
    """Return the rows of a record of columns, in the order of ``rows``: positions, or a mask.

    Communication goes with its rows; what is no column stays as it is. Of a mask that marks all rows the table itself.
    """
    return table if rows.dtype == np.bool_ and rows.all() else take_as(table, rows, type(table))


def take_as(table: Any, rows: Positions | Bool, kind: type[TableT]) -> TableT:
    """Return rows as ``take`` does, as a ``kind`` of record that has some of the table's columns."""
    values: dict[str, Any] = {f.name: getattr(table, f.name) for f in fields(kind)}
    count = next(len(value) for value in values.values() if isinstance(value, np.ndarray))
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            values[name] = value[rows]
        elif isinstance(value, CommTable):
            values[name] = take_comms(value, rows, count)
    taken: TableT = kind(**values)
    return taken


def concat(*tables: TableT) -> TableT:
    """Return the rows of one or more records, one behind the other; what is no column is that of the first."""
    names = [f.name for f in fields(tables[0]) if isinstance(getattr(tables[0], f.name), np.ndarray)]
    return replace(tables[0], **{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})


def comm_table(comms: dict[int, Comm]) -> CommTable:
    """Return the communication of rows as a table."""
    rows = sorted(comms)
    return CommTable(np.array(rows, np.int32), *numbered_texts(comms[row] for row in rows))


def take_comms(comm: CommTable, rows: Positions | Bool, count: int) -> CommTable:
    """Return the communication of ``rows`` of a table that has ``count`` rows, at their new places."""
    place = np.full(count, NOWHERE, np.int32)
    place[rows] = np.arange(np.count_nonzero(rows) if rows.dtype == np.bool_ else len(rows), dtype=np.int32)
    at = place[comm.row]
    ascending = np.argsort(at, kind="stable")
    ascending = ascending[at[ascending] != NOWHERE]
    return CommTable(at[ascending], comm.number[ascending], comm.distinct)


def lookup(ids: I64, wanted: I64) -> I64:
    """Return for each of ``wanted`` the first row of that id; NOWHERE without one, and for what is no id (0 and less).
    O(n log n).
    """
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    at = np.searchsorted(ids, wanted)
    out = np.full(len(wanted), NOWHERE, np.int64)
    hit = np.flatnonzero((at < len(ids)) & (wanted > 0))
    hit = hit[ids[at[hit]] == wanted[hit]]
    out[hit] = order[at[hit]]
    return out


def successive(order: Positions, *columns: NDArray[Any]) -> tuple[Positions, Positions]:
    """Return (earlier, later) rows: those next to each other in ``order`` that are equal in all ``columns``."""
    earlier, later = order[:-1], order[1:]
    same = np.ones(len(later), np.bool_)
    for column in columns:
        same &= column[earlier] == column[later]
    return earlier[same], later[same]


def in_order(rows: _Rows, *keys: NDArray[Any]) -> _Rows:
    """Return ``rows`` sorted by their first key, equal ones by the next; as they were where all are equal. ``keys``:
    columns of the table whose rows they are.
    """
    ordered: _Rows = rows[np.lexsort([key[rows] for key in reversed(keys)])]
    return ordered


def last_before(keys: tuple[I64, ...], order: I64, asked_keys: tuple[I64, ...], asked_order: I64) -> I64:
    """Return for each asked key the row with that key whose ``order`` is the largest below the asked one; NOWHERE if
    there is none.

    By sorting rows and questions together, O(n log n).
    """
    asked = np.repeat([False, True], [len(order), len(asked_order)])
    columns = [np.concatenate(pair) for pair in zip(keys, asked_keys, strict=True)]
    in_turn = np.lexsort((~asked, np.concatenate([order, asked_order]), *columns[::-1]))
    latest = np.maximum.accumulate(np.where(asked[in_turn], NOWHERE, np.arange(len(in_turn))))
    found = np.append(in_turn, NOWHERE)[latest]
    for column in columns:
        found[column[found] != column[in_turn]] = NOWHERE
    return spread(len(in_turn), in_turn, found)[len(order) :]


def nowhere(count: int, dtype: type[np.signedinteger] = np.int64) -> NDArray[Any]:
    """Return a column of ``count`` rows that point nowhere."""
    return np.full(count, NOWHERE, dtype)


def stacked(counts: Sequence[int], parts: Sequence[NDArray[Any] | int]) -> I64:
    """Return parts as one column, so many rows of each: a number is that of all its rows."""
    return np.concatenate([np.full(*pair, np.int64) for pair in zip(counts, parts, strict=True)])


def how_many(mask: NDArray[Any]) -> int:
    """Return how many rows of a mask are set."""
    return int(np.count_nonzero(mask))


def tuples(*columns: NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of columns of one length, as Python's own values."""
    return zip(*(column.tolist() for column in columns), strict=True)


def spread(count: int, rows: Positions | Bool, values: NDArray[Any] | int, none: int = NOWHERE) -> NDArray[Any]:
    """Return a column of ``count`` rows that has ``values`` at ``rows``, the last of several, and ``none``
    elsewhere.
    """
    out = np.full(count, none, np.int64 if isinstance(values, int) else values.dtype)
    out[rows] = values
    return out


def places(order: Positions, count: int) -> I64:
    """Return of each of ``count`` rows its place in ``order``; ``NOWHERE`` where it has none."""
    return spread(count, order, np.arange(len(order)))


def pointing_at(column: Positions, count: int) -> I64:
    """Return for each of ``count`` rows of another table the row of ``column`` that points at it, the last of several;
    ``NOWHERE`` where none does.
    """
    row = np.flatnonzero(column != NOWHERE)
    return spread(count, column[row], row)


def values_at(column: NDArray[Any], rows: Positions, none: int = NOWHERE) -> I64:
    """Return the value of ``column`` at each of ``rows``, ``none`` where that is ``NOWHERE``."""
    there = rows != NOWHERE
    return spread(len(rows), there, column[rows[there]].astype(np.int64), none)


def sums(count: int, rows: NDArray[np.integer], values: NDArray[Any] | int) -> I64:
    """Return a column of ``count`` rows that has the sum of the ``values`` at each of ``rows``, 0 without any."""
    out = np.zeros(count, np.int64)
    np.add.at(out, rows, values)
    return out


def most(keys: NDArray[np.integer], amounts: NDArray[Any]) -> tuple[int, int]:
    """Return the value of ``keys`` that has the largest sum of ``amounts``, and that sum; there must be one."""
    values, which = numbered_values(keys)
    spent = sums(len(values), which, amounts)
    return int(values[spent.argmax()]), int(spent.max())


def least(count: int, rows: NDArray[np.integer], values: NDArray[Any], none: int = MOST) -> I64:
    """Return a column of ``count`` rows that has the least of the ``values`` at each of ``rows``, none above ``none``,
    which stands where there is none.
    """
    out = np.full(count, none, np.int64)
    np.minimum.at(out, rows, values)
    return out


def largest(count: int, rows: NDArray[np.integer], values: NDArray[Any], none: int = 0) -> I64:
    """Return a column of ``count`` rows that has the largest of the ``values`` at each of ``rows``, none below what
    stands where there is none.
    """
    out = np.full(count, none, np.int64)
    np.maximum.at(out, rows, values)
    return out


def medians(value: F64 | I64, group: NDArray[np.integer], count: int) -> F64:
    """Return the median of each of ``count`` groups; nan for those without values."""
    ordered = value[np.lexsort((value, group))]
    number = np.bincount(group, minlength=count)
    first = np.cumsum(number) - number
    out = np.full(count, np.nan)
    some = number > 0
    low, high = (first + (number - 1) // 2)[some], (first + number // 2)[some]
    out[some] = (ordered[low] + ordered[high]) / 2
    return out


def marked(count: int, rows: Positions) -> Bool:
    """Return a mask of ``count`` rows in which ``rows`` are set."""
    out = np.zeros(count, np.bool_)
    out[rows] = True
    return out


def among(column: NDArray[np.integer], kinds: Iterable[int]) -> Bool:
    """Mark the rows of a column of bytes, such as kinds or roles, that are any of ``kinds``: ``np.isin``, which takes
    several times as long."""
    return np.asarray(marked(256, np.array([*kinds], np.intp))[column])


def distinct(values: I64 | I32) -> I64:
    """Return the values that there are, ascending, each once: ``np.unique``, but linear where they lie close together,
    as rows do, and quick where they come in a few ascending runs, as times of spans do."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, -1)
    if high - low < 4 * len(values):
        return np.flatnonzero(marked(high - low + 1, values - low)) + low
    ascending = np.sort(values, kind="stable").astype(np.int64)  # merges runs
    return ascending[begins(ascending)]


def begins(*columns: NDArray[Any]) -> Bool:
    """Mark the rows that differ from the row before in any of the columns; the first always does."""
    out = np.zeros(len(columns[0]), np.bool_)
    out[:1] = True
    for column in columns:
        out[1:] |= column[1:] != column[:-1]
    return out


def equal_runs(rows: I64, *columns: NDArray[Any]) -> list[I64]:
    """Split rows wherever one of the columns, of an entry for each of them, changes; no run without rows."""
    return np.split(rows, np.flatnonzero(begins(*columns))[1:]) if len(rows) else []


def parted(part: NDArray[np.integer], count: int) -> list[I64]:
    """Return the rows of each of ``count`` parts, ascending. ``part``: of each row, from 0. One sort."""
    order = np.argsort(part, kind="stable")
    return np.split(order, np.searchsorted(part[order], np.arange(1, count)))[:count]


def codes(*columns: NDArray[Any]) -> I64:
    """Return one number from 0 for each different row of the columns, of shape (n,) each, in their order.

    Linear where the numbers of each column lie close together, else O(n log n).
    """
    out = np.zeros(len(columns[0]), np.int64)
    for column in columns if len(out) else ():
        low, high = int(column.min()), int(column.max())
        if high - low < len(out):
            place = _close(column.astype(np.int64) - low)
        else:
            place = np.unique(column, return_inverse=True)[1]
        out = _close(out * (int(place.max()) + 1) + place) if out.any() else place
    return out


def _close(numbers: I64) -> I64:
    """Return the place of each number, from 0 on, among those that there are."""
    count = int(numbers.max()) + 1
    if count > 4 * len(numbers):
        return np.unique(numbers, return_inverse=True)[1]
    return (np.cumsum(marked(count, numbers)) - 1)[numbers]


def numbered_values(column: NDArray[Any]) -> tuple[NDArray[Any], I64]:
    """Return the numbers that there are, ascending, each once, and for each row which of them it has, as ``codes``
    does.
    """
    code = codes(column)
    values = np.zeros(int(code.max(initial=-1)) + 1, column.dtype)
    values[code] = column
    return values, code


def numbered_rows(*columns: NDArray[Any]) -> tuple[I64, I64]:
    """Return the different rows of the columns, in their order, of shape (rows, columns), and for each row which of
    them it is, as ``codes`` does.
    """
    code = codes(*columns)
    rows = np.zeros((int(code.max(initial=-1)) + 1, len(columns)), np.int64)
    for k, column in enumerate(columns):
        rows[code, k] = column
    return rows, code


def numbered_texts(texts: Iterable[_Key]) -> tuple[I32, tuple[_Key, ...]]:
    """Return of each text, or other key, its position among the different ones, and those in the order in which they
    first come. Linear.
    """
    number: dict[_Key, int] = {}
    code = [number.setdefault(text, len(number)) for text in texts]
    return np.array(code, np.int32), tuple(number)


def nearest(values: I64, among: I64) -> I64:
    """Return for each of ``values`` the position of the nearest of ``among``, of two the first; both ascend."""
    if len(among) == 1:
        return np.zeros(len(values), np.int64)
    after = np.clip(np.searchsorted(among, values), 1, max(len(among) - 1, 1))
    return after - (values - among[after - 1] <= among[after] - values)


def grouped(pairs: Iterable[tuple[_Key, ValueT]]) -> dict[_Key, list[ValueT]]:
    """Return of each key its values, both in the order in which they first come. Linear."""
    out: dict[_Key, list[ValueT]] = {}
    for key, value in pairs:
        out.setdefault(key, []).append(value)
    return out


def turns(*columns: NDArray[Any]) -> I64:
    """Count, for each row, the rows before it that are equal in all columns. O(n log n)."""
    order = np.lexsort(columns)
    at = np.arange(len(order))
    return spread(
        len(order), order, at - np.maximum.accumulate(np.where(begins(*(column[order] for column in columns)), at, 0))
    )


def counted_from(first: I64, count: I64) -> I64:
    """Return so many positions from each of ``first`` on, one behind the other."""
    return np.arange(int(count.sum())) + np.repeat(first - np.cumsum(count) + count, count)


def heads(before: _Rows) -> _Rows:
    """Return the first row of each row's chain; ``before`` is the row before it, or the row itself at the head. O(n log
    n).
    """
    head = before
    while not np.array_equal(further := head[head], head):  # twice as far each time
        head = further
    return head


def skipped(beside: I64 | I32, gone: Bool) -> I64:
    """Return for every node ``gone`` the first one that stays, going from each to ``beside`` (a node or ``NOWHERE``);
    of others itself.

    ``NOWHERE`` where there is none, as in a circle, which files of others may have. n log n.
    """
    n = len(beside)
    to = np.append(np.where(gone, np.where(beside == NOWHERE, n, beside), np.arange(n)), n)
    rounds = n.bit_length()
    while rounds and not np.array_equal(further := to[to], to):  # in a circle they never are
        to, rounds = further, rounds - 1
    to = to[:n]
    return np.where((to == n) | np.append(gone, False)[to], NOWHERE, to)


def unused(count: int, *taken: I64) -> I64:
    """Return ``count`` numbers above 0 that none of the columns holds, above all of them if there is room. n log n."""
    ids = np.concatenate([*taken, [0]])
    if (highest := int(ids.max())) >= MOST - count:
        return np.setdiff1d(np.arange(1, len(ids) + count), ids)[:count]
    return highest + 1 + np.arange(count)
