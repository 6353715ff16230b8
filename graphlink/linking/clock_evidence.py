"""Evidence of a recording on its devices' clocks, launches on an idle stream and waits that are over; and the offset of
a clock, a step function of time, that is fitted to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from graphlink.choices import LATENCY_NS
from graphlink.linking.call_roles import SYNCS, Role, roles
from graphlink.linking.launch import rounding_ns
from graphlink.model import EMPTY, F64, I32, I64, NOWHERE, Bool, DeviceKind, SyncKind, Trace
from graphlink.patterns import containing
from graphlink.tables import (
    MOST,
    among,
    begins,
    codes,
    concat,
    equal_runs,
    in_order,
    last_before,
    least,
    lookup,
    marked,
    spread,
    successive,
    take,
)

# an idle stream's kernel after its call returned, by prefix of the call's name
USUAL_NS: Final = {"hip": 4_700, "": 1_000}
MOST_RETURN_NS: Final = 300_000  # a wait that returns later than this after what it waited for tells nothing
MOST_NS: Final = 100_000  # clocks are tens of us apart: what is later than this has another cause
FEWEST: Final = 5  # launches on an idle stream that make a clock known
NEAR_NS: Final = 50_000  # what comes later than this after the first launch could begin has waited for something
STEPS_NS: Final = 20_000  # what a clock may step by
NOISE_NS: Final = 2_000
WARM_NS: Final = 100_000  # a device that idled for longer sleeps deeper: an MI300 then takes 9 us longer to begin
_PARTS: Final = 8  # of a recording, in which its clock's rate shows,
_FEWEST_PARTS: Final = 3  # in so many of them
_BINS: Final = 1_000  # of a recording, whose least lags are above the line that is its clock's
_MOST_DRIFT: Final = 1e-3  # crystals of computers differ by 100 ppm at most
_RATE: Final = 1e-8  # rates that differ by less are the same
_NEVER: Final = np.iinfo(np.int64).min // 2
USUAL_RETURN_NS: Final = 7_500  # a wait that spins returns 3 to 12 us after what it waited for
SOON_NS: Final = 5_250  # a quarter of them by then
_LEVEL_NS: Final = 250
_MOST_LEVELS: Final = 600
_MOST_BLOCKS: Final = 2_000
# what a change of level costs, in us of disagreement, where launches differ from each other by 1 us or less
CHANGE_US: Final = 25.0
_MOST_NOISE: Final = 2.0
_ABOVE_US, _COLD_US, _BELOW_US, _WAIT_US = (
    6.0,
    1.5,
    8.0,
    2.0,
)  # disagreement of one launch or wait counts no more than this


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of device rows ``op`` on the clock, by their start (``at_ns``, device clock).

    It is ``ahead_ns`` ahead as a launch shows it, or at least as much where a call returned after the op had ended; by
    the usual lag more if the call ``blocked``. Not ``exact``: it may have waited for less than ``op``, the last of all
    that was launched before it.
    """

    op: I64
    at_ns: I64
    ahead_ns: I64
    begun_ns: I64  # of waits: when the op ended after the start of the call
    launch: Bool
    warm: Bool  # of launches: the device had worked shortly before
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


class Launches(msgspec.Struct, frozen=True):
    """Evidence of calls that launched one op each, soon, on the clock if the stream was idle: it was so ``late_ns``
    after the call began."""

    shown: Evidence
    late_ns: I64  # on the device's clock
    kernel: Bool
    first_ns: int  # the least from the start of a call to the start of its op


def launches_of(trace: Trace, call: I32, own: I64) -> Launches:
    """Find launches of single ops of a device, whose rows are ``own``, in order of start."""
    device, calls = trace.device, trace.calls
    several = np.bincount(call + 1, minlength=len(calls.start_ns) + 1)[call + 1] > 1
    row = own[(call[own] != NOWHERE) & ~several[own]]
    row = row[(_brief(trace) & ~_behind_waits(trace, call))[call[row]] & ~_waited_for(trace, call)[row]]
    by = call[row]
    lag_ns = device.start_ns[row] - calls.start_ns[by]
    worked_ns = spread(len(call), own[1:], np.maximum.accumulate(device.end_ns[own])[:-1], _NEVER)
    first_ns = int(np.partition(lag_ns, len(lag_ns) // 1000)[len(lag_ns) // 1000]) if len(lag_ns) else 0
    ahead_ns = device.start_ns[row] - calls.end_ns[by] - _usual_ns(trace)[calls.name[by]]
    near = (np.abs(ahead_ns - first_ns) <= NEAR_NS) & (abs(first_ns) <= MOST_NS)
    row, by, ahead_ns = row[near], by[near], ahead_ns[near]
    launch = np.ones(len(row), np.bool_)
    warm = device.start_ns[row] - worked_ns[row] <= WARM_NS
    shown = Evidence(row, device.start_ns[row], ahead_ns, np.zeros(len(row), np.int64), launch, warm, ~launch, ~launch)
    ended_ns = np.append(device.end_ns, _NEVER)[preceding(device.start_ns, device.device, device.stream)]
    return Launches(shown, ended_ns[row] - calls.start_ns[by], device.kind[row] == DeviceKind.KERNEL, first_ns)


def evidence_of(launches: Launches, idle: Bool, waits: Evidence) -> Evidence:
    """Join launches on ``idle`` streams, of kernels where there are enough, and waits, by time.

    A few launches count only as far as waits agree with them.
    """
    kernels = idle & launches.kernel
    shown = take(launches.shown, kernels if np.count_nonzero(kernels) >= FEWEST else idle)
    if len(shown.op) < FEWEST and waits.blocked.any():
        shown = take(shown, np.abs(shown.ahead_ns - np.median(waits.ahead_ns[waits.blocked])) <= STEPS_NS)
    return concat(shown, waits).in_order()


def returned(trace: Trace, op: I64, by: I64, exact: Bool, blocked: Bool) -> Evidence:
    """Return what it shows that ops had ended when calls ``by`` returned."""
    start_ns, end_ns, calls = trace.device.start_ns[op], trace.device.end_ns[op], trace.calls
    no_launch = np.zeros(len(op), np.bool_)
    return Evidence(
        op, start_ns, end_ns - calls.end_ns[by], end_ns - calls.start_ns[by], no_launch, no_launch, exact, blocked
    )


def _usual_ns(trace: Trace) -> I64:
    """Return the usual duration of each name."""
    return np.array(
        [next(ns for prefix, ns in USUAL_NS.items() if text.startswith(prefix)) for text in trace.strings], np.int64
    )


def _brief(trace: Trace) -> Bool:
    """Mark calls that took no longer than calls of their name do: the end of a call that was blocked does not show when
    it launched.
    """
    calls = trace.calls
    took_ns = calls.end_ns - calls.start_ns
    order = np.lexsort((took_ns, calls.name))
    names, first, count = np.unique(calls.name[order], return_index=True, return_counts=True)
    median_ns = np.zeros(len(trace.strings) or 1, np.int64)
    if len(names):
        median_ns[names] = took_ns[order][first + count // 2]
    return took_ns <= 4 * median_ns[calls.name]


def _waited_for(trace: Trace, call: I32) -> Bool:
    """Mark the copies whose call waits for them, and so ends behind them: those that are not asynchronous, those of
    pageable memory."""
    role = np.append(roles(trace.calls, trace.strings), Role.OTHER)[call]  # the last for rows without a call
    pageable = containing(trace.strings, "Pageable")[trace.device.name]
    return np.asarray((role == Role.COPY) | (pageable & (role == Role.COPY_ASYNC)))


def _behind_waits(trace: Trace, call: I32) -> Bool:
    """Mark the calls before which their thread made a stream wait since it launched last: what they launch may begin
    when that is over.
    """
    calls = trace.calls
    order = np.lexsort((calls.start_ns, calls.tid))
    launches = marked(len(order), call[call != NOWHERE])
    waits = np.cumsum(roles(calls, trace.strings)[order] == Role.STREAM_WAIT)
    at = np.flatnonzero(launches[order])
    tid = calls.tid[order]
    before = np.where(
        np.append(False, tid[at[1:]] == tid[at[:-1]]),
        np.append(0, waits[at[:-1]]),
        waits[np.searchsorted(tid, tid[at])],
    )
    return marked(len(order), order[at[waits[at] > before]])


def preceding(start_ns: I64, *lane: I64) -> I64:
    """Return the row before each of its lane, NOWHERE for the first."""
    before, after = successive(np.lexsort((start_ns, *lane[::-1])), *lane)
    return spread(len(start_ns), after, before)


def waits_of(trace: Trace, call: I32) -> Evidence:
    """Find what synchronisation calls had waited for: of the ops that they name the one that ended last.

    Rows name them, and CUDA's rules: a device synchronisation waits for its device, a stream synchronisation where
    there is one stream for that, a copy to the host for itself, and a stream synchronisation whose thread called
    nothing since an asynchronous copy to the host for that copy. An asynchronous copy to pageable memory is waited for,
    too, but where one ran for longer than its call took, or most synchronisations behind such copies had to wait. Not
    exact: other calls are taken to have waited for what their thread launched last, and a copy from the host for
    itself. A query may have found its event not ready, and tells nothing.
    """
    device, calls, syncs = trace.device, trace.calls, trace.syncs
    role = np.append(roles(calls, trace.strings), Role.OTHER)  # the last for rows without a call
    launched = np.flatnonzero(call != NOWHERE)
    launched = launched[np.argsort(calls.start_ns[call[launched]], kind="stable")]
    if not len(launched):
        return returned(trace, launched, launched, launched > 0, launched > 0)
    row_call = lookup(calls.correlation, syncs.correlation)
    usable = (row_call != NOWHERE) & (role[row_call] != Role.EVENT_QUERY)
    stream = np.flatnonzero(usable & (syncs.kind == SyncKind.STREAM) & syncs.stream_known)
    whole = np.flatnonzero(usable & (syncs.kind == SyncKind.DEVICE))
    event = np.flatnonzero(usable & (syncs.kind == SyncKind.EVENT) & syncs.record_known & syncs.record_stream_known)
    recorded = lookup(calls.correlation, syncs.record[event])
    event, recorded = event[recorded != NOWHERE], recorded[recorded != NOWHERE]
    bare = among(role, SYNCS)
    bare[row_call[row_call != NOWHERE]] = False
    one_device = len(np.unique(device.device)) == 1
    certain = one_device & (
        (role == Role.DEVICE_SYNC) | (role == Role.STREAM_SYNC) & (len(np.unique(device.stream)) == 1)
    )
    certain[row_call[row_call != NOWHERE]] = True
    all_ = np.flatnonzero(bare & certain)
    asked = [
        (syncs.device[stream], syncs.stream[stream], row_call[stream], row_call[stream]),
        (syncs.device[event], syncs.record_stream[event], recorded, row_call[event]),
        (syncs.device[whole], None, row_call[whole], row_call[whole]),
        (device.device[:1].repeat(len(all_)), None, all_, all_),
    ]
    to_host, copies = containing(trace.strings, "DtoH")[device.name], _waited_for(trace, call)
    copied, staged = np.flatnonzero(copies), copies & to_host & (role[call] == Role.COPY_ASYNC)
    took_ns = calls.end_ns - calls.start_ns
    early = staged & (device.end_ns - device.start_ns > took_ns[call] + rounding_ns(trace))
    pairs = [
        (copied, call[copied].astype(np.int64)),
        *(last_of(trace, call, launched, *what) for what in asked),
        _launched_before(trace, call, launched, np.flatnonzero(bare & ~certain)),
    ]
    op, by = (np.concatenate(column) for column in zip(*pairs, strict=True))
    copy, behind = op[len(copied) :], by[len(copied) :]
    fetched = (
        to_host[copy]
        & (role[behind] == Role.STREAM_SYNC)
        & (preceding(calls.start_ns, calls.tid)[behind] == call[copy])
    )
    rest_ns = took_ns[behind[fetched & staged[copy]]]
    asynchronous = early.any() or np.count_nonzero(rest_ns > LATENCY_NS) > len(rest_ns) / 2
    exact = np.concatenate([(to_host & ~(staged & asynchronous))[copied], certain[behind] | fetched])
    found = returned(trace, op, by, exact, exact | (took_ns[by] > LATENCY_NS))
    blocked = found.blocked & (np.abs(found.ahead_ns) <= MOST_RETURN_NS) & (found.begun_ns > -STEPS_NS)
    return take(replace(found, blocked=blocked), exact | blocked)


def last_of(
    trace: Trace, call: I32, launched: I64, number: I64, stream: I64 | None, until: I64, by: I64
) -> tuple[I64, I64]:
    """Return (op, waiting call): of the ops launched on a device (and stream) before call ``until`` the one that ended
    last.
    """
    device, calls = trace.device, trace.calls
    of_stream = (
        np.zeros(len(launched) + len(number), np.int64)
        if stream is None
        else np.concatenate([device.stream[launched], stream])
    )
    lane, wanted = np.split(codes(np.concatenate([device.device[launched], number]), of_stream), [len(launched)])
    order = np.argsort(lane, kind="stable")
    ops, lane = launched[order], lane[order]
    latest = np.arange(len(ops))  # up to each op of its lane
    for mine in equal_runs(latest, lane):
        end_ns = device.end_ns[ops[mine]]
        mine[:] = np.maximum.accumulate(np.where(end_ns == np.maximum.accumulate(end_ns), mine, 0))
    asked = np.argsort(wanted, kind="stable")
    at = last_before((lane,), calls.start_ns[call[ops]], (wanted[asked],), calls.start_ns[until[asked]])
    return ops[latest[at[at != NOWHERE]]], by[asked[at != NOWHERE]]


def _launched_before(trace: Trace, call: I32, launched: I64, by: I64) -> tuple[I64, I64]:
    """Return (op, waiting call): the op that the thread of each call launched last before it. ``launched``: in order of
    launch.
    """
    calls = trace.calls
    by = in_order(by, calls.tid)
    at = last_before((calls.tid[call[launched]],), calls.start_ns[call[launched]], (calls.tid[by],), calls.start_ns[by])
    return launched[at[at != NOWHERE]], by[at != NOWHERE]


def roughly_ns(lag_ns: I64, idle_ns: I64, over_ns: I64) -> int | None:
    """Estimate how far the clock of a device is off, however far; None where little tells, or rows contradict.

    ``lag_ns``: of its launched ops the start after the start of the call, ``idle_ns`` those before which it had long
    been idle; ``over_ns``: of exact waits that blocked the end of the op after the return. A clock that may be right is
    believed, unless most launches on the idle device begin together later than ``MOST_NS``, or several waits return
    together later than any machine does.
    """
    most_ns, first_ns = _low(lag_ns), _low(idle_ns)
    together = np.count_nonzero(idle_ns - first_ns <= STEPS_NS)
    settled = together >= max(FEWEST, len(idle_ns) / 2)
    least_ns, early_ns = int(over_ns.max(initial=-MOST)), int(lag_ns.min(initial=MOST))
    if early_ns < -NOISE_NS and 0 <= early_ns + NOISE_NS - least_ns <= MOST_RETURN_NS:
        most_ns = early_ns  # not damaged: waits returned as late as it began early
    several = np.count_nonzero(least_ns - over_ns <= STEPS_NS) > 1
    if not len(lag_ns) or least_ns > most_ns + NOISE_NS:
        return None
    if most_ns >= -NOISE_NS and least_ns <= NOISE_NS:  # the clock may be right
        late = several and least_ns < -MOST_RETURN_NS
        if settled:
            return first_ns if first_ns > MOST_NS and (late or not several) else 0
        return least_ns if late else None
    if together >= max(2, len(idle_ns) / 2):
        return first_ns
    near = several or most_ns - least_ns <= MOST_RETURN_NS or least_ns > NOISE_NS
    return least_ns if near else min(most_ns, 0)


def _low(ns: I64 | F64) -> int:
    """Return the least but for one in a thousand, and one of several, which may be damaged; ``MOST`` without any."""
    place = max(len(ns) // 1000, int(len(ns) >= FEWEST))
    return int(np.partition(ns, place)[place]) if len(ns) else MOST


def slope(at_ns: I64, lag_ns: I64, idle: Bool, over_at_ns: I64, over_ns: I64) -> float:
    """Estimate by how much a device's clock runs faster, 0 where nothing shows that it does.

    ``lag_ns``: start of its launched ops (at ``at_ns``) after the start of the call, ``idle`` those before which their
    stream had long been idle; ``over_ns``: of exact waits (``over_at_ns``) the end of the op after the return. The line
    below all lags that is highest midway is the clock's (Moon, Skelly and Towsley), if waits contradict each other
    without it, or idle launches are on it in most parts of the recording. A device that falls behind does so by more
    than clocks differ.
    """
    if len(at_ns) < FEWEST:
        return 0.0
    first_ns, span_ns = int(at_ns.min()), int(np.ptp(at_ns)) + 1
    bin_ns = at_ns // (span_ns // _BINS + 1)
    lowest = np.lexsort((lag_ns, bin_ns))
    lowest = lowest[begins(bin_ns[lowest])]
    x, y = at_ns[lowest] - first_ns - span_ns / 2, lag_ns[lowest]
    low, high = -2 * _MOST_DRIFT, 2 * _MOST_DRIFT
    while high - low > _RATE:  # the lowest above a line is concave in its rate
        left, right = (2 * low + high) / 3, (low + 2 * high) / 3
        low, high = (left, high) if (y - left * x).min() < (y - right * x).min() else (low, right)
    rate = low
    if not STEPS_NS < abs(rate) * span_ns <= _MOST_DRIFT * span_ns:
        return 0.0
    clash_ns, off_ns = ((over_ns - r * over_at_ns).max(initial=-MOST) - _low(lag_ns - r * at_ns) for r in (0.0, rate))
    if max(clash_ns, off_ns) > NOISE_NS:
        return rate if off_ns <= NOISE_NS else 0.0
    part = (at_ns - first_ns) * _PARTS // span_ns
    several = idle & (np.bincount(part[idle], minlength=_PARTS)[part] >= FEWEST)
    least_ns = least(_PARTS, part[several], lag_ns[several] - (rate * at_ns[several]).astype(np.int64), MOST)
    least_ns = least_ns[least_ns < MOST]
    near = np.count_nonzero(least_ns <= least_ns.min(initial=MOST) + abs(rate) * span_ns / 4)
    return rate if near >= max(_FEWEST_PARTS, len(least_ns) / 2) else 0.0


class Windows(msgspec.Struct, frozen=True):
    """The clock windows of one device: window k has ``offset_ns[k]`` and begins after ``after_ns[k]``, no later than at
    ``by_ns[k]`` (device clock).

    Between the two, nothing shows which of its neighbours an op belongs to. ``cost_us``: how far the evidence
    disagrees.
    """

    offset_ns: I64
    after_ns: I64
    by_ns: I64
    cost_us: float


STILL: Final = Windows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), 0.0)


def of_devices(
    evidence: dict[int, Evidence], resolution_ns: int, changed: dict[int, I64]
) -> list[tuple[tuple[int, ...], Windows]]:
    """Return devices with the windows of their clock.

    Those that one clock explains as well have one: what they did together stays together.

    So have those that show nothing themselves. Where the others do not have one, or there are none, nothing tells:
    their clock stays. ``changed``: times (device clock) at which a clock is known to change, which then costs nothing.
    """
    none = EMPTY
    anchored = {device: e for device, e in evidence.items() if e.anchored}
    apart = {
        device: _windows(e, resolution_ns, changed.get(device, none)) if e.anchored else STILL
        for device, e in evidence.items()
    }
    if anchored and len(evidence) > 1:
        every = concat(*anchored.values()).in_order()
        one = _windows(every, resolution_ns, np.concatenate([none, *(changed.get(d, none) for d in anchored)]))
        if one.cost_us <= sum(w.cost_us for w in apart.values()) + _MOST_NOISE * CHANGE_US * (len(anchored) - 1):
            return [(tuple(evidence), one)]
    return [((device,), windows) for device, windows in apart.items()]


def _windows(evidence: Evidence, resolution_ns: int, changed_ns: I64) -> Windows:
    """Fit the cheapest step function through the evidence: the cheapest path through levels. Evidence below a level
    costs more than above it (nothing begins early, much begins late), a change of level costs as much as several
    launches that disagree.

    How late a wait returns is a property of the machine: the median over the recording, by the launches alone. Where
    the quicker ones are not as usual, launches and waits are both taken to be a little unusual, and the offset lies
    between.
    """
    block = np.arange(len(evidence.at_ns)) * min(_MOST_BLOCKS, len(evidence.at_ns)) // len(evidence.at_ns)
    shown = evidence.ahead_ns[evidence.launch]
    noise_us = float(np.median(np.abs(np.diff(shown)))) / 1_000 if len(shown) > 1 else 1.0
    change_us = np.full(int(block[-1]) + 1, CHANGE_US * min(max(noise_us, 1.0), _MOST_NOISE))
    change_us[block[np.minimum(np.searchsorted(evidence.at_ns, changed_ns), len(block) - 1)]] = 0
    return_ns, soon_ns, blocked = USUAL_RETURN_NS, SOON_NS, evidence.blocked
    if len(shown):
        levels = _levels(shown)
        ahead_ns = levels[cheapest(_costs(evidence, block, levels, None), change_us)[block]]
        blocked = blocked & (evidence.begun_ns > ahead_ns + NOISE_NS)
        if blocked.any():
            late_ns = (ahead_ns - evidence.ahead_ns)[blocked]
            soon_ns, return_ns = (round(ns) for ns in np.percentile(late_ns, (25, 50)))
    evidence = replace(evidence, blocked=blocked)
    waited = evidence.ahead_ns[blocked] + return_ns
    if len(shown):
        waited = np.clip(waited, np.percentile(shown, 1) - STEPS_NS, np.percentile(shown, 95) + STEPS_NS)
    levels = _levels(np.concatenate([shown, waited]))
    costs = _costs(evidence, block, levels, return_ns)
    level = cheapest(costs, change_us)
    changes = np.flatnonzero(np.diff(level)) + 1
    first = np.searchsorted(block, changes)
    begins = np.concatenate([[0], changes])
    between_ns = min(max((soon_ns - SOON_NS) / 2, -NOISE_NS), NOISE_NS)
    return Windows(
        offset_ns=np.array(
            [round((levels[level[k]] - between_ns) / resolution_ns) * resolution_ns for k in begins.tolist()], np.int64
        ),
        after_ns=np.concatenate([[0], evidence.at_ns[first - 1]]).astype(np.int64),
        by_ns=np.concatenate([[0], evidence.at_ns[first]]).astype(np.int64),
        cost_us=float(costs[np.arange(len(level)), level].sum()) + float(change_us[changes].sum()),
    )


def _levels(shown_ns: I64) -> F64:
    low, high = np.percentile(shown_ns, (1, 95))
    wide = min(high - low + 2_000, _LEVEL_NS * _MOST_LEVELS)
    return np.asarray(low - 1_000 + np.arange(int(wide / _LEVEL_NS) + 2) * float(_LEVEL_NS))


def _costs(evidence: Evidence, block: I64, levels: F64, return_ns: int | None) -> F64:
    """Return the cost of each level in each block of evidence, in us; shape (blocks, levels). Waits only bound it where
    ``return_ns`` is None."""
    out = np.zeros((int(block[-1]) + 1, len(levels)))
    step = max(1, 4_000_000 // len(levels))
    for low in range(0, len(block), step):
        part = slice(low, low + step)
        over_us = (evidence.ahead_ns[part, None] - levels) / 1_000
        launch, exact, blocked = evidence.launch[part], evidence.exact[part], evidence.blocked[part]
        cost = np.zeros(over_us.shape)
        most_us = np.where(evidence.warm[part], _ABOVE_US, _COLD_US)[launch, None]
        cost[launch] = np.where(
            over_us[launch] > 0, np.minimum(over_us[launch], most_us), np.minimum(-2 * over_us[launch], _BELOW_US)
        )
        cost[exact] = np.clip(2 * over_us[exact], 0, _BELOW_US)
        if return_ns is not None:
            cost[blocked] += np.minimum(np.abs(over_us[blocked] + return_ns / 1_000) / 2, _WAIT_US)
        np.add.at(out, block[part], cost)
    return out


def cheapest(costs: F64, change_us: F64) -> I64:
    """Return the level of each block on the cheapest path, a change to block k costing ``change_us[k]`` (Viterbi)."""
    total, best = costs[0], np.zeros(len(costs), np.int64)
    changed = np.zeros(costs.shape, np.bool_)
    for k in range(1, len(costs)):
        best[k] = int(total.argmin())
        jump = total[best[k]] + change_us[k]
        changed[k] = jump < total
        total = np.minimum(total, jump) + costs[k]
    at = int(total.argmin())
    out = np.zeros(len(costs), np.int64)
    for k in range(len(costs) - 1, -1, -1):
        out[k] = at
        if changed[k, at]:
            at = int(best[k])
    return out
