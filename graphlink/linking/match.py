"""Match each Kineto host row to its ET node: by record-function id, else by order within each thread.

Both recordings name the same ``RecordFunction`` events, so a right pair agrees in every name. Nothing is ever matched
under another name: a few rows that disagree stay unmatched and are counted; more of them are two recordings of
different runs, which is an error.
"""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from graphlink.errors import InputError
from graphlink.linking.provenance import HostNames, asynchronous_form, common_names, differences, is_op
from graphlink.model import EMPTY, I32, I64, NOWHERE, Bool, HostMatch, HostRows, HostTrace, Trace
from graphlink.patterns import fits
from graphlink.records import counted
from graphlink.tables import equal_runs, grouped, how_many, in_order, lookup, marked, nowhere, spread

MAX_WRONG_NAMES = 3  # pairs by id whose names differ are tolerated up to this number
MAX_WRONG_SHARE = 0.01  # or this share of the pairs, if that is more
MIN_RIGHT_SHARE = 0.5  # but never if fewer than these agree
MAX_PLACES = 1000  # of a short sequence in a long one that are compared; the first ones, so that the work stays linear
MIN_AMBIGUOUS = 16  # rows: a shorter sequence must fit in one place only
MAX_LOST = 500  # rows of two threads that one of them lacks: the search takes so many steps squared
MAX_LOST_SHARE = 0.125  # of the rows of both: above, the threads are of two programs
MIN_MATCHED_SHARE = 0.5  # of the ET nodes that could match: below, the recordings are of two programs


def match_hosts(trace: Trace, et: HostTrace | None) -> HostMatch:
    """Pair Kineto's host rows with ET nodes, one int32 position in the ET a row; O(n log n).

    Method "rf_id" where Kineto has more than one record-function id (a constant means that none were recorded) and the
    ET shares some, each pair checked by name; else "order" (``link.order``); "kineto" where there is no ET. That the ET
    covers less than the recording, and that pid, date or group sizes differ although ids and names agree, are warnings.
    Raises ``InputError`` for an ET of another run.
    """
    names = common_names(trace, et)
    if et is None:
        return HostMatch("kineto", nowhere(len(names.kineto), np.int32), names.count(names.kineto), {}, ())
    warnings: list[str] = []
    by_id = _ids_to_rows(trace, et)
    if by_id is not None:
        method = "rf_id"
        wrong = (by_id != NOWHERE) & (names.et[by_id] != names.kineto)
        _refuse_other_run(trace, et, names, by_id, wrong)
        if wrong.any():
            warnings.append(
                f"{np.count_nonzero(wrong)} host rows share their id with an ET node of another name: left unmatched"
            )
        pairs = np.where(wrong, NOWHERE, by_id).astype(np.int32)
        filled = _without_ids(trace, et, names, pairs)
        if len(filled):
            warnings.append(
                f"{counted(len(filled), 'host row')} or their ET nodes have no record-function id: matched by order"
            )
    else:
        method = "order"
        pairs, notes = match_by_order(trace, et, names)
        warnings += notes
    misfits = tuple(warnings)
    op = is_op(et)
    only_kineto, only_et = pairs == NOWHERE, ~marked(len(et.id), pairs[pairs != NOWHERE]) & op
    raised = (
        0 if misfits or method != "rf_id" else _raised(trace.host, only_kineto & names.present(names.et)[names.kineto])
    )
    warnings += _coverage(names, only_kineto, only_et, op, raised)
    found = differences(trace, et)
    warnings += (
        [f"ET and Kineto trace agree in names but not in {', '.join(found)}: two runs of one program?"] if found else []
    )
    return HostMatch(
        method,
        pairs,
        names.count(names.kineto[only_kineto]),
        names.count(names.et[only_et]),
        tuple(warnings),
        misfits,
        raised,
    )


def _ids_to_rows(trace: Trace, et: HostTrace) -> I32 | None:
    """Map ids to rows: the ET row with each Kineto row's id; None where ids cannot tell. An id that repeats belongs to
    the row that began first."""
    ids, first = np.unique(trace.host.rf_id, return_index=True)
    if np.count_nonzero(ids > 0) < 2:
        return None
    first, ids = first[ids > 0], ids[ids > 0]
    out = spread(len(trace.host.rf_id), first, lookup(et.rf_id, ids).astype(np.int32))
    return out if (out != NOWHERE).any() else None


def _without_ids(trace: Trace, et: HostTrace, names: HostNames, pairs: I32) -> I64:
    """Pair by order what has no id on one side; return the rows that were added to ``pairs``."""
    free = ~marked(len(et.id), pairs[pairs != NOWHERE]) & is_op(et)
    alone = pairs == NOWHERE
    if not ((alone & (trace.host.rf_id <= 0)).any() or (free & (et.rf_id <= 0)).any()):
        return EMPTY
    by_order, _ = match_by_order(trace, et, names, required=False)
    no_id = (trace.host.rf_id <= 0) | (et.rf_id[by_order] <= 0)
    row = np.flatnonzero(alone & no_id & (by_order != NOWHERE) & free[by_order])
    pairs[row] = by_order[row]
    return row


def _refuse_other_run(trace: Trace, et: HostTrace, names: HostNames, pairs: I32, wrong: Bool) -> None:
    shared, unequal = how_many(pairs != NOWHERE), how_many(wrong)
    allowed = max(MAX_WRONG_NAMES, MAX_WRONG_SHARE * shared)
    if unequal <= allowed and shared - unequal >= MIN_RIGHT_SHARE * shared:
        return
    first = min(np.flatnonzero(wrong), key=trace.host.rf_id.__getitem__)
    kineto_name, et_name = names.text[names.kineto[first]], names.text[names.et[pairs[first]]]
    raise InputError(
        f"ET and Kineto trace belong to two runs: {shared} ids are in both, but only {shared - unequal} under the same "
        "name",
        path=et.path,
        where="; ".join(
            [
                f"id {trace.host.rf_id[first]} is {et_name!r} in the ET, {kineto_name!r} in Kineto",
                *differences(trace, et),
            ]
        ),
        todo=_todo(trace),
    )


def _raised(host: HostRows, lacking: Bool) -> int:
    """Return how many rows are ``lacking`` where all of them may be ops that an exception ended, each alone or inside
    the one before, else 0. PyTorch's observer writes no node of such; of an iteration that the ET lacks ops are missing
    one behind the other.
    """
    order = np.lexsort((-host.end_ns, host.start_ns, host.tid))
    begin_ns, end_ns, tid, out = (column[order] for column in (host.start_ns, host.end_ns, host.tid, lacking))
    both = out[1:] & out[:-1] & (tid[1:] == tid[:-1])
    return how_many(lacking) if (begin_ns[1:] < end_ns[:-1])[both].all() else 0


def _coverage(names: HostNames, only_kineto: Bool, only_et: Bool, is_node: Bool, raised: int) -> list[str]:
    """Warn where a side lacks rows of names that it does have elsewhere: it covers fewer iterations, or a shorter
    window; or an exception ended them.
    """
    in_kineto, in_et = names.present(names.kineto), names.present(names.et[is_node])
    notes = []
    if raised:
        notes.append(
            f"{counted(raised, 'host row')} between others are not in the ET: PyTorch writes no node of an op that an "
            "exception ended, such as the last one that activation checkpointing runs again, or that ended after the ET"
        )
    elif (only_kineto & in_et[names.kineto]).any():
        notes.append(
            f"the ET covers {how_many(~only_kineto)} of {len(only_kineto)} Kineto host rows: fewer iterations or a "
            "shorter window"
        )
    if (only_et & in_kineto[names.et]).any():
        notes.append(
            f"{np.count_nonzero(only_et)} of {np.count_nonzero(is_node)} ET nodes are not in the Kineto trace's window"
        )
    return notes


class _Sequence(msgspec.Struct, frozen=True):
    tid: int
    rows: I64  # in the order in which they began
    codes: I32  # their names

    @property
    def key(self) -> bytes:
        return self.codes.tobytes()


def match_by_order(trace: Trace, et: HostTrace, names: HostNames, *, required: bool = True) -> tuple[I32, list[str]]:
    """Pair rows by order: (the ET row of each Kineto host row or NOWHERE, notes on threads left unpaired and places
    that were guessed).

    For recordings without record-function ids. Within a thread both sides list the same events in the order in which
    they began: Kineto by ``order``, the ET by ``rf_id``, else ``id``. (Times do not serve: integer us tie.) OS thread
    ids and PyTorch's thread numbers have nothing in common, so threads are paired by what they hold.

    Drops the names that one side alone has, pairs the threads, and within a pair the k-th row with the k-th row.

    Collectives of gloo pair by name and shapes, as they began: Kineto has them on the thread that ran them, the ET on
    the one that asked.

    Two threads pair if their sequences of names are equal, or if one is a contiguous run of the other (an ET of one
    iteration of many); among several such places the one with the same autograd sequence numbers. Else if each lacks
    few rows of the other: the ET has no op that an exception ended, either may have lost rows. Raises ``InputError``
    if less than half of the ET fits, or of Kineto where that has less (one thread of several), if that is
    ``required``. O(n log n) in rows; threads are compared pairwise only where they are not equal.
    """
    op = is_op(et)
    # without the names of ranges on threads that have nothing but gloo's
    gloo = fits(asynchronous_form(trace), names.text)[names.kineto]
    in_both = (
        names.present(names.kineto)
        & names.present(names.et[op])
        & ~names.present(names.kineto[gloo & ~np.isin(trace.host.tid, trace.host.tid[~gloo])])
    )
    kineto = _threads(trace.host.tid, trace.host.order, names.kineto, in_both[names.kineto])
    began = et.rf_id if (et.rf_id[op] > 0).all() else et.id
    nodes = _threads(et.tid, began, names.et, in_both[names.et] & op)
    possible, most = (sum(len(t.rows) for t in threads) for threads in (nodes, kineto))
    if required and not possible:
        raise InputError("no host operator of it is in the Kineto trace", path=et.path, todo=_todo(trace))
    pairs = nowhere(len(trace.host.tid), np.int32)
    notes: list[str] = []
    nodes, kineto = _pair_equal(nodes, kineto, pairs)
    nodes, kineto = _pair_runs(nodes, kineto, trace, et, pairs, notes)
    nodes, kineto = _pair_most(nodes, kineto, pairs, notes)
    fitted = possible - sum(len(t.rows) for t in nodes)
    if required and fitted < MIN_MATCHED_SHARE * min(possible, most):
        raise InputError(
            f"only {fitted} of {possible} ET nodes are in the Kineto trace in the same order: two runs?",
            path=et.path,
            where=_first_mismatch(nodes[0], kineto, names),
            todo=_todo(trace),
        )
    if nodes:
        notes.append(
            f"{counted(len(nodes), 'ET thread')} ({possible - fitted} nodes) without a Kineto thread that fits; the "
            "largest: " + _first_mismatch(nodes[0], kineto, names)
        )
    _pair_asynchronous(trace, et, names, gloo, pairs)
    return pairs, notes


def _todo(trace: Trace) -> str:
    return f"give the ET and the Kineto trace of one rank of one run (Kineto: {trace.path})"


def _threads(tid: I64, order: I64, codes: I64, keep: Bool) -> list[_Sequence]:
    """Group the kept rows by thread, the thread that has most of them first."""
    kept = np.flatnonzero(keep)
    rows = in_order(kept, tid, order)
    parts = equal_runs(rows, tid[rows])
    threads = [_Sequence(int(tid[part[0]]), part, codes[part].astype(np.int32)) for part in parts]
    return sorted(threads, key=lambda t: -len(t.rows))


def _pair_equal(nodes: list[_Sequence], kineto: list[_Sequence], out: I32) -> tuple[list[_Sequence], list[_Sequence]]:
    """Pair threads with equal sequences; return what is left of both."""
    waiting = grouped((thread.key, thread) for thread in reversed(kineto))
    left = []
    for thread in nodes:
        if same := waiting.get(thread.key):
            out[same.pop().rows] = thread.rows
        else:
            left.append(thread)
    return left, sorted(itertools.chain(*waiting.values()), key=lambda t: (-len(t.rows), t.tid))


def _pair_runs(
    nodes: list[_Sequence], kineto: list[_Sequence], trace: Trace, et: HostTrace, out: I32, notes: list[str]
) -> tuple[list[_Sequence], list[_Sequence]]:
    """Pair threads of which one is a contiguous run of the other; return what is left of both."""
    free, left = list(kineto), []
    for node in nodes:
        for thread in free:
            shorter, longer = (node, thread) if len(node.rows) < len(thread.rows) else (thread, node)
            sides = (et.seq_id, trace.host.seq_id) if shorter is node else (trace.host.seq_id, et.seq_id)
            place = _find(shorter, longer, sides[0][shorter.rows], sides[1][longer.rows])
            if place is None:
                continue
            at, certain = place
            run = longer.rows[at : at + len(shorter.rows)]
            rows, fitting = (run, node.rows) if shorter is node else (thread.rows, run)
            out[rows] = fitting
            if not certain:
                notes.append(f"ET thread {node.tid} fits thread {thread.tid} in several places: the first was taken")
            free.remove(thread)
            break
        else:
            left.append(node)
    return left, free


def _pair_most(
    nodes: list[_Sequence], kineto: list[_Sequence], out: I32, notes: list[str]
) -> tuple[list[_Sequence], list[_Sequence]]:
    """Pair threads that lack few rows of each other; return what is left of both."""
    free, left = list(kineto), []
    for node in nodes:
        by_thread = [(place, thread) for thread in free if (place := _aligned(node.codes, thread.codes)) is not None]
        if not by_thread:
            left.append(node)
            continue
        place, thread = max(by_thread, key=lambda pair: how_many(pair[0] != NOWHERE))
        found = place != NOWHERE
        out[thread.rows[place[found]]] = node.rows[found]
        notes.append(
            f"ET thread {node.tid} has {how_many(~found)} nodes that thread {thread.tid} lacks, and lacks "
            f"{len(thread.rows) - how_many(found)} of its rows: left unmatched"
        )
        free.remove(thread)
    return left, free


def _pair_asynchronous(trace: Trace, et: HostTrace, names: HostNames, gloo: Bool, out: I32) -> None:
    """Pair what is left of gloo by name and, where Kineto has them, input shapes, in the order in which it began, where
    both sides have as many.
    """
    rows = in_order(np.flatnonzero(gloo & (out == NOWHERE)), trace.host.start_ns)
    left = names.present(names.kineto[rows])[names.et] & is_op(et) & ~marked(len(et.id), out[out != NOWHERE])
    left_rows = in_order(np.flatnonzero(left), et.rf_id, et.id)
    wanted = [_bare(trace.strings[shapes]) for shapes in trace.host.input_shapes[rows].tolist()]
    held = [_bare(et.strings[shapes]) if any(wanted) else "" for shapes in et.input_shapes[left_rows].tolist()]
    nodes = grouped(zip(zip(names.et[left_rows].tolist(), held, strict=True), left_rows.tolist(), strict=True))
    by_form = grouped(zip(zip(names.kineto[rows].tolist(), wanted, strict=True), rows.tolist(), strict=True))
    for form, found in by_form.items():
        if len(found) == len(nodes.get(form, ())):
            out[found] = nodes[form]


def _bare(shapes: str) -> str:
    return shapes.replace(" ", "").strip("[]")


def _aligned(codes: I32, others: I32) -> I64 | None:
    """Return the place of each entry among ``others``, NOWHERE of those left out, where as few as possible of both are;
    None where that is more than ``MAX_LOST`` or its share. The greedy search of Myers (1986): by the number of entries
    that are left out, how far a path comes on each diagonal.
    """
    at, diagonal = len(codes), len(codes) - len(others)
    ends, steps = {1: 0}, list[tuple[dict[int, int], dict[int, int]]]()
    while ends.get(diagonal, NOWHERE) < at or not steps:
        if len(steps) > min(MAX_LOST, MAX_LOST_SHARE * (len(codes) + len(others))):
            return None
        on = range(-len(steps), len(steps) + 1, 2)  # from a neighbour, past an entry of the others or of its own
        begins = {k: max(ends.get(k + 1, -1), ends.get(k - 1, -2) + 1) for k in on}
        steps.append((ends, begins))
        ends = {k: x + _common(codes[x:], others[x - k :]) for k, x in begins.items()}
    place = nowhere(len(codes), np.int64)
    for before, begins in reversed(steps):
        begin = begins[diagonal]
        place[begin:at] = np.arange(begin, at) - diagonal
        at, diagonal = (begin, diagonal + 1) if before.get(diagonal + 1) == begin else (begin - 1, diagonal - 1)
    return place


def _common(a: I32, b: I32) -> int:
    """Return how many entries are the same from the first on."""
    count, at, width = min(len(a), len(b)), 0, 64
    while at < count:
        differ = np.flatnonzero(a[at : min(at + width, count)] != b[at : min(at + width, count)])
        if len(differ):
            return at + int(differ[0])
        at, width = at + width, 2 * width
    return count


def _find(shorter: _Sequence, longer: _Sequence, seq: I64, longer_seq: I64) -> tuple[int, bool] | None:
    """Find (place, certain) of a sequence in a longer one: certain where it is the only one, or the one with the same
    sequence numbers.
    """
    width, needle, hay = shorter.codes.itemsize, shorter.key, longer.key
    places: list[int] = []
    at = hay.find(needle)
    while at >= 0 and len(places) < MAX_PLACES:
        if at % width == 0:
            places.append(at // width)
        at = hay.find(needle, at + 1)
    if not places:
        return None
    scores = [_agreement(seq, longer_seq[p : p + len(seq)]) for p in places]
    best = max(scores)
    certain = len(places) == 1 or (best > 0 and scores.count(best) == 1)
    if not certain and len(shorter.rows) < MIN_AMBIGUOUS:
        return None
    return places[scores.index(best)], certain


def _agreement(a: I64, b: I64) -> int:
    """Count equal less unequal autograd sequence numbers, where both sides have one."""
    known = (a >= 0) & (b >= 0)
    return int(np.count_nonzero(known & (a == b)) - np.count_nonzero(known & (a != b)))


def _first_mismatch(node: _Sequence, kineto: list[_Sequence], names: HostNames) -> str:
    """Find the first position at which an ET thread differs from the free Kineto thread that it follows longest."""
    if not kineto:
        return f"ET thread {node.tid} has no Kineto thread left to be paired with"

    nearest = max(kineto, key=lambda thread: _common(thread.codes, node.codes))
    at = _common(nearest.codes, node.codes)
    here, there = (names.text[t.codes[at]] if at < len(t.codes) else "(end)" for t in (node, nearest))
    return f"ET thread {node.tid} against thread {nearest.tid}, position {at}: ET has {here!r}, Kineto {there!r}"
