"""Rows of a timeline for the channels of NCCL: blocks of kernels, and what the steps of proxies waited for (docs/nccl.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, DeviceRows
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.records import SideFiles
from graphlink.nccl.summary import NcclClock
from graphlink.pairs import numbered_pairs
from graphlink.perfetto.packets import Arg, Track
from graphlink.perfetto.slices import Slices, flat, lanes
from graphlink.read.columns import Parts, Strings

STATES: Final = {State.GPU: "GPU wait", State.PEER: "peer wait", State.WIRE: "wire", State.RECEIVE: "receive"}
KERNEL: Final = "kernel"  # of a call that the file does not tell
_ROLES: Final = ("", " send", " receive")  # of rows: blocks of kernels, and proxies
_NUMBERS: Final = ("peer", "step", "bytes", "nccl_seq", "correlation")


@dataclass(frozen=True, slots=True)
class ChannelRows:
    """``slices`` name rows of ``tracks`` and texts of ``names``, both from 0; ``args`` are of slices from 0."""

    tracks: tuple[Track, ...]
    slices: Slices
    names: tuple[str, ...]
    args: tuple[Arg, ...]


def channel_rows(files: SideFiles, device: DeviceRows, epoch_ns: int, ended_ns: int, first_track: int) -> ChannelRows:
    """Return what the dumps whose clock is known hold of this rank between two moments, in ns since the first. O(n log n).

    A block without an end has no length. ``first_track``: how many rows the process has before.
    """
    found, strings = Parts(), Strings()
    for number, (dump, clock) in enumerate(zip(files.dumps, files.clocks, strict=True)):
        calls = _Calls.of(dump, number, files, device, strings)
        _add_kernels(found, calls, clock, epoch_ns, ended_ns)
        if clock.offset_ns is not None:
            _add_steps(found, calls, clock.offset_ns, epoch_ns, ended_ns, strings)
    start = np.maximum(found.column("start_ns"), epoch_ns)
    end = np.maximum(start, found.column("end_ns"))
    row = found.column("channel") * len(_ROLES) + found.column("role")
    rows, track = numbered_pairs(row, lanes(start, end, row))
    tracks = [
        Track(0, f"NCCL channel {r // len(_ROLES)}{_ROLES[r % len(_ROLES)]}", order=1 + first_track + k) for k, (r, _) in enumerate(rows)
    ]
    words = list(strings)
    name = found.column("name", np.int32)
    used = {code: k for k, code in enumerate(dict.fromkeys(name.tolist()))}
    code = np.array([used[one] for one in name.tolist()], np.int32)
    slices = flat(track.reshape(-1).astype(np.int32), start - epoch_ns, end - epoch_ns, code)
    args = []
    for key in _NUMBERS:
        value = found.column(key)
        known = np.flatnonzero(value != NOWHERE)
        args.append(Arg(key, known, value[known]))
    communicator = found.column("communicator", np.int32)
    known = np.flatnonzero(communicator)
    args.append(Arg("communicator", known, np.arange(len(known)), [words[k] for k in communicator[known].tolist()]))
    return ChannelRows(tuple(tracks), slices, tuple(words[one] for one in used), tuple(args))


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of a dump, with one more entry at the end for what belongs to none that is known.

    ``own``: of this rank, as far as that is known: it was matched, or its communicator has no other rank in this file.
    """

    dump: Dump
    own: Bool
    function: I32  # these two: texts
    communicator: I32
    seq: I64
    correlation: I64

    @staticmethod
    def of(dump: Dump, number: int, files: SideFiles, device: DeviceRows, strings: Strings) -> _Calls:
        calls, mine = dump.calls, np.flatnonzero(files.dump == number)
        correlation = np.full(len(calls.rank) + 1, NOWHERE, np.int64)
        op, matched = files.op[mine], files.call[mine]
        on_device = ~files.ops.on_host[op]
        correlation[matched[on_device]] = device.correlation[files.ops.row[op[on_device]]]
        callers = np.unique(np.stack([calls.communicator, calls.rank], axis=1), axis=0)[:, 0]
        alone = np.bincount(callers + 1, minlength=len(dump.communicators) + 1) == 1
        own = np.append(alone[calls.communicator + 1], bool(np.all(alone[callers + 1])))
        own[matched] = True
        return _Calls(
            dump,
            own,
            strings.column([*(dump.strings[k] for k in calls.function.tolist()), KERNEL]),
            strings.column([*(dump.communicators[k].key if k != NOWHERE else "" for k in calls.communicator.tolist()), ""]),
            np.append(calls.seq, NOWHERE),
            correlation,
        )

    def columns(self, call: I32) -> dict[str, I32 | I64]:
        """Return what slices of ``call`` say of it."""
        return {"communicator": self.communicator[call], "nccl_seq": self.seq[call], "correlation": self.correlation[call]}


def _add_kernels(found: Parts, calls: _Calls, clock: NcclClock, epoch_ns: int, ended_ns: int) -> None:
    """Add blocks of kernels, by the GPU's clock where it is known, else by the host's."""
    kernels = calls.dump.kernels
    start, end = np.zeros(len(kernels.call), np.int64), np.zeros(len(kernels.call), np.int64)
    for offset_ns, begins, ends in (
        (clock.offset_ns, kernels.start_ns, kernels.end_ns),
        (clock.gpu_offset_ns, kernels.gpu_start_ns, kernels.gpu_end_ns),
    ):
        if offset_ns is not None:
            start, end = (np.where(own != 0, own + offset_ns, known) for own, known in ((begins, start), (ends, end)))
    shown = np.flatnonzero((start != 0) & calls.own[kernels.call] & _inside(start, end, epoch_ns, ended_ns))
    call = kernels.call[shown]
    nothing = np.full(len(shown), NOWHERE, np.int64)
    found.add(
        **calls.columns(call),
        channel=kernels.channel[shown].astype(np.int64),
        role=np.zeros(len(shown), np.int64),
        start_ns=start[shown],
        end_ns=end[shown],
        name=calls.function[call],
        peer=nothing,
        step=nothing,
        bytes=nothing,
    )


def _add_steps(found: Parts, calls: _Calls, offset_ns: int, epoch_ns: int, ended_ns: int, strings: Strings) -> None:
    steps, proxies = calls.dump.steps, calls.dump.proxies
    start, end = steps.start_ns + offset_ns, steps.end_ns + offset_ns
    timed = (steps.start_ns != 0) & (steps.end_ns != 0)
    shown = np.flatnonzero(timed & calls.own[proxies.call[steps.proxy]] & _inside(start, end, epoch_ns, ended_ns))
    proxy = steps.proxy[shown]
    found.add(
        **calls.columns(proxies.call[proxy]),
        channel=proxies.channel[proxy].astype(np.int64),
        role=np.where(proxies.sends[proxy], 1, 2),
        start_ns=start[shown],
        end_ns=end[shown],
        name=strings.column([STATES[state] for state in State])[steps.state[shown]],
        peer=proxies.peer[proxy].astype(np.int64),
        step=steps.step[shown],
        bytes=proxies.bytes[proxy],
    )


def _inside(start_ns: I64, end_ns: I64, epoch_ns: int, ended_ns: int) -> Bool:
    """Return what lies in the trace: a dump may hold much more of a run."""
    kept: Bool = (np.maximum(start_ns, end_ns) >= epoch_ns) & (start_ns <= ended_ns)
    return kept
