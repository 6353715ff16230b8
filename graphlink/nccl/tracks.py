"""Rows of a timeline for the channels of NCCL: blocks of kernels, and what the steps of proxies waited for (docs/nccl.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from graphlink.model import I32, I64, NOWHERE, Bool, DeviceRows
from graphlink.nccl.noted import SideFiles
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.records import DumpClock, NcclJoin
from graphlink.pairs import numbered_pairs
from graphlink.perfetto.packets import Arg, Texts, Track
from graphlink.perfetto.slices import Slices, flat, lanes

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


@dataclass(frozen=True, slots=True)
class _Found:
    """Slices of one dump on the clock of the trace; one entry a slice. ``NOWHERE``: not known."""

    channel: I64
    role: I64
    start_ns: I64
    end_ns: I64
    name: list[str]
    communicator: list[str]
    numbers: dict[str, I32 | I64]


def channel_rows(files: SideFiles, device: DeviceRows, epoch_ns: int, ended_ns: int, first_track: int, texts: Texts) -> ChannelRows:
    """What the dumps whose clock is known hold of this rank between two moments, in ns since the first. O(n log n).

    A block without an end has no length. ``first_track``: how many rows the process has before.
    """
    found = [
        part
        for number, (dump, clock) in enumerate(zip(files.dumps, files.join.clocks, strict=True))
        for part in _of_dump(_Calls.of(dump, number, files.join, device), clock, epoch_ns, ended_ns)
        if len(part.channel)
    ]
    channel, role, start, end = (_joined([getattr(p, name) for p in found]) for name in ("channel", "role", "start_ns", "end_ns"))
    start = np.maximum(start, epoch_ns)
    end = np.maximum(start, end)
    group = channel * len(_ROLES) + role
    rows, track = numbered_pairs(group, lanes(start, end, group))
    tracks = [
        Track(0, f"NCCL channel {g // len(_ROLES)}{_ROLES[g % len(_ROLES)]}", order=1 + first_track + k) for k, (g, _) in enumerate(rows)
    ]
    names = {name: k for k, name in enumerate(dict.fromkeys(name for p in found for name in p.name))}
    code = np.array([names[name] for p in found for name in p.name], np.int32)
    slices = flat(track.reshape(-1).astype(np.int32), start - epoch_ns, end - epoch_ns, code)
    return ChannelRows(tuple(tracks), slices, tuple(names), tuple(_args(found, texts)))


@dataclass(frozen=True, slots=True)
class _Calls:
    """The calls of a dump, with one more entry at the end for what belongs to none that is known.

    ``own``: of this rank, as far as that can be told: it was matched, or its communicator has no other rank in this file.
    """

    dump: Dump
    own: Bool
    function: list[str]
    communicator: list[str]
    seq: I64
    correlation: I64

    @staticmethod
    def of(dump: Dump, number: int, join: NcclJoin, device: DeviceRows) -> _Calls:
        calls, mine = dump.calls, np.flatnonzero(join.dump == number)
        correlation = np.full(len(calls.rank) + 1, NOWHERE, np.int64)
        op, matched = join.op[mine], join.call[mine]
        on_device = ~join.ops.on_host[op]
        correlation[matched[on_device]] = device.correlation[join.ops.row[op[on_device]]]
        callers = np.unique(np.stack([calls.communicator, calls.rank], axis=1), axis=0)[:, 0]
        alone = np.bincount(callers + 1, minlength=len(dump.communicators) + 1) == 1
        own = np.append(alone[calls.communicator + 1], bool(np.all(alone[callers + 1])))
        own[matched] = True
        return _Calls(
            dump,
            own,
            [dump.strings[k] for k in calls.function.tolist()] + [KERNEL],
            [dump.communicators[k].key if k != NOWHERE else "" for k in calls.communicator.tolist()] + [""],
            np.append(calls.seq, NOWHERE),
            correlation,
        )


def _of_dump(calls: _Calls, clock: DumpClock, epoch_ns: int, ended_ns: int) -> Sequence[_Found]:
    def inside(start_ns: I64, end_ns: I64) -> Bool:
        """A dump may hold much more of a run than the trace."""
        kept: Bool = (np.maximum(start_ns, end_ns) >= epoch_ns) & (start_ns <= ended_ns)
        return kept

    return [*_kernels(calls, clock, inside), *_steps(calls, clock, inside)]


def _kernels(calls: _Calls, clock: DumpClock, inside: Callable[[I64, I64], Bool]) -> list[_Found]:
    """By the GPU's clock where it is known, else by the host's."""
    kernels = calls.dump.kernels
    start, end = np.zeros(len(kernels.call), np.int64), np.zeros(len(kernels.call), np.int64)
    for offset_ns, begins, ends in (
        (clock.offset_ns, kernels.start_ns, kernels.end_ns),
        (clock.gpu_offset_ns, kernels.gpu_start_ns, kernels.gpu_end_ns),
    ):
        if offset_ns is not None:
            start, end = (np.where(own != 0, own + offset_ns, known) for own, known in ((begins, start), (ends, end)))
    shown = np.flatnonzero((start != 0) & calls.own[kernels.call] & inside(start, end))
    call = kernels.call[shown]
    names = [calls.function[c] for c in call.tolist()]
    return [_found(calls, call, kernels.channel[shown], np.zeros(len(shown), np.int64), start[shown], end[shown], names, {})]


def _steps(calls: _Calls, clock: DumpClock, inside: Callable[[I64, I64], Bool]) -> list[_Found]:
    steps, proxies = calls.dump.steps, calls.dump.proxies
    if clock.offset_ns is None:
        return []
    start, end = steps.start_ns + clock.offset_ns, steps.end_ns + clock.offset_ns
    timed = (steps.start_ns != 0) & (steps.end_ns != 0)
    shown = np.flatnonzero(timed & calls.own[proxies.call[steps.proxy]] & inside(start, end))
    proxy = steps.proxy[shown]
    names = [STATES[State(k)] for k in steps.state[shown].tolist()]
    numbers: dict[str, I32 | I64] = {"peer": proxies.peer[proxy], "step": steps.step[shown], "bytes": proxies.bytes[proxy]}
    role = np.where(proxies.sends[proxy], 1, 2)
    return [_found(calls, proxies.call[proxy], proxies.channel[proxy], role, start[shown], end[shown], names, numbers)]


def _found(
    calls: _Calls,
    call: I32,
    channel: I32,
    role: I64,
    start_ns: I64,
    end_ns: I64,
    names: list[str],
    numbers: dict[str, I32 | I64],
) -> _Found:
    return _Found(
        channel=channel.astype(np.int64),
        role=role,
        start_ns=start_ns,
        end_ns=end_ns,
        name=names,
        communicator=[calls.communicator[c] for c in call.tolist()],
        numbers={**numbers, "nccl_seq": calls.seq[call], "correlation": calls.correlation[call]},
    )


def _args(found: Sequence[_Found], texts: Texts) -> list[Arg]:
    first = np.cumsum([0, *(len(p.channel) for p in found)])
    args = []
    for name in _NUMBERS:
        slices, values = [], []
        for part, at in zip(found, first.tolist(), strict=False):
            value = part.numbers.get(name)
            if value is not None:
                there = np.flatnonzero(value != NOWHERE)
                slices.append(at + there)
                values.append(value[there].astype(np.int64))
        args.append(Arg(name, _joined(slices), _joined(values)))
    words = [word for p in found for word in p.communicator]
    said = np.flatnonzero(np.array([bool(word) for word in words], np.bool_))
    return [*args, texts.arg("communicator", said, [words[k] for k in said.tolist()], np.arange(len(said)))]


def _joined(parts: Sequence[I64]) -> I64:
    return np.concatenate([np.zeros(0, np.int64), *parts])
