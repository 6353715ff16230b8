"""What a recording shows of its devices' clocks: launches on an idle stream, and waits that are over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.link.call_roles import Role, roles
from graphlink.model import I32, I64, NOWHERE, Bool, DeviceKind, SyncKind, Trace
from graphlink.pairs import numbered_pairs
from graphlink.tables import lookup, successive, take

USUAL_NS: Final = {"hip": 4_700, "": 1_000}  # an idle stream's kernel after its call returned, by prefix of the call's name
BLOCKED_NS: Final = 20_000  # a synchronisation that took longer waited
MOST_RETURN_NS: Final = 300_000  # a wait that returns later than this after what it waited for tells nothing
MOST_NS: Final = 100_000  # clocks are tens of us apart: what is later than this has another cause
FEWEST: Final = 5  # launches on an idle stream that make a clock known
NEAR_NS: Final = 50_000  # what comes later than this after the first launch could begin has waited for something
STEPS_NS: Final = 20_000  # what a clock may step by
NOISE_NS: Final = 2_000
WARM_NS: Final = 100_000  # a device that idled for longer sleeps deeper: an MI300 then takes 9 us longer to begin
_SYNCS: Final = (Role.STREAM_SYNC, Role.DEVICE_SYNC, Role.EVENT_SYNC)


@dataclass(frozen=True, slots=True)
class WaitReturns:
    """Device row ``op`` had ended when a call returned: the clock is at least ``least_ns`` ahead, by the usual lag more if it ``blocked``.

    Not ``exact``: the call may have waited for less than ``op``, the last of all that was launched before it.
    """

    op: I64
    least_ns: I64
    begun_ns: I64  # when the op ended after the start of the call
    exact: Bool
    blocked: Bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """By start of the op (``at_ns``, device clock): ``ahead_ns`` as a launch shows it, or at least as much as an ``exact`` wait does.

    ``blocked`` waits show it, too, less the usual lag of their return.
    """

    at_ns: I64
    ahead_ns: I64
    begun_ns: I64  # of waits
    launch: Bool
    warm: Bool
    exact: Bool
    blocked: Bool

    def in_order(self) -> Evidence:
        """Return it by time."""
        return take(self, np.argsort(self.at_ns, kind="stable"))

    @property
    def anchored(self) -> bool:
        """Tell whether it fixes the clock."""
        close = self.blocked & (np.abs(self.ahead_ns) <= MOST_NS)
        return bool(np.count_nonzero(self.launch) >= FEWEST or close.any())


@dataclass(frozen=True, slots=True)
class Launches:
    """Calls that launched one op each, by ``row`` of the op: what it shows of the clock (``ahead_ns``) if its stream was idle."""

    row: I64
    ahead_ns: I64
    call_ns: I64
    before_ns: I64  # the op before on the stream ended, on the device's clock
    kernel: Bool
    warm: Bool  # the device had worked shortly before
    first_ns: int  # the least from the start of a call to the start of its op

    def roughly(self, _: I64) -> Bool:
        """Return launches on a stream that may have been idle, wherever the clock is within its steps."""
        return self.before_ns <= self.call_ns + self.first_ns + STEPS_NS

    def by(self, offset_ns: I64) -> Bool:
        """Return launches on an idle stream by a known offset of each device row."""
        return self.before_ns - offset_ns[self.row] <= self.call_ns + NOISE_NS

    def of(self, idle: Bool) -> I64:
        """Return positions of those that tell: kernels, where there are enough of them."""
        near = idle & (np.abs(self.ahead_ns - self.first_ns) <= NEAR_NS) & (abs(self.first_ns) <= MOST_NS)
        chosen = near & self.kernel
        return np.flatnonzero(chosen if np.count_nonzero(chosen) >= FEWEST else near)


def launches_of(trace: Trace, call: I32, own: I64) -> Launches:
    """Find launches of single ops of a device, whose rows are ``own``, in order of start."""
    device, calls = trace.device, trace.calls
    several = np.bincount(call + 1, minlength=len(calls.start_ns) + 1)[call + 1] > 1
    row = own[(call[own] != NOWHERE) & ~several[own]]
    row = row[(_brief(trace) & ~_behind_waits(trace, call))[call[row]]]
    by = call[row]
    lag_ns = device.start_ns[row] - calls.start_ns[by]
    worked_ns = np.full(len(call), np.iinfo(np.int64).min // 2)
    worked_ns[own[1:]] = np.maximum.accumulate(device.end_ns[own])[:-1]
    return Launches(
        row=row,
        ahead_ns=device.start_ns[row] - calls.end_ns[by] - _usual_ns(trace)[calls.name[by]],
        call_ns=calls.start_ns[by],
        before_ns=_ended_before(trace, row),
        warm=device.start_ns[row] - worked_ns[row] <= WARM_NS,
        kernel=device.kind[row] == DeviceKind.KERNEL,
        first_ns=int(np.partition(lag_ns, len(lag_ns) // 1000)[len(lag_ns) // 1000]) if len(lag_ns) else 0,
    )


def evidence_of(trace: Trace, launches: Launches, at: I64, waits: WaitReturns) -> Evidence:
    """Join launches on an idle stream (positions ``at``) and waits; a few launches count only as far as waits agree with them."""
    if len(at) < FEWEST and waits.blocked.any():
        at = at[np.abs(launches.ahead_ns[at] - np.median(waits.least_ns[waits.blocked])) <= STEPS_NS]
    start_ns = trace.device.start_ns
    launch, no_launch = np.ones(len(at), np.bool_), np.zeros(len(waits.op), np.bool_)
    return Evidence(
        at_ns=np.concatenate([start_ns[launches.row[at]], start_ns[waits.op]]),
        ahead_ns=np.concatenate([launches.ahead_ns[at], waits.least_ns]),
        begun_ns=np.concatenate([np.zeros(len(at), np.int64), waits.begun_ns]),
        launch=np.concatenate([launch, no_launch]),
        warm=np.concatenate([launches.warm[at], no_launch]),
        exact=np.concatenate([~launch, waits.exact]),
        blocked=np.concatenate([~launch, waits.blocked]),
    ).in_order()


def _usual_ns(trace: Trace) -> I64:
    """Of each name."""
    return np.array([next(ns for prefix, ns in USUAL_NS.items() if text.startswith(prefix)) for text in trace.strings], np.int64)


def _brief(trace: Trace) -> Bool:
    """Calls that took no longer than calls of their name do: the end of a call that was held up does not tell when it launched."""
    calls = trace.calls
    took_ns = calls.end_ns - calls.start_ns
    order = np.lexsort((took_ns, calls.name))
    names, first, count = np.unique(calls.name[order], return_index=True, return_counts=True)
    median_ns = np.zeros(len(trace.strings) or 1, np.int64)
    if len(names):
        median_ns[names] = took_ns[order][first + count // 2]
    return took_ns <= 4 * median_ns[calls.name]


def _behind_waits(trace: Trace, call: I32) -> Bool:
    """Calls before which their thread made a stream wait since it launched last: what they launch may begin when that is over."""
    calls = trace.calls
    order = np.lexsort((calls.start_ns, calls.tid))
    launches = np.zeros(len(order), np.bool_)
    launches[call[call != NOWHERE]] = True
    waits = np.cumsum(roles(calls, trace.strings)[order] == Role.STREAM_WAIT)
    at = np.flatnonzero(launches[order])
    tid = calls.tid[order]
    before = np.where(np.append(False, tid[at[1:]] == tid[at[:-1]]), np.append(0, waits[at[:-1]]), waits[np.searchsorted(tid, tid[at])])
    out = np.zeros(len(order), np.bool_)
    out[order[at]] = waits[at] > before
    return out


def _ended_before(trace: Trace, rows: I64) -> I64:
    """Return when the op before each row on its stream ended, on the device's clock."""
    device = trace.device
    before, after = successive(np.lexsort((device.start_ns, device.stream, device.device)), device.device, device.stream)
    ended_ns = np.full(len(device.end_ns), np.iinfo(np.int64).min // 2)
    ended_ns[after] = device.end_ns[before]
    return ended_ns[rows]


def waits_of(trace: Trace, call: I32) -> WaitReturns:
    """Find what synchronisation calls had waited for: of the ops that they name the one that ended last.

    Rows name them, and CUDA's rules: a device synchronisation waits for its device, a stream synchronisation where there is one stream for
    that, a copy to the host for itself, and a stream synchronisation whose thread called nothing since an asynchronous copy to the host for
    that copy. Not exact: other calls are taken to have waited for what their thread launched last, and a copy from the host, or to
    pageable memory, for itself. A query may have found its event not ready, and tells nothing.
    """
    device, calls, syncs = trace.device, trace.calls, trace.syncs
    role = roles(calls, trace.strings)
    launched = np.flatnonzero(call != NOWHERE)
    launched = launched[np.argsort(calls.start_ns[call[launched]], kind="stable")]
    none = np.zeros(0, np.int64)
    if not len(launched):
        return WaitReturns(none, none, none, none.astype(np.bool_), none.astype(np.bool_))
    row_call = lookup(calls.correlation, syncs.correlation)
    usable = (row_call != NOWHERE) & (role[row_call] != Role.EVENT_QUERY)
    stream = np.flatnonzero(usable & (syncs.kind == SyncKind.STREAM) & syncs.stream_known)
    whole = np.flatnonzero(usable & (syncs.kind == SyncKind.DEVICE))
    event = np.flatnonzero(usable & (syncs.kind == SyncKind.EVENT) & syncs.record_known & syncs.record_stream_known)
    recorded = lookup(calls.correlation, syncs.record[event])
    event, recorded = event[recorded != NOWHERE], recorded[recorded != NOWHERE]
    bare = np.isin(role, _SYNCS)
    bare[row_call[row_call != NOWHERE]] = False
    one_device = len(np.unique(device.device)) == 1
    certain = one_device & ((role == Role.DEVICE_SYNC) | (role == Role.STREAM_SYNC) & (len(np.unique(device.stream)) == 1))
    certain[row_call[row_call != NOWHERE]] = True
    all_ = np.flatnonzero(bare & certain)
    asked = [
        (syncs.device[stream], syncs.stream[stream], row_call[stream], row_call[stream]),
        (syncs.device[event], syncs.record_stream[event], recorded, row_call[event]),
        (syncs.device[whole], None, row_call[whole], row_call[whole]),
        (device.device[:1].repeat(len(all_)), None, all_, all_),
    ]
    to_host, pageable = (np.array([word in text for text in trace.strings], np.bool_)[device.name] for word in ("DtoH", "Pageable"))
    staged = pageable & (role[call] == Role.COPY_ASYNC)
    copied = np.flatnonzero((call != NOWHERE) & ((role[call] == Role.COPY) | staged))
    pairs = [
        (copied, call[copied].astype(np.int64)),
        *(last_of(trace, call, launched, *what) for what in asked),
        _launched_before(trace, call, launched, np.flatnonzero(bare & ~certain)),
    ]
    op, by = (np.concatenate(column) for column in zip(*pairs, strict=True))
    copy, behind = op[len(copied) :], by[len(copied) :]
    fetched = to_host[copy] & (role[behind] == Role.STREAM_SYNC) & (_called_before(trace)[behind] == call[copy])
    exact = np.concatenate([(to_host & ~staged)[copied], certain[behind] | fetched])
    least_ns = device.end_ns[op] - calls.end_ns[by]
    blocked = (exact | (calls.end_ns[by] - calls.start_ns[by] > BLOCKED_NS)) & (np.abs(least_ns) <= MOST_RETURN_NS)
    begun_ns = device.end_ns[op] - calls.start_ns[by]
    blocked &= begun_ns > -STEPS_NS
    keep = exact | blocked
    return take(WaitReturns(op, least_ns, begun_ns, exact, blocked), keep)


def _called_before(trace: Trace) -> I64:
    """Return the call before each on its thread, NOWHERE for the first."""
    calls = trace.calls
    before, after = successive(np.lexsort((calls.start_ns, calls.tid)), calls.tid)
    out = np.full(len(calls.tid), NOWHERE, np.int64)
    out[after] = before
    return out


def last_of(trace: Trace, call: I32, launched: I64, number: I64, stream: I64 | None, until: I64, by: I64) -> tuple[I64, I64]:
    """Return (op, waiting call): of the ops launched on a device (and stream) before call ``until`` the one that ended last."""
    device, calls = trace.device, trace.calls
    of_stream = np.zeros(len(launched) + len(number), np.int64) if stream is None else np.concatenate([device.stream[launched], stream])
    lane, wanted = np.split(numbered_pairs(np.concatenate([device.device[launched], number]), of_stream)[1], [len(launched)])
    order = np.argsort(lane, kind="stable")
    ops, lane = launched[order], lane[order]
    latest = np.arange(len(ops))
    found_op, found_by = [], []
    for k in np.unique(wanted).tolist():
        first, last = np.searchsorted(lane, [k, k + 1])
        mine = np.flatnonzero(wanted == k)
        if first == last:
            continue
        end_ns = device.end_ns[ops[first:last]]
        top = np.maximum.accumulate(end_ns)
        latest[first:last] = first + np.maximum.accumulate(np.where(end_ns == top, np.arange(last - first), 0))
        at = first + np.searchsorted(calls.start_ns[call[ops[first:last]]], calls.start_ns[until[mine]]) - 1
        found_op.append(ops[latest[at[at >= first]]])
        found_by.append(by[mine[at >= first]])
    if not found_op:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(found_op), np.concatenate(found_by)


def _launched_before(trace: Trace, call: I32, launched: I64, by: I64) -> tuple[I64, I64]:
    """(op, waiting call): the op that the thread of each call launched last before it. ``launched``: in order of launch."""
    calls = trace.calls
    tid = calls.tid[call[launched]]
    found_op, found_by = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for thread in np.unique(calls.tid[by]).tolist():
        ops, mine = launched[tid == thread], by[calls.tid[by] == thread]
        at = np.searchsorted(calls.start_ns[call[ops]], calls.start_ns[mine]) - 1
        found_op.append(ops[at[at >= 0]])
        found_by.append(mine[at >= 0])
    return np.concatenate(found_op), np.concatenate(found_by)
