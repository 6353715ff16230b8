"""The steps of a recording: the marks that profilers and frameworks make of them, and where steps begin and end, at
their marks or else at a node that is repeated once a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

import msgspec
import numpy as np

from graphlink.model import EMPTY, I32, I64, Bool, HostRows, Linked, Trace
from graphlink.patterns import fits
from graphlink.records import Short
from graphlink.spans import extent
from graphlink.tables import begins, codes, numbered_values

PROFILER_STEP: Final = re.compile(r"ProfilerStep\s?#(\d{1,18})")  # the mark that PyTorch's profiler makes
STEP_MARK: Final = re.compile(  # that, and the marks of frameworks
    r"\A(?:(?:ProfilerStep\s?#|iteration[ _#]?|train_step[ _#]?)(\d+)|iter_\d+_\d+|train_step)\Z"
)

# names that say it, of a thread, in the order in which they are looked for
_RANGE: Final = re.compile(r"(?i)(?:train(?:ing)?[ _])?(?:step|iter|iteration)(?:[ _#:]*\d+)?(?:\[.*\])?")
_COUNTED: Final = re.compile(r".*[\[#]\d+\]?")  # numbers that count steps
_AT_END: Final = re.compile(r".*?(\d{1,18})\]?")  # others may: ``_counts``
_OPTIMIZER: Final = re.compile(r"Optimizer\.step#.*")
_ZERO_GRAD: Final = re.compile(r".*zero_grad.*")
_MOST_DIGITS: Final = 18  # of a number that 64 bits hold
_FEWEST: Final = 3  # times that an unnamed node must stand there: two distances that can be compared
_NUMBER: Final = re.compile(r"[ _#:.-]*\d+$")  # at the end of a name that counts: forward_backward_5
# what training does once a step: a backward, an optimizer. FSDP registers what it does before and after a backward in
# each forward.
_TRAINS: Final = re.compile(r"(?i)(?!.*register).*(?:backward|bwd|dgrad|wgrad|optimizer|multi_tensor_apply|adam|sgd).*")
_OF_MODEL: Final = re.compile(
    r"(?i).*(?:layer|block|attn|attention|mlp|expert|encoder|decoder|module).*"
)  # ranges around a part of one


class Steps(Short, msgspec.Struct, frozen=True):
    """The steps of a rank, disjoint and ascending, in ns since the epoch on the host's clock.

    ``key``: the name that tells them, without its numbers; ``found_by``: ``mark`` (a range that the profiler or a
    framework makes for each step), ``range`` (one with such a name), ``optimizer``, ``zero_grad``, or ``repeated``
    (nothing but that it repeats).
    """

    key: str
    found_by: str
    names: tuple[str, ...]
    start_ns: I64
    end_ns: I64


def step_marks(trace: Trace) -> Bool:
    """Return which host rows are marks of steps."""
    return fits(STEP_MARK, trace.strings)[trace.host.name] & trace.host.annotation


def mark_number(name: str) -> int | None:
    """Return the number in a mark of a step; None of a mark without one, and of other names."""
    mark = STEP_MARK.fullmatch(name)
    return int(mark[1]) if mark and mark[1] and len(mark[1]) <= _MOST_DIGITS else None


def steps_of(linked: Linked) -> Steps:
    """Find the steps: by marks, else by names, else by what repeats; without any there are none. O(n log n) in host and
    device rows.

    A step that an optimizer ends lasts from the end of the one before; the first begins with the recording. One that
    something else begins lasts until that begins again, so the last one, which nothing ends, is no step.
    """
    host = linked.trace.host
    for found_by, pattern, which in (
        ("mark", STEP_MARK, host.annotation),
        ("range", _RANGE, host.annotation),
        ("optimizer", _OPTIMIZER, None),
        ("zero_grad", _ZERO_GRAD, None),
    ):
        rows = _named(linked, pattern, which)
        if found_by in ("mark", "range"):
            rows = outermost(host, rows)
            if len(rows):
                return _at(linked, found_by, rows, host.start_ns[rows], host.end_ns[rows])
        elif len(rows) > 1:
            rows = commonest(rows, host.name[rows])
            if len(rows) > 1:
                ends = found_by == "optimizer"
                at_ns = np.append(host.start_ns.min(), host.end_ns[rows]) if ends else host.start_ns[rows]
                return _at(linked, found_by, rows if ends else rows[:-1], at_ns[:-1], at_ns[1:])
    return _repeated(linked)


def _named(linked: Linked, pattern: re.Pattern[str], which: Bool | None) -> I64:
    """Return the host rows with such a name, by start, of the thread that has most of them."""
    host, strings = linked.trace.host, linked.trace.strings
    codes = [
        k for k in np.unique(host.name if which is None else host.name[which]).tolist() if pattern.fullmatch(strings[k])
    ]
    named = np.isin(host.name, codes)
    rows = np.flatnonzero(named if which is None else named & which)
    return commonest(rows, host.tid[rows])


def commonest(rows: I64, values: I64 | I32) -> I64:
    """Return the rows that have the value which most have, of several the lowest."""
    code = codes(values)
    return rows[code == np.bincount(code).argmax()] if len(code) else rows


def outermost(host: HostRows, rows: I64) -> I64:
    """Return those of ``rows`` of a thread that are inside no other one and take time, by start."""
    rows = rows[np.lexsort((-host.end_ns[rows], host.start_ns[rows]))]
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, host.end_ns[rows]))[:-1]
    return rows[(host.start_ns[rows] >= reach) & (host.start_ns[rows] < host.end_ns[rows])]


def _at(linked: Linked, found_by: str, rows: I64, start_ns: I64, end_ns: I64) -> Steps:
    strings, name = linked.trace.strings, linked.trace.host.name[rows]
    key = strings[name[0]]
    if found_by in ("mark", "range"):  # several scopes in a row may have one number
        counted = fits(_COUNTED, strings)[name] | _counts([strings[code] for code in name.tolist()])
        first = np.flatnonzero(begins(name) | ~counted)
        name, start_ns, end_ns = name[first], start_ns[first], end_ns[np.append(first[1:], len(end_ns)) - 1]
        key = re.sub(r"[ _#:]*\d+", "", key)
    return Steps(key, found_by, tuple(_numbered([strings[code] for code in name.tolist()])), start_ns, end_ns)


def _counts(names: list[str]) -> bool:
    """Tell whether the number at the end of names in a row counts steps, not what is in one (a batch's size): it goes
    up by as much each time, and each comes as often, but for the first and the last, which the recording may cut.
    """
    found = [_AT_END.fullmatch(name) for name in names]
    numbers = np.array([int(match[1]) for match in found if match is not None], np.int64)
    first = np.flatnonzero(begins(numbers))
    up, often = np.diff(numbers[first]), np.diff(np.append(first, len(numbers)))
    whole = often[1:-1] if len(often) > 2 else often
    return len(numbers) == len(names) and len({*up}) == len({*whole}) == 1 and bool(up[0] > 0)


def _numbered(names: list[str]) -> list[str]:
    """Return the names, with their number behind where they are all the same."""
    return [f"{name} {k}" for k, name in enumerate(names, 1)] if len(set(names)) < len(names) else names


def _repeated(linked: Linked) -> Steps:
    """Return steps from start to start of what covers the most time: of ranges, without any of ops, without any of
    kernels.

    A recording may be cut out of one step, in which its layers repeat as evenly as steps do. So in each of them there
    must be work of a backward or an optimizer, but for a range of one name that covers half of the recording, and is of
    no part of the model.
    """
    trace = linked.trace
    host, device = trace.host, trace.device
    begin, end = extent(host, device)
    ranges, trains_ns = _without_numbers(host.name, trace.strings), _trains_ns(linked)
    for name, place, rows, which in (
        (ranges, host.tid, host, np.flatnonzero(host.annotation)),
        (host.name, host.tid, host, np.flatnonzero(~host.annotation)),
        (device.name, device.device * 2**32 + device.stream, device, np.arange(len(device.name))),
    ):
        told = [
            (covers_ns, which[row])
            for covers_ns, row in _even(name[which], place[which], rows.start_ns[which], rows.end_ns[which], begin, end)
            if (np.diff(np.searchsorted(trains_ns, rows.start_ns[which[row]])) > 0).all()  # from each start to the next
            or (name is ranges and 2 * covers_ns >= end - begin and _of_no_part(trace.strings, host.name[which[row]]))
        ]
        if told:
            found = max(told, key=itemgetter(0))[1]
            names = [trace.strings[code] for code in rows.name[found].tolist()]
            key = names[0] if len({*names}) == 1 else _NUMBER.sub("", names[0])
            start_ns = rows.start_ns[found]
            return Steps(key, "repeated", tuple(_numbered(names[:-1])), start_ns[:-1], start_ns[1:])
    return Steps("", "", (), EMPTY, EMPTY)


def _without_numbers(name: I32, strings: Sequence[str]) -> I32:
    """Return names of which those that differ in nothing but a number at their end are one, the first of them."""
    used, which = numbered_values(name)
    first: dict[str, int] = {}
    texts = [_NUMBER.sub("", strings[code]) or strings[code] for code in used.tolist()]
    same = [first.setdefault(text, code) for text, code in zip(texts, used.tolist(), strict=True)]
    return np.array(same, np.int32)[which]


def _trains_ns(linked: Linked) -> I64:
    """Return when work of a backward or an optimizer began, on the host and on devices, ascending."""
    trace = linked.trace
    trains = fits(_TRAINS, trace.strings)
    return np.sort(np.concatenate([rows.start_ns[trains[rows.name]] for rows in (trace.host, trace.device)]))


def _of_no_part(strings: Sequence[str], name: I32) -> bool:
    """Tell whether ranges have one name, which is of no part of a model."""
    return bool((name == name[0]).all()) and _OF_MODEL.fullmatch(strings[name[0]]) is None


def _even(name: I32, place: I64, start_ns: I64, end_ns: I64, begin_ns: int, until_ns: int) -> Iterator[tuple[int, I64]]:
    """Yield the time and the rows of each name that repeats evenly: no distance is twice another one, and there is room
    for no more before and behind.

    So what a step does several times (its distances differ) and what only a part of the recording does (a layer) are
    none.
    """
    order = np.lexsort((start_ns, name, place))
    name, start, end = name[order], start_ns[order], end_ns[order]
    first = np.flatnonzero(begins(place[order], name))
    last = np.append(first[1:], len(name)) - 1
    many = last - first + 1 >= _FEWEST
    if not many.any():
        return
    distance = np.append(np.diff(start), 0)
    distance[last] = np.iinfo(np.int64).max  # to the first of another name
    least = np.minimum.reduceat(distance, first)
    distance[last] = 0
    most = np.maximum.reduceat(distance, first)
    covers = np.add.reduceat(end - start, first)
    even = many & (most < 2 * least) & (start[first] - begin_ns < most) & (until_ns - start[last] < 2 * most)
    for k in np.flatnonzero(even).tolist():
        yield int(covers[k]), order[first[k] : last[k] + 1]
