"""What side files of NCCL add to the graph and the timeline of a rank (docs/nccl.md): columns of communication nodes,
and rows for channels: blocks of kernels, and what the steps of proxies waited for.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from graphlink.graph.target import comm_nodes
from graphlink.graph_model import Column, Graph
from graphlink.model import I32, I64, NOWHERE, Bool, DeviceRows
from graphlink.nccl.read.records import Dump, State
from graphlink.nccl.summary import NcclClock, SideFiles
from graphlink.perfetto.packets import Arg, Rows, Track
from graphlink.perfetto.slices import flat, lanes
from graphlink.read.columns import Columns, Parts, Strings
from graphlink.read.kinds import DumpKind
from graphlink.tables import marked, nowhere, numbered_rows, numbered_texts, spread, sums

# Of several files with one op the first of these that tells something holds: NCCL's own before PyTorch's.
_ORDER: Final = (DumpKind.PLUGIN, DumpKind.INSPECTOR, DumpKind.PROXY, DumpKind.FLIGHT_RECORDER)
_TEXTS: Final = ("nccl_algorithm", "nccl_protocol", "nccl_comm")
_ABSENT: Final = dict.fromkeys(_TEXTS, 0) | dict.fromkeys(("nccl_seq", "nccl_channels", "nccl_wire_bytes"), NOWHERE)
_TIMES: Final = {
    "nccl_gpu_wait_ns": "gpu_ns",
    "nccl_peer_wait_ns": "peer_ns",
    "nccl_wire_ns": "wire_ns",
    "nccl_receive_ns": "receive_ns",
}
STATES: Final = {State.GPU: "GPU wait", State.PEER: "peer wait", State.WIRE: "wire", State.RECEIVE: "receive"}
KERNEL: Final = "kernel"  # of a call that the file does not tell
_ROLES: Final = ("", " send", " receive")  # of rows: blocks of kernels, and proxies
_NUMBERS: Final = ("peer", "step", "bytes", "nccl_seq", "correlation")


def columns(graph: Graph, files: SideFiles) -> dict[str, Column]:
    """Return the columns of side files for the communication nodes of ``graph``: texts, then integers.

    The four times are of the ops that the join could split. O(n log n) in matched pairs, proxies and nodes.
    """
    split = files.split
    of_op = details(files) | {name: Column.of(split.op, getattr(split, part)) for name, part in _TIMES.items()}
    node_of = comm_nodes(graph, files.ops)
    out = {}
    for name, column in of_op.items():
        node = node_of[column.node]
        out[name] = Column.of(node, column.value, node != NOWHERE, column.texts)
    return out


def details(files: SideFiles) -> dict[str, Column]:
    """Return the details that files record of matched ops, by name of the attribute, with ops in place of nodes.

    O(n log n) in pairs, linear in proxy ops.
    """
    ops, strings = np.unique(files.op), Strings()
    details = {name: np.full(len(ops), absent) for name, absent in _ABSENT.items()}
    for k, dump in sorted(enumerate(files.dumps), key=lambda pair: _ORDER.index(pair[1].kind), reverse=True):
        own = files.dump == k
        call, place = files.call[own], np.searchsorted(ops, files.op[own])
        calls, texts = dump.calls, strings.column(dump.strings)
        keys = strings.column([*(communicator.key for communicator in dump.communicators), ""])
        recorded = {
            "nccl_algorithm": texts[calls.algorithm[call]],
            "nccl_protocol": texts[calls.protocol[call]],
            "nccl_comm": keys[calls.communicator[call]],
            "nccl_seq": calls.seq[call],
            "nccl_channels": calls.channels[call],
            "nccl_wire_bytes": _sent(dump)[call],
        }
        for name, value in recorded.items():
            known = value != _ABSENT[name]
            details[name][place[known]] = value[known]
    return {
        name: Column.of(ops, value, value != _ABSENT[name], tuple(strings) if name in _TEXTS else ())
        for name, value in details.items()
    }


def _sent(dump: Dump) -> I64:
    """Return the bytes that the proxies of each call sent; NOWHERE where none is recorded."""
    proxies, count = dump.proxies, len(dump.calls.rank)
    known = proxies.sends & (proxies.call != NOWHERE) & (proxies.bytes != NOWHERE)
    call = proxies.call[known]
    return np.where(marked(count, call), sums(count, call, proxies.bytes[known]), NOWHERE)


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
    code, used = numbered_texts(found.column("name", np.int32).tolist())
    slices = flat(track.reshape(-1).astype(np.int32), start - epoch_ns, end - epoch_ns, code)
    every = np.arange(len(row))
    args = [Arg.known(key, every, found.column(key)) for key in _NUMBERS]
    communicator = found.column("communicator", np.int32)
    known = np.flatnonzero(communicator)
    args.append(Arg("communicator", known, np.arange(len(known)), [words[k] for k in communicator[known].tolist()]))
    return Rows(tuple(tracks), slices, tuple(words[name] for name in used), tuple(args))


def _calls(dump: Dump, number: int, files: SideFiles, device: DeviceRows, strings: Strings) -> tuple[Bool, Columns]:
    """Return which calls of a dump are of this rank, as far as that is known (it was matched, or its communicator has
    no other rank in this file), and what is reported of them: both with one more entry at the end for what belongs to
    none that is known."""
    calls, own_pairs = dump.calls, files.dump == number
    op, matched = files.op[own_pairs], files.call[own_pairs]
    on_device = ~files.ops.on_host[op]
    launched = device.correlation[files.ops.row[op[on_device]]]
    callers = numbered_rows(calls.communicator, calls.rank)[0][:, 0]
    alone = np.bincount(callers + 1, minlength=len(dump.communicators) + 1) == 1
    own = np.append(alone[calls.communicator + 1], bool(np.all(alone[callers + 1])))
    own[matched] = True
    return own, {
        "name": strings.column([*(dump.strings[k] for k in calls.function.tolist()), KERNEL]),
        "communicator": strings.column(
            [*(dump.communicators[k].key if k != NOWHERE else "" for k in calls.communicator.tolist()), ""]
        ),
        "nccl_seq": np.append(calls.seq, NOWHERE),
        "correlation": spread(len(calls.rank) + 1, matched[on_device], launched),
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
    nothing = nowhere(len(kernels.call))
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
