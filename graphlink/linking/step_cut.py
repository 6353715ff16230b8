"""Cuts a recording down to some of its steps (``--step``)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from graphlink.errors import UsageError
from graphlink.linking.clocks import on_host_clock
from graphlink.linking.launch import link
from graphlink.model import I64, NOWHERE, Bool, HostMatch, Trace
from graphlink.records import Short, first_few
from graphlink.steps import PROFILER_STEP, steps_of
from graphlink.tables import how_many, take, tuples

ALL: Final = "all"
_ASKED: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_NUMBER: Final = re.compile(r".*?(\d{1,18})\D*", re.DOTALL)  # the last of a step's name
_SHOWN: Final = 12  # step numbers that an error lists


class Steps(msgspec.Struct, frozen=True):
    """The steps asked for: numbers as the marks have them, both ends included."""

    first: int
    last: int


class Cut(Short, msgspec.Struct, frozen=True):
    """A recording of some steps and its pairing with the ET."""

    trace: Trace
    match: HostMatch


def parse_steps(asked: str) -> Steps | None:
    """Parse ``all`` (None), ``3`` or ``2-5`` (both ends included).

    Raises:
        UsageError: it is none of these.
    """
    if asked == ALL:
        return None
    found = _ASKED.fullmatch(asked)
    if found is None or (found[2] and int(found[2]) < int(found[1])):
        raise UsageError(f"--step {asked}: neither all, nor a number (3), nor a range (2-5)")
    return Steps(int(found[1]), int(found[2] or found[1]))


def cut(trace: Trace, match: HostMatch, steps: Steps) -> Cut:
    """Keep what belongs to ``steps``; O(n log n).

    Host rows and calls stay if they start from the first mark's start up to the last mark's end, on whatever thread;
    device ops and synchronisation rows stay with their call, and without one by their own start. What goes is counted
    in ``left_out`` of the result. The pairing is made on the whole recording before, since order in it needs all rows.

    Raises:
        UsageError: the recording has no such step.
    """
    low, high = _span(trace, match, steps)

    def within(start_ns: I64) -> Bool:
        return (start_ns >= low) & (start_ns < high)

    host, calls = within(trace.host.start_ns), within(trace.calls.start_ns)
    kept_calls, all_calls = trace.calls.correlation[calls], trace.calls.correlation

    def of_kept_call(correlation: I64, start_ns: I64) -> Bool:
        has_call = (correlation != 0) & np.isin(correlation, all_calls)
        return np.where(has_call, np.isin(correlation, kept_calls), within(start_ns))

    device = of_kept_call(trace.device.correlation, trace.device.start_ns)
    syncs = of_kept_call(trace.syncs.correlation, trace.syncs.start_ns)
    events = np.isin(trace.events.correlation, kept_calls)
    flows = within(trace.flows.fwd_ns) & within(trace.flows.bwd_ns)
    gone = {
        f"{what} of other steps": how_many(~kept)
        for what, kept in (("host rows", host), ("calls", calls), ("device ops", device), ("cuda_sync rows", syncs))
        if not kept.all()
    }
    small = replace(
        trace,
        host=take(trace.host, host),
        calls=take(trace.calls, calls),
        device=take(trace.device, device),
        syncs=take(trace.syncs, syncs),
        events=take(trace.events, events),
        flows=take(trace.flows, flows),
        overhead=take(trace.overhead, within(trace.overhead.start_ns)),
        left_out={**trace.left_out, **gone},
    )
    pairs = match.et[host]
    alone = small.host.name[pairs == NOWHERE]
    names, counts = np.unique(alone, return_counts=True)
    only_kineto = {trace.strings[k]: n for k, n in tuples(names, counts)}
    return Cut(small, replace(match, et=pairs, only_kineto=only_kineto))


def _span(trace: Trace, match: HostMatch, steps: Steps) -> tuple[int, int]:
    number, start_ns, end_ns = _numbered(trace, match)
    there = np.unique(number).tolist()
    missing = next((n for n in range(steps.first, steps.last + 1) if n not in there), None) if there else steps.first
    if missing is not None:
        names = first_few(there, _SHOWN)
        raise UsageError(
            f"there is no step {missing} in the recording",
            path=trace.path,
            todo=f"choose among its steps with --step: {names}" if there else "leave out --step: it has no steps",
        )
    mine = (number >= steps.first) & (number <= steps.last)
    return int(start_ns[mine].min()), int(end_ns[mine].max())


def _numbered(trace: Trace, match: HostMatch) -> tuple[I64, I64, I64]:
    """Return number, start and end of each ``ProfilerStep#N``; without any of the steps as ``steps_of`` finds them, by
    the number in their names, else in order.

    Those that a kernel begins are cut where it was launched, as the host may be steps ahead of the device.
    """
    marks = [PROFILER_STEP.fullmatch(text) for text in trace.strings]
    number = np.array([int(mark[1]) if mark else NOWHERE for mark in marks], np.int64)[trace.host.name]
    mine = np.flatnonzero(number != NOWHERE)
    if len(mine):
        return number[mine], trace.host.start_ns[mine], trace.host.end_ns[mine]
    linked = link(on_host_clock(trace), None, match)
    found, device, calls = steps_of(linked), linked.trace.device, linked.trace.calls
    last = [_NUMBER.fullmatch(name) for name in found.names]
    numbers = np.array([int(told[1]) if told else k for k, told in enumerate(last, 1)], np.int64)
    named = np.array([text == found.key for text in trace.strings], np.bool_)
    row = np.flatnonzero(named[device.name] & (linked.device_call != NOWHERE))
    if named[trace.host.name].any() or not len(row):
        return numbers, found.start_ns, found.end_ns
    start_ns, end_ns = (
        np.where(device.start_ns[at] == ns, calls.start_ns[linked.device_call[at]], ns)
        for ns in (found.start_ns, found.end_ns)
        for at in (row[np.minimum(np.searchsorted(device.start_ns[row], ns), len(row) - 1)],)
    )
    return numbers, start_ns, end_ns
