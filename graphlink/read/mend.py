"""Rows of Kineto that recorders wrote wrong, or without what joins them, put right: names, threads, times, launches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from graphlink.errors import SeveralRanks
from graphlink.model import I64, NOWHERE, Bool, DeviceKind
from graphlink.patterns import COPY, GRAPH_LAUNCH, LAUNCH, containing, fits
from graphlink.read.columns import MISSING, Parts, Strings
from graphlink.read.cuspy import EVENT_NODE, near, put_inside_ops
from graphlink.read.kineto_rows import CALL, DEVICE, EVENT, HOST, LAUNCHED, OVERHEAD, SYNC, TIMES
from graphlink.tables import (
    MOST,
    begins,
    codes,
    how_many,
    in_order,
    largest,
    last_before,
    least,
    lookup,
    marked,
    spread,
    successive,
    sums,
    turns,
    unused,
    values_at,
)

_FAR: Final = 1_000  # times as long as a recording took: so far from 0 is a time since the epoch
_OVERLOAD: Final = re.compile(r"(\w+::\w+)\.\w+")
_WORK: Final = {  # what launches each kind of device op
    DeviceKind.KERNEL: LAUNCH,
    DeviceKind.MEMCPY: COPY,
    DeviceKind.MEMSET: re.compile(r"(?i).*mem_?set.*", re.DOTALL),
}
_WITH_FLOW: Final = re.compile(r"(?i).*(launch|mem_?cpy|mem_?set|synchronize|wait).*", re.DOTALL)


def _name_without_overload(host: Parts, strings: Strings) -> None:
    """Name ops as everywhere else, in place: ``capture_overload_names`` makes ``aten::sum`` to
    ``aten::sum.dim_IntList``, in Kineto alone."""
    name = host.seen("name")
    known = tuple(strings)
    ops = np.flatnonzero(~host.seen("annotation").astype(np.bool_))
    numbers, code = np.unique(name[ops], return_inverse=True)
    plain = [strings[m[1]] if (m := _OVERLOAD.fullmatch(known[number])) else number for number in numbers.tolist()]
    name[ops] = np.array(plain, name.dtype)[code]


def _put_on_their_threads(calls: Parts, host: Parts) -> int:
    """Put calls on the thread whose op made them, in place, and return how many: CUPTI knows a thread by a handle that
    a later thread may get, and Kineto then writes the number of the earlier one (PyTorch 2.11), or the handle itself.

    Such a call begins after the last row of its thread, inside the op that its ``External id`` names; of a thread
    without rows all that name one do. The other calls of that thread after its end go with the nearest of these in
    time. O(n log n).
    """
    op = lookup(host.column("external"), calls.column("external"))
    if not calls.count or not host.count:
        return 0
    start_ns, tid, op_tid, op_end_ns = calls.seen("start_ns"), calls.seen("tid"), host.seen("tid"), host.seen("end_ns")
    threads, place = np.unique(op_tid, return_inverse=True)
    last_ns = largest(len(threads), place, op_end_ns, MISSING)
    at = np.minimum(np.searchsorted(threads, tid), len(threads) - 1)
    unknown = threads[at] != tid
    late = unknown | (start_ns > last_ns[at])
    inside = (op != NOWHERE) & (host.seen("start_ns")[op] <= start_ns) & (calls.seen("end_ns") <= op_end_ns[op])
    by_chance = np.isin(tid, tid[unknown & ~inside & (op != NOWHERE)])
    known, rows = np.flatnonzero(late & inside & ~by_chance), np.flatnonzero(late)
    by = near((tid[known],), start_ns[known], (tid[rows],), start_ns[rows], MOST)
    rows, by = rows[by != NOWHERE], by[by != NOWHERE]
    tid[rows] = op_tid[op[known[by]]]
    return len(rows)


def _leave_out_untimed(tables: Iterable[Parts]) -> int:
    """Leave out rows without a time, in place, and return how many: Kineto writes 0 for the start of what CUPTI gave no
    time (device work and calls of the warm-up, where counters of the GPU are recorded), with whatever length.

    They are such rows only where all others are further from 0 than from each other, and those with a length where
    they are much further and more.
    """
    begun = {parts: parts.seen("start_ns") == 0 for parts in tables if parts.count}
    if not any(rows.any() for rows in begun.values()):
        return 0
    others = np.concatenate([parts.seen(name)[~rows] for parts, rows in begun.items() for name in TIMES[:2]])
    span_ns = int(others.max() - others.min()) + 1 if len(others) else 0
    far = len(others) > 2 * sum(map(np.count_nonzero, begun.values())) and int(others.min()) > _FAR * span_ns
    untimed = {parts: rows & (far | (parts.seen("end_ns") == 0)) for parts, rows in begun.items()}
    if not len(others) or int(np.abs(others).min()) < span_ns:
        return 0
    return sum(parts.keep(~rows) for parts, rows in untimed.items())


def mend_calls(parts: dict[str, Parts], strings: Strings, slack_ns: int) -> tuple[dict[str, int], list[str]]:
    """Give device rows the calls that all witnesses tell together, in place; return how many were mended, by kind, and
    what to warn of. As ``settle`` and ``give_calls``.
    """
    anew = _number_anew(parts, strings, slack_ns)
    against, moved = settle(parts[CALL], parts[DEVICE], parts[LAUNCHED], strings, slack_ns)
    given, told_given = give_calls(parts, strings, slack_ns)
    contradicted = max(against.values(), default=0)
    said = (
        f"device ops have a correlation id that others contradict ({_counts(against)}): {moved:,} go to "
        "the call that flow and External id agree on, the others to that of the correlation id"
    )
    counts = Counter({"calls-contradicted": contradicted, "repeated-calls": anew}) + Counter(given)
    return dict(counts), [*([said] if contradicted else []), *told_given]


def _counts(by_witness: Mapping[str, int]) -> str:
    return ", ".join(f"{witness} {count:,}" for witness, count in by_witness.items())


def repeated(calls: Parts) -> Bool:
    """Mark the calls whose correlation an earlier or later one has, which is not the same call recorded twice."""
    ids, tid, start_ns = (calls.seen(name) for name in ("correlation", "tid", "start_ns"))
    again = ids[lookup(ids, ids) != np.arange(calls.count)]
    before, after = successive(np.lexsort((start_ns, tid, ids)), ids, tid)
    return np.isin(ids, np.setdiff1d(again[again > 0], ids[after[start_ns[after] < calls.seen("end_ns")[before]]]))


def _number_anew(parts: dict[str, Parts], strings: Strings, slack_ns: int) -> int:
    """Give calls with a ``repeated`` correlation one of their own, in place, and the device row that they launched,
    where the External id that no other of them has tells which of them did, else its flow. Return how many such calls
    there are less; ``tidy`` has the others, also those that launch many rows.
    """
    calls, device, flows = parts[CALL], parts[DEVICE], parts[LAUNCHED]
    again = repeated(calls) & ~fits(GRAPH_LAUNCH, tuple(strings))[calls.seen("name")]
    ids, of_row, count = calls.seen("correlation"), device.seen("correlation"), calls.count
    if not again.any():
        return 0
    external = np.concatenate([calls.seen("external"), device.seen("external")])
    pair = codes(np.concatenate([ids, of_row]), external)
    alone = again & (external[:count] > 0) & (np.bincount(pair[:count])[pair[:count]] == 1)
    call = lookup(np.where(alone, pair[:count] + 1, 0), pair[count:] + 1)
    row, by = _by_flows(calls, device, flows, strings, slack_ns)
    call[row] = np.where((call[row] == NOWHERE) & again[by] & (ids[by] == of_row[row]), by, call[row])
    told = np.flatnonzero((call != NOWHERE) & (device.seen("graph") == 0))
    before = len(np.unique(ids))
    of_row[told] = ids[call[told]] = _fresh(parts)[call[told]]
    return len(np.unique(ids)) - before


def _fresh(parts: dict[str, Parts]) -> I64:
    """Return a correlation id for each call that no row of any table has."""
    return unused(parts[CALL].count, *(parts[table].seen("correlation") for table in (CALL, DEVICE, SYNC, EVENT)))


def without_calls(calls: Parts, device: Parts, strings: Strings) -> Bool:
    """Mark the device rows whose correlation no call has, but for those launched before the recording: where all calls
    have one, it is below that of the first. And kernels that begin after another of a call that launches one: ROCm's
    tracer gives some the number of another launch.
    """
    ids, of_row, start_ns = calls.seen("correlation"), device.seen("correlation"), device.seen("start_ns")
    first, call = int(ids.min(initial=MOST)), lookup(ids, of_row)
    lacks = np.asarray((call == NOWHERE) & ((of_row <= 0) | (of_row >= first) | (first <= 0)))
    again = np.flatnonzero(
        (start_ns > least(calls.count + 1, call + 1, start_ns)[call + 1])
        & ((call != NOWHERE) & (device.seen("graph") == 0) & (device.seen("kind") == DeviceKind.KERNEL))
    )
    if len(again):
        several = ~fits(LAUNCH, tuple(strings)) | containing(tuple(strings), "Graph", "Multi")
        lacks[again] = ~(repeated(calls) | several[calls.seen("name")])[call[again]]
    return lacks


def give_calls(parts: dict[str, Parts], strings: Strings, slack_ns: int) -> tuple[dict[str, int], list[str]]:
    """Give device rows ``without_calls`` the correlation of the call that launched them, in place; as ``mend_calls``.

    That is the call at the start of the flow (``ac2g``) that ends where the row starts, both to ``slack_ns``; else one
    with its External id that launched nothing else, where as many calls as rows have that; else, where as many calls
    that launched nothing lie between those of its stream's rows before and after, the one in turn, unless both have a
    correlation. The nodes of one replay of a CUDA graph have one call, as have more rows than calls where one of these
    launches a graph. O(n log n).
    """
    calls, device, flows = parts[CALL], parts[DEVICE], parts[LAUNCHED]
    given, of_row = calls.seen("correlation"), device.seen("correlation")
    lacks = without_calls(calls, device, strings)
    if not calls.count or not lacks.any():
        return {}, []
    of_call = np.where(given > 0, given, _fresh(parts))
    call = np.where(lacks, NOWHERE, lookup(of_call, of_row))
    row, by = _by_flows(calls, device, flows, strings, slack_ns)
    told = lacks[row] & (of_call[by] != of_row[row])
    counts = Counter({"flows": len(np.unique(row[told]))})
    call[row] = np.where(told, by, call[row])
    nodes, replay = _replays(device, call != NOWHERE)
    first = np.unique(replay, return_index=True)[1]
    alone = ~marked(device.count, nodes)
    sorts = [(alone & (device.seen("kind") == kind), form) for kind, form in _WORK.items()]
    bare, unnumbered = lacks & ((of_row <= 0) | np.isin(of_row, given)), given <= 0
    for witness, joined, of_rows, of_calls in (
        ("replays", None, lacks, unnumbered),
        ("External id", _by_external, lacks, True),
        ("order", _by_order, bare, True),
        ("order", _by_order, lacks, unnumbered),
    ):
        before = how_many(call != NOWHERE)
        for wanted, form in ((marked(device.count, nodes[first]), GRAPH_LAUNCH), *sorts):
            known = call[nodes] != NOWHERE
            last_call = largest(len(first), replay, call[nodes], NOWHERE)
            agreed = last_call == least(len(first), replay[known], call[nodes[known]])  # a replay that is cut has two
            lacking = ~known & lacks[nodes] & agreed[replay]
            call[nodes[lacking]] = last_call[replay[lacking]]
            if joined is None:
                break
            launches = fits(form, tuple(strings))[calls.seen("name")] & ~marked(calls.count, call[call != NOWHERE])
            rows = _in_order(device, wanted & (call == NOWHERE) & of_rows)
            joined(calls, device, call, rows, _in_order(calls, launches & of_calls))
        counts[witness] += how_many(call != NOWHERE) - before
    before = how_many(call != NOWHERE)
    for of_rows, of_calls in ((bare, True), (lacks, unnumbered)):
        _around_graph(calls, device, call, alone & of_rows, unnumbered | of_calls, strings)
    counts["order"] += how_many(call != NOWHERE) - before
    found = lacks & (call != NOWHERE)
    of_row[found] = of_call[call[found]]
    given[call[found]] = of_call[call[found]]
    shared = how_many(lacks & ~found & np.isin(of_row, given))
    total = counts.total()
    said = {
        "calls-without-id": f"{total:,} device ops have no correlation id of a call of their own: "
        f"their calls are told by {_counts(+counts)}",
        "calls-contradicted": f"{shared:,} kernels stay with a call that launched another one before, whose "
        "correlation id they have, as nothing tells which launched them",
    }
    mended = +Counter({"calls-without-id": total, "calls-contradicted": shared})
    return dict(mended), [said[kind] for kind in mended]


def doubted(calls: Parts, device: Parts) -> dict[str, I64]:
    """Return the device rows of which another witness than the correlation tells another call, by witness: the
    External id that both have, or their order, as a stream runs in turn what a thread launches.

    Of no number that several calls have. In 150 recordings no row of 400,000 is one. O(n log n).
    """
    ids, start_ns = calls.seen("correlation"), device.seen("start_ns")
    first = lookup(ids, ids)
    call = lookup(ids, device.seen("correlation"))
    known = np.flatnonzero(call != NOWHERE)
    known = known[np.bincount(first[first != NOWHERE], minlength=1)[call[known]] == 1]
    external, of_call = device.seen("external")[known], calls.seen("external")[call[known]]
    alone = known[device.seen("graph")[known] == 0]
    lane = device.seen("device"), device.seen("stream")
    before, after = successive(alone[np.lexsort((start_ns[alone], *(column[alone] for column in lane)))], *lane)
    earlier, later = call[before], call[after]
    back = (calls.seen("start_ns")[later] < calls.seen("start_ns")[earlier]) & (start_ns[after] > start_ns[before])
    back &= calls.seen("tid")[later] == calls.seen("tid")[earlier]
    rows = {"External id": known[(external > 0) & (of_call > 0) & (external != of_call)], "order": after[back]}
    return {witness: at for witness, at in rows.items() if len(at)}


def settle(calls: Parts, device: Parts, flows: Parts, strings: Strings, slack_ns: int) -> tuple[dict[str, int], int]:
    """Return (how many rows are ``doubted``, by witness, how many of them have another call now, in place): the one
    that flow and External id agree on. What only one of them tells does not outweigh the correlation.
    """
    rows = doubted(calls, device)
    if not rows:
        return {}, 0
    ids, of_row, external = calls.seen("correlation"), device.seen("correlation"), calls.seen("external")
    row, by = _by_flows(calls, device, flows, strings, slack_ns)
    call = lookup(ids, of_row)[row]
    other = (call != NOWHERE) & (ids[by] > 0) & (ids[by] != of_row[row])
    rows["flows"] = row[other]
    own = device.seen("external")[row]
    moved = other & (own > 0) & (external[by] == own) & (external[call] != own)
    of_row[row[moved]] = ids[by[moved]]
    return {witness: len(at) for witness, at in rows.items() if len(at)}, how_many(moved)


def _replays(device: Parts, called: Bool) -> tuple[I64, I64]:
    """Return (rows of nodes of CUDA graphs, the replay of each, from 0): the k-th run of a node is that of the k-th
    replay, counted from the end of the recording where the other one cuts replays: more of them begin with a row that
    is ``called``, as its call is known, or a graph stands still for longer between them. Those of graphs whose replays
    then do not follow each other are not told.
    """
    nodes = in_order(np.flatnonzero(device.seen("graph") > 0), device.seen("graph"), device.seen("start_ns"))
    graph = codes(device.seen("graph")[nodes])
    node, same = device.seen("graph_node")[nodes], graph[1:] == graph[:-1]
    still_ns = np.maximum(device.seen("start_ns")[nodes[1:]] - device.seen("end_ns")[nodes[:-1]], 0)
    still_ns += called[nodes[1:]] * (int(still_ns.sum()) + 1)
    replay, best = np.zeros(len(nodes), np.int64), np.full(len(nodes), -MOST)
    for turn in (turns(graph, node), -turns(graph[::-1], node[::-1])[::-1]):
        step = np.where(same, np.diff(turn), 0)
        score = sums(len(nodes), graph[1:], still_ns * (step > 0))
        score[graph[1:][step < 0]] = -MOST
        better = (score > best)[graph]
        replay[better], best = turn[better], np.maximum(score, best)
    steady = best[graph] > -MOST
    return nodes[steady], codes(graph[steady], replay[steady])


def _in_order(table: Parts, which: Bool) -> I64:
    """Return the rows that are marked, by start."""
    return in_order(np.flatnonzero(which), table.seen("start_ns"))


def _by_flows(calls: Parts, device: Parts, flows: Parts, strings: Strings, slack_ns: int) -> tuple[I64, I64]:
    """Return (row, call) of flows: of several that begin with one number the last before the end, of several that end
    near one row the nearest. A flow that begins nowhere (Kineto knows no ``hipGraphLaunch``) begins at the launch call
    at which it ends, if no other does.
    """
    ident, ns, tid, pid = (flows.seen(name) for name in ("ident", "ns", "tid", "pid"))
    ends = flows.seen("end").astype(np.bool_)
    asks = fits(_WITH_FLOW, tuple(strings))[calls.seen("name")]
    begin, bare = np.flatnonzero(~ends), np.flatnonzero(ends & ~np.isin(ident, ident[~ends]))
    by, of_bare = (_at(calls, ("tid",), [tid[at]], ns[at], ident[at], slack_ns, ~asks) for at in (begin, bare))
    lone = (of_bare != NOWHERE) & asks[of_bare] & ~np.isin(of_bare, by)
    end, begin, by = np.flatnonzero(ends), np.append(begin, bare[lone]), np.append(by, of_bare[lone])
    source = last_before((ident[begin],), ns[begin], (ident[end],), ns[end] + slack_ns + 1)
    source = np.where(source == NOWHERE, lookup(ident[begin], ident[end]), source)
    inside = last_before((calls.seen("tid"),), calls.seen("start_ns"), (tid[begin],), ns[begin] + 1)
    by = np.where(by == NOWHERE, inside, by)
    end, by, begin = end[source != NOWHERE], *(column[source[source != NOWHERE]] for column in (by, begin))
    there = by != NOWHERE
    there[there] = calls.seen("end_ns")[by[there]] + slack_ns >= ns[begin[there]]
    works = np.any([fits(form, tuple(strings)) for form in _WORK.values()], axis=0)[calls.seen("name")[by]]
    order = np.lexsort((ns[begin], ~works))  # waits have flows, too
    order = order[there[order]]
    end, by = end[order], by[order]
    start_ns = device.seen("start_ns")
    first_come = np.zeros(device.count, np.bool_)
    row = _at(device, ("device", "stream"), [pid[end], tid[end]], ns[end], np.arange(len(end)), slack_ns, first_come)
    order = np.lexsort((np.abs(start_ns[row] - ns[end]), row))
    order = order[row[order] != NOWHERE]
    first = order[begins(row[order])]
    return row[first], by[first]


def _at(table: Parts, names: tuple[str, ...], keys: list[I64], ns: I64, order: I64, slack_ns: int, last: Bool) -> I64:
    """Return the row that begins nearest to each time, where the columns ``names`` have these ``keys``, NOWHERE beyond
    ``slack_ns``; rows that begin together in turn with times that are equal, these in ``order``, ``last`` behind the
    other rows.
    """
    lane, start_ns = [table.seen(name) for name in names], table.seen("start_ns")
    rows, times = np.lexsort((table.seen("end_ns"), last, start_ns)), np.argsort(order, kind="stable")
    turn = spread(table.count, rows, turns(*(column[rows] for column in (*lane, start_ns))))
    asked = spread(len(ns), times, turns(*(column[times] for column in (*keys, ns))))
    return near([*lane, turn], start_ns, [*keys, asked], ns, slack_ns)


def _by_external(calls: Parts, device: Parts, call: I64, rows: I64, free: I64) -> None:
    """Join rows with the calls of their External id, the k-th with the k-th, in place in ``call``."""
    ids = [table.seen("external")[at] for table, at in ((device, rows), (calls, free))]
    code, count = codes(np.concatenate(ids)), len(rows)
    turn = codes(code, np.concatenate([turns(column) for column in ids]))
    numbers = [np.bincount(part, minlength=len(code) + 1)[code[:count]] for part in (code[:count], code[count:])]
    at = lookup(turn[count:] + 1, turn[:count] + 1)
    same = (numbers[0] == numbers[1]) & (ids[0] > 0) & (at != NOWHERE)
    call[rows[same]] = free[at[same]]


def _by_order(calls: Parts, device: Parts, call: I64, rows: I64, free: I64) -> None:
    """Join rows with calls by their order, in place in ``call``, but where one begins ``_too_early``: then what was
    launched before the recording stands for what runs after it.
    """
    first, last, gap = _between(calls, device, call, rows, free)
    same = last - first == np.bincount(gap, minlength=1)[gap]
    rows, gap, by = rows[same], gap[same], free[(first + turns(gap))[same]]
    right = (np.bincount(by, minlength=1)[by] == 1) & ~np.isin(gap, gap[_too_early(calls, device, call, rows, by)])
    call[rows[right]] = by[right]


def _around_graph(calls: Parts, device: Parts, call: I64, rows: Bool, free: Bool, strings: Strings) -> None:
    """Join rows that are marked with calls by their order where one of these launches a CUDA graph, in place in
    ``call``: all are its nodes but the first, as many as calls before it, and the last. ``free``: marks calls.

    Not where a row is of another kind than its call, two rows are of one call, or one begins ``_too_early``.
    """
    works = [fits(form, tuple(strings))[calls.seen("name")] for form in (GRAPH_LAUNCH, *_WORK.values())]
    launches = np.select(works, (NOWHERE, *_WORK), MOST)
    row = _in_order(device, rows & (call == NOWHERE))
    at_call = _in_order(calls, free & (launches < MOST) & ~marked(calls.count, call[call != NOWHERE]))
    first, last, gap = _between(calls, device, call, row, at_call)
    graphs = np.append(0, np.cumsum(launches[at_call] == NOWHERE))
    one = graphs[last] - graphs[first] == 1
    row, first, last, gap = row[one], first[one], last[one], codes(gap[one])
    at, turn, count = np.searchsorted(graphs, graphs[first] + 1) - 1, turns(gap), np.bincount(gap, minlength=1)[gap]
    before, behind = first + turn, last - count + turn
    by = at_call[np.where(before < at, before, np.maximum(behind, at))]
    node = launches[by] == NOWHERE
    wrong = (count < last - first) | _too_early(calls, device, call, row, by)
    wrong |= ~node & ((launches[by] != device.seen("kind")[row]) | (np.bincount(by, minlength=1)[by] > 1))
    right = ~np.isin(gap, gap[wrong])
    call[row[right]] = by[right]


def _too_early(calls: Parts, device: Parts, call: I64, rows: I64, by: I64) -> Bool:
    """Mark the rows that begin earlier before these calls than any row whose call is known before that one."""
    start_ns, of_call = device.seen("start_ns"), calls.seen("start_ns")
    known = np.flatnonzero(call != NOWHERE)
    early_ns = int((start_ns[known] - of_call[call[known]]).min(initial=0))
    return np.asarray(start_ns[rows] - of_call[by] < early_ns)


def _between(calls: Parts, device: Parts, call: I64, rows: I64, free: I64) -> tuple[I64, I64, I64]:
    """Return (first, last + 1 of the free calls, number of the gap): those between the calls of the rows before and
    after each row on its stream whose call is known."""
    start_ns, of_call = device.seen("start_ns"), calls.seen("start_ns")
    known = np.flatnonzero(call != NOWHERE)
    lane = [device.seen("device"), device.seen("stream")]
    bounds = []
    for way in (1, -1):
        at = last_before(
            tuple(c[known] for c in lane), way * start_ns[known], tuple(c[rows] for c in lane), way * start_ns[rows]
        )
        bounds.append(values_at(of_call[call[known]], at, -way * MOST))
    first = np.searchsorted(of_call[free], bounds[0], side="right")
    last = np.searchsorted(of_call[free], bounds[1])
    return first, np.maximum(first, last), codes(*bounds, *(c[rows] for c in lane))


def refuse_processes(path: str, calls: Parts, device: Parts, names: list[str], workers: list[str]) -> None:
    """Refuse a recording of the device work, or the ops, of several processes: nothing joins them but numbers, which
    repeat. ``names``: of the processes of calls, by number; ``workers``: of those of ops, which another namespace may
    call differently.

    Raises:
        SeveralRanks: naming them, and how to split the file.
    """
    launched = np.isin(calls.seen("correlation"), device.seen("correlation")) & (calls.seen("correlation") > 0)
    processes = [names[k] for k in np.unique(calls.seen("process")[launched]).tolist()]
    alone = device.seen("correlation")[(device.seen("graph") == 0) & (device.seen("correlation") > 0)]
    if not processes or len(np.unique(alone)) < len(alone):  # ops of another process tell of a rank with work alone
        processes = processes if len(processes) > 1 else workers
    if len(processes) < 2:
        return
    mark = processes[0].split("]")[0] + "]" if processes[0].startswith("[") else ""
    how = f"""jq -c '.traceEvents |= map(select(.pid | tostring | startswith("{mark}")))'""" if mark else ""
    raise SeveralRanks(
        f"holds the work of {len(processes)} processes ({', '.join(processes[:8])}), each of which is a rank",
        path=path,
        todo="give the file of each rank as the profiler wrote it" + (f", or split this one: {how}" if how else ""),
    )


def put_right(parts: dict[str, Parts], strings: Strings, left_out: Counter[str]) -> list[str]:
    """Put rows where they belong that recorders wrote elsewhere, and leave out those of no time; return warnings of
    both.
    """
    warnings: list[str] = []
    if untimed := _leave_out_untimed(parts[table] for table in (HOST, CALL, DEVICE, SYNC, OVERHEAD)):
        left_out["without a time (start 0)"] = untimed
        warnings.append(f"rows without a time ({untimed}) are left out: what they did is in no graph")
    _name_without_overload(parts[HOST], strings)
    if moved := _put_on_their_threads(parts[CALL], parts[HOST]):
        warnings.append(
            f"calls ({moved}) have the number of an ended thread, or of none: they count for the op around them"
        )
    put_inside_ops(parts[CALL], parts[HOST])
    if events := parts[DEVICE].keep(parts[DEVICE].seen("kind") != EVENT_NODE):
        left_out["graph_event_node"] = events
    return warnings
