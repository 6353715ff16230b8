"""Write a computed pipeline step as graphs for simulators, one a rank: no recording stands behind them.

An action is a computation on the rank's compute stream, after the one before it. A transfer between ranks is a SEND on
the one and a RECV on the other, on a stream of its own for each boundary between virtual stages and direction. A RECV
depends on none but an earlier one that had ended, so it ends once its message is there, and only the action that needs
it waits for it.

The bytes of a transfer may not be known. Then ``comm_size`` is what goes over 50 GB/s in the time that it takes, so
that a simulator with this bandwidth, which ``graphlink astra`` finds in the graphs or takes without a measurement,
gives it that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from graphlink import output_names
from graphlink.errors import OutputError
from graphlink.graph.write_et import write_et
from graphlink.graph_model import SCHEMA_VERSION, Column, EdgeKind, Graph, Metadata, NodeType
from graphlink.model import I64, NOWHERE, TimedRows
from graphlink.pipeline.records import Pass
from graphlink.pipeline.schedules import ActionTimes, Order, Timed, inputs
from graphlink.publish import Publication, writing
from graphlink.tables import codes, concat, nowhere, numbered_texts, parted, take, tuples
from graphlink.version import __version__

PREFIX: Final = "trace"
_RECEIVE, _COMPUTE, _SEND, _END = range(4)  # sorts of nodes; of those that start together in this order
_TYPE: Final = np.array([NodeType.COMM_RECV, NodeType.COMP, NodeType.COMM_SEND, NodeType.COMP], np.int32)  # by sort
_PHASES: Final = ("forward", "backward", "input gradient", "weight gradient")  # by ``Pass``
_MAIN_THREAD: Final = 1
_BYTES_PER_NS: Final = 50


@dataclass(frozen=True, slots=True)
class _Messages(TimedRows):
    """Transfers between ranks. ``sender``, ``receiver``: ranks; ``after``, ``before``: the action of the sender that it
    leaves after, and of the receiver that needs it, by place in their orders. ``link``: a number for each boundary and
    direction; ``tag``: of the message.
    """

    sender: I64
    receiver: I64
    after: I64
    before: I64
    link: I64
    tag: I64
    size_bytes: I64


@dataclass(frozen=True, slots=True)
class _Nodes(TimedRows):
    """The nodes of a rank. ``at``: the place of an action in its order, of a transfer in the messages."""

    sort: I64
    at: I64
    stream: I64


def write(folder: Path, orders: Sequence[Order], timed: Timed, times: ActionTimes) -> list[str]:
    """Write a graph for each rank into ``folder``, all of them or none, and return their names.

    Raises:
        OutputError: the folder has such files already, or cannot be written.
    """
    names = []
    try:
        with Publication(folder, force=False) as publication:
            for rank, graph in enumerate(graphs(orders, timed, times)):
                names.append(output_names.graph(PREFIX, rank))
                with writing(publication.beside / names[-1]) as out:
                    write_et(out, graph)
            publication.publish()
    except OutputError as problem:
        raise OutputError(problem.what, path=problem.path, todo="make room, or name another folder with --et") from None
    return names


def graphs(
    orders: Sequence[Order],
    timed: Timed,
    times: ActionTimes,
    made: str | None = None,
    size_bytes: tuple[int, int] | None = None,
) -> Iterator[Graph]:
    """Yield the graph of each rank of a step.

    ``times``: those that it was played with; ``made``: what its file says it was made by; ``size_bytes``: of
    activations and of gradients, where they are known.
    """
    messages = _messages(orders, timed, times, size_bytes)
    for rank, order in enumerate(orders):
        coming, going = (np.flatnonzero(ranks == rank) for ranks in (messages.receiver, messages.sender))
        nodes = _nodes(timed.start_ns[rank], timed.end_ns[rank], messages, coming, going)
        yield _graph(Metadata(SCHEMA_VERSION, __version__, 0, rank, len(orders), made=made), order, nodes, messages)


def _messages(
    orders: Sequence[Order], timed: Timed, times: ActionTimes, size_bytes: tuple[int, int] | None
) -> _Messages:
    first = np.cumsum([0, *map(len, orders)])
    rank = np.repeat(np.arange(len(orders)), np.diff(first))
    place = np.arange(first[-1]) - first[rank]
    actions = concat(*orders)
    producer, lag_ns = inputs(orders, first, times)
    needs = np.flatnonzero((producer != NOWHERE) & (rank[producer] != rank))
    made = producer[needs]
    after = made + actions.paired[made]  # a pair starts and ends as one
    start = np.concatenate(timed.end_ns)[after]
    lag, gradients = lag_ns[needs], actions.phase[made] != Pass.F
    size = (
        np.maximum(_BYTES_PER_NS * lag, 1)
        if size_bytes is None
        else np.array(size_bytes, np.int64)[gradients.astype(np.int64)]
    )
    return _Messages(
        sender=rank[made],
        receiver=rank[needs],
        after=place[after],
        before=place[needs] - np.append(False, actions.paired)[needs],
        start_ns=start,
        end_ns=start + lag,
        link=2 * actions.stage[made] + gradients,
        tag=np.arange(len(needs)),
        size_bytes=size,
    )


def _nodes(start_ns: I64, end_ns: I64, messages: _Messages, coming: I64, going: I64) -> _Nodes:
    """Return the nodes of a rank in the order of their ids, by start; the end of the rank is the last."""
    last = np.concatenate([end_ns, messages.end_ns[coming], messages.end_ns[going]]).max(initial=0)
    moved = np.concatenate([coming, going])
    sort = np.repeat([_COMPUTE, _RECEIVE, _SEND, _END], [len(start_ns), len(coming), len(going), 1])
    links = 2 * messages.link[moved] + np.repeat([0, 1], [len(coming), len(going)])
    nodes = _Nodes(
        sort=sort,
        at=np.concatenate([np.arange(len(start_ns)), moved, [0]]),
        start_ns=np.concatenate([start_ns, messages.start_ns[moved], [last]]),
        end_ns=np.concatenate([end_ns, messages.end_ns[moved], [last]]),
        stream=np.concatenate([np.zeros(len(start_ns), np.int64), 1 + codes(links), [0]]),
    )
    return take(nodes, np.lexsort((nodes.at, nodes.sort, nodes.start_ns)))


def _edges(nodes: _Nodes, messages: _Messages) -> tuple[I64, I64, I64]:
    """Return target, source and kind of each dependency, by target, then source."""
    receives, compute, sends, _ = parted(nodes.sort, 4)
    parts = [
        (compute[1:], compute[:-1], EdgeKind.STREAM),
        (sends, compute[messages.after[nodes.at[sends]]], EdgeKind.EVENT),
        (compute[messages.before[nodes.at[receives]]], receives, EdgeKind.EVENT),
    ]
    for stream in range(1, int(nodes.stream.max()) + 1):
        mine = np.flatnonzero(nodes.stream == stream)
        # the last one that had ended; where they overlap, that is not the one before
        ended = (
            np.minimum(np.searchsorted(nodes.end_ns[mine], nodes.start_ns[mine], side="right"), np.arange(len(mine)))
            - 1
        )
        parts.append((mine[ended >= 0], mine[ended[ended >= 0]], EdgeKind.STREAM))
    leaves = np.setdiff1d(np.arange(len(nodes.sort) - 1), np.concatenate([source for _, source, _ in parts]))
    parts.append((np.full(len(leaves), len(nodes.sort) - 1), leaves, EdgeKind.SYNC))
    target, source = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    kind = np.repeat([int(kind) for *_, kind in parts], [len(part[0]) for part in parts])
    order = np.lexsort((source, target))
    return target[order], source[order], kind[order]


def _graph(metadata: Metadata, order: Order, nodes: _Nodes, messages: _Messages) -> Graph:
    count, none = len(nodes.sort), np.zeros(len(nodes.sort), np.int64)
    target, source, kind = _edges(nodes, messages)
    host = nodes.sort == _END
    names = (_name(sort, at, order, messages) for sort, at in tuples(nodes.sort, nodes.at))
    name, strings = numbered_texts(["", *names])
    return Graph(
        metadata=metadata,
        strings=strings,
        name=name[1:],
        type=_TYPE[nodes.sort],
        host=host,
        start_ns=nodes.start_ns,
        end_ns=nodes.end_ns,
        duration_ns=nodes.end_ns - nodes.start_ns,
        self_ns=none,
        wait_ns=none,
        wake_ns=none,
        start_delay_ns=none,
        launch_latency_ns=none,
        overlap_ns=none,
        tid=np.where(host, _MAIN_THREAD, 0),
        device=none,
        stream=nodes.stream,
        caller=nowhere(count, np.int32),
        first=np.searchsorted(target, np.arange(count + 1)),
        source=source.astype(np.int32),
        edge_kind=kind.astype(np.uint8),
        columns=_columns(metadata.world_size or 1, order, nodes, messages),
    )


def _name(sort: int, at: int, order: Order, messages: _Messages) -> str:
    if sort == _END:
        return "end"
    if sort == _COMPUTE:
        return f"{_PHASES[order.phase[at]]} of stage {order.stage[at]}"
    stage, gradients = divmod(int(messages.link[at]), 2)
    return f"{'send' if sort == _SEND else 'receive'} {'gradients' if gradients else 'activations'} of stage {stage}"


def _columns(ranks: int, order: Order, nodes: _Nodes, messages: _Messages) -> dict[str, Column]:
    receives, compute, sends, _ = parted(nodes.sort, 4)
    both = np.concatenate([sends, receives])
    action, message = nodes.at[compute], nodes.at[both]
    return {
        "pipeline_stage": Column.of(compute, order.stage[action]),
        "pipeline_microbatch": Column.of(compute, order.microbatch[action]),
        "pipeline_chunk": Column.of(compute, order.stage[action] // ranks),
        "pipeline_phase": Column.of(compute, order.phase[action], texts=tuple(phase.name for phase in Pass)),
        "comm_size": Column.of(both, messages.size_bytes[message]),
        "comm_src": Column.of(receives, messages.sender[nodes.at[receives]]),
        "comm_dst": Column.of(sends, messages.receiver[nodes.at[sends]]),
        "comm_tag": Column.of(both, messages.tag[message]),
    }
