"""Rows of a timeline for the channels of NCCL: blocks of kernels, and what the steps of proxies waited for
(docs/nccl.md).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from graphlink.model import I32, NOWHERE, Bool, DeviceRows
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.records import SideFiles
from graphlink.nccl.summary import NcclClock
from graphlink.perfetto.packets import Arg, Rows, Track
from graphlink.perfetto.slices import flat, lanes
from graphlink.read.columns import Parts, Strings
from graphlink.tables import numbered_rows

STATES: Final = {State.GPU: "GPU wait", State.PEER: "peer wait", State.WIRE: "wire", State.RECEIVE: "receive"}
KERNEL: Final = "kernel"  # of a call that the file does not tell
_ROLES: Final = ("", " send", " receive")  # of rows: blocks of kernels, and proxies
_NUMBERS: Final = ("peer", "step", "bytes", "nccl_seq", "correlation")
Columns = dict[str, NDArray[Any]]


def channel_rows(files: SideFiles, device: DeviceRows, epoch_ns: int, ended_ns: int) -> Rows:
    """Return what the dumps whose clock is known hold of this rank between two moments, in ns since the first. O(n log
    n).

    A block without an end has no length.
    """
    found, strings = Parts(), Strings()
    for number, (dump, clock) in enumerate(zip(files.dumps, files.clocks, strict=True)):
        own, said = _calls(dump, number, files, device, strings)
        for call, columns in (_kernels(dump, clock), _steps(dump, clock, strings)):
            start, end = columns["start_ns"], columns["end_ns"]
            inside = (np.maximum(start, end) >= epoch_ns) & (start <= ended_ns)  # a dump may hold much more of a run
            shown = np.flatnonzero((start != 0) & own[call] & inside)
            of_call = {name: column[call[shown]] for name, column in said.items()}
            found.add(**of_call | {name: column[shown] for name, column in columns.items()})
    start = np.maximum(found.column("start_ns"), epoch_ns)
    end = np.maximum(start, found.column("end_ns"))
    row = found.column("channel") * len(_ROLES) + found.column("role")
    rows, track = numbered_rows(row, lanes(start, end, row))
    tracks = [Track(0, f"NCCL channel {r // len(_ROLES)}{_ROLES[r % len(_ROLES)]}") for r, _ in rows.tolist()]
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
    return Rows(tuple(tracks), slices, tuple(words[one] for one in used), tuple(args))


def _calls(dump: Dump, number: int, files: SideFiles, device: DeviceRows, strings: Strings) -> tuple[Bool, Columns]:
    """Return which calls of a dump are of this rank, as far as that is known (it was matched, or its communicator has
    no other rank in this file), and what is reported of them: both with one more entry at the end for what belongs to
    none that is known."""
    calls, mine = dump.calls, np.flatnonzero(files.dump == number)
    correlation = np.full(len(calls.rank) + 1, NOWHERE, np.int64)
    op, matched = files.op[mine], files.call[mine]
    on_device = ~files.ops.on_host[op]
    correlation[matched[on_device]] = device.correlation[files.ops.row[op[on_device]]]
    callers = np.unique(np.stack([calls.communicator, calls.rank], axis=1), axis=0)[:, 0]
    alone = np.bincount(callers + 1, minlength=len(dump.communicators) + 1) == 1
    own = np.append(alone[calls.communicator + 1], bool(np.all(alone[callers + 1])))
    own[matched] = True
    return own, {
        "name": strings.column([*(dump.strings[k] for k in calls.function.tolist()), KERNEL]),
        "communicator": strings.column(
            [*(dump.communicators[k].key if k != NOWHERE else "" for k in calls.communicator.tolist()), ""]
        ),
        "nccl_seq": np.append(calls.seq, NOWHERE),
        "correlation": correlation,
    }


def _kernels(dump: Dump, clock: NcclClock) -> tuple[I32, Columns]:
    """Return the calls of blocks of kernels, and their rows: by the GPU's clock where it is known, else by the
    host's.
    """
    kernels = dump.kernels
    start, end = np.zeros((2, len(kernels.call)), np.int64)
    for offset_ns, begins, ends in (
        (clock.offset_ns, kernels.start_ns, kernels.end_ns),
        (clock.gpu_offset_ns, kernels.gpu_start_ns, kernels.gpu_end_ns),
    ):
        if offset_ns is not None:
            start, end = (np.where(own != 0, own + offset_ns, known) for own, known in ((begins, start), (ends, end)))
    nothing = np.full(len(kernels.call), NOWHERE, np.int64)
    return kernels.call, {
        "channel": kernels.channel.astype(np.int64),
        "role": np.zeros(len(kernels.call), np.int64),
        "start_ns": start,
        "end_ns": end,
        "peer": nothing,
        "step": nothing,
        "bytes": nothing,
    }


def _steps(dump: Dump, clock: NcclClock, strings: Strings) -> tuple[I32, Columns]:
    """Return the calls of steps of proxies, and their rows."""
    steps, proxies = dump.steps, dump.proxies
    timed = (steps.start_ns != 0) & (steps.end_ns != 0) & (clock.offset_ns is not None)
    return proxies.call[steps.proxy], {
        "channel": proxies.channel[steps.proxy].astype(np.int64),
        "role": np.where(proxies.sends[steps.proxy], 1, 2),
        "start_ns": np.where(timed, steps.start_ns + (clock.offset_ns or 0), 0),
        "end_ns": steps.end_ns + (clock.offset_ns or 0),
        "name": strings.column([STATES[state] for state in State])[steps.state],
        "peer": proxies.peer[steps.proxy].astype(np.int64),
        "step": steps.step,
        "bytes": proxies.bytes[steps.proxy],
    }
