"""What may be worth a change in communication: what nothing hides, gradients in other buckets, small collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from math import ceil
from typing import Final

import numpy as np
from msgspec.structs import replace

from graphlink.advice.outputs import Candidate, Outputs, ranks_of, scaled
from graphlink.advice.records import Advice
from graphlink.gpu.fact import unseen
from graphlink.gpu.table import spent
from graphlink.graph_model import EdgeKind, NodeType
from graphlink.model import NOWHERE, Bool
from graphlink.patterns import UserPattern, escaped
from graphlink.records import counted, ms
from graphlink.replay.buckets import turns_of
from graphlink.replay.changes import BucketChange, Changes, TimeChange
from graphlink.replay.times import QUICKEST
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.tables import how_many, marked

MIB: Final = 1 << 20
BOUNDED: Final = "if all of it took no time; a real change saves less"
_JOINED: Final = (2, 4, 8, 64)  # buckets in one, that are tried
_USUAL: Final = 8  # where nothing but their calls is saved
_LEAST_MB: Final = 50  # of a bucket that is larger than those of DDP, which have 25 unless told
_ONLY: Final = 0.9  # of what waits for collectives, in copies
_EXPOSED: Final = "communication that no computation hides"
_ACROSS: Final = "with all ranks linked look at graphlink critical-path DIR --across"
_WRAPPED: Final = re.compile(r"(?:_?c10d\w*|nccl|gloo)::?\w|record_param_comms")  # a collective itself, as ops show it
_BACKWARD: Final = re.compile(r"(?!Compiled)\w*Backward\d*|torch::autograd::CppNode<.*>", re.DOTALL)
_HIDDEN: Final = {  # names of collectives -> how they can be hidden
    r"(?i)all_?reduce|reduce_?scatter": "other gradient buckets",
    r"(?i)all_?gather": "prefetch of shards",
    r"(?i)all_?to_?all|send_?recv": "let other work run meanwhile",
}
# whose communication it is -> what to do
_TODO: Final = {
    "messages": "begin to send and to receive before the result is needed (isend, irecv), send less (bf16); " + _ACROSS,
    "model": "layers need these results at once, as with tensor parallelism: let other work run meanwhile (Megatron: "
    "--sequence-parallel --tp-comm-overlap), or take fewer ranks for a group, on GPUs that NVLink joins",
    "": "overlap it: [how], other parallel sizes; " + _ACROSS,
}


def exposed(run: Outputs) -> Iterator[Candidate]:
    """Return communication that nothing hides, as if it took no time."""
    comm, cost_ns = run.work.work == Work.COMM, run.work.cost_ns
    if not comm.any():
        return
    devices = [one for rank in ranks_of(run) for one in rank.gpu]
    messages = np.isin(run.work.per_file(lambda file: file.type), (NodeType.COMM_SEND, NodeType.COMM_RECV))
    of_model = 2 * cost_ns[_of_model(run)].sum() > cost_ns[comm].sum()
    whose = "messages" if 2 * how_many(comm & messages) > how_many(comm) else "model" * bool(of_model)
    excluded_ns = sum(one.excluded_ns or 0 for one in devices)
    whole_ns = sum(one.comm_ns for one in devices) - excluded_ns
    others = unseen(run.summary.ranks)
    yield Candidate(
        Advice(
            kind="exposed_communication",
            what=_EXPOSED,
            evidence=f"{ms(spent(devices)['exposed_comm_ns'])} ms of {ms(whole_ns)} ms are exposed"
            + f"; {ms(excluded_ns)} ms more of waiting, in collectives that are excluded, are not counted"
            * bool(excluded_ns)
            + f"; {others}" * bool(others)
            if whole_ns
            else _on_host(run),
            todo="record the other ranks, too, and link all together: this shows who waits; then " * bool(others)
            + _TODO[whose].replace("[how]", _overlapping(run)),
            supposed=BOUNDED.replace(
                "; ", "; what ranks wait for that others compute stays; " if whose == "messages" else "; "
            ),
        ),
        scaled((Work.COMM, "", 0)),
        "communication",
    )


def _overlapping(run: Outputs) -> str:
    """Return how collectives of the sorts that are there can be hidden; gradients are reduced where there is a
    backward pass, or where no op is recorded, so that none could show."""
    names = {name for path in run.selection.paths[1] for name in path}
    trains = any("Backward" in name for name in names) or not any(name.startswith("aten::") for name in names)
    how = [
        text
        for k, (pattern, text) in enumerate(_HIDDEN.items())
        if (k or trains) and (names_found(run.work, re.compile(pattern)) & (run.work.work == Work.COMM)).any()
    ]
    return ", ".join(how) or "let other work run meanwhile"


def _of_model(run: Outputs) -> Bool:
    """Return the communication that an op of the model calls itself, forward (where there is an op of its name and
    ``Backward``) or backward, so that its results are needed at once. Gradients are reduced from hooks and ranges, or
    anywhere in what is compiled."""
    (of_node, paths), launcher = run.selection.paths, run.selection.launched_by
    names = {name for path in paths for name in path}
    callers = [next((name for name in reversed(path) if not _WRAPPED.match(name)), "") for path in paths]
    own = [any(map(_BACKWARD.fullmatch, {name, f"{name}Backward"} & names)) for name in callers]
    called = (launcher != NOWHERE) & (run.work.work == Work.COMM)
    return np.asarray(called & np.array(own, np.bool_)[of_node[launcher]])


def _on_host(run: Outputs) -> str:
    """Return what communication took that no device runs, all ranks together: where they are matched, waiting apart."""
    whole = run.summary.run
    if (
        whole is None
        or len(run.ranks) < len(run.summary.ranks)
        or not (meetings := [one for group in whole.groups for one in group.collectives])
    ):
        return f"{ms(int(run.work.cost_ns[run.work.work == Work.COMM].sum()))} ms on the host, with its waiting"
    waited, moved = (ms(sum(getattr(one, name) for one in meetings)) for name in ("wait_ns", "transfer_ns"))
    return (
        f"on the host ranks waited {waited} ms for others, and transfers took {moved} ms, on all ranks "
        "together, also where other work went on meanwhile"
    )


def buckets(run: Outputs) -> Iterator[Candidate]:
    """Return fewer collectives of gradients, each of several, where devices wait for communication a hundredth of the
    time, or each takes the host longer than a device. Where nothing tells what joined ones take, they save their calls
    alone."""
    work, measured_ns, of_model = run.work, sum(rank.replay.measured_ns for rank in ranks_of(run)), _of_model(run)
    exposed_ns = spent([one for rank in ranks_of(run) for one in rank.gpu])["exposed_comm_ns"]
    every = turns_of(work, BucketChange(join=_JOINED[0]))
    in_series = {key: marked(len(work), np.concatenate([*by_rank.values()])) for key, (by_rank, _) in every.items()}
    groups = {key: nodes for key, nodes in in_series.items() if 2 * how_many(nodes & of_model) <= how_many(nodes)}
    nodes = np.any([*groups.values()], axis=0) if groups else (work.work == Work.COMM) & ~of_model
    nodes &= work.column("device") >= 0
    count, sizes, calls = how_many(nodes), work.column("comm_size")[nodes], _calling(run, nodes)
    if not count:
        return
    host = TimeChange(path=UserPattern(f"(?:^|/)(?:{'|'.join(calls)})(?:/|$)", "advice"), sort="host", scale=0)
    host_ns = int(work.cost_ns[run.selection.nodes(host)].sum()) if calls else 0
    quickest_ns = int(np.quantile((work.cost_ns - work.fixed_ns)[nodes], QUICKEST))
    small = 100 * host_ns >= measured_ns and host_ns > count * quickest_ns
    lengths = [len(turns) for key in groups for turns in every[key][1]] or [count]
    longest = max(lengths) * bool(groups)
    joins = [(times, True) for fewer, times in pairwise((0, *_JOINED)) if fewer < longest]  # more: the same buckets
    joins = joins if 100 * exposed_ns >= measured_ns or small else []
    small = small and (longest >= _USUAL or (not longest and _only_copied(work, nodes)))
    joins += [(_USUAL, False)] * small
    of_groups = dict.fromkeys(None if len(groups) == len(every) else max(group, 0) or None for group, _ in groups)
    size_mib = float(np.median(sizes)) / MIB
    for times, known in joins:
        left = sum(-(-length // times) for length in lengths) / sum(lengths)
        capacity = f" (bucket_cap_mb={ceil(max(times * size_mib, _LEAST_MB))} of DDP, or more)" * bool(size_mib)
        yield Candidate(
            Advice(
                kind="small_collectives" if small else "exposed_communication",
                what="many small collectives, each of which takes the host longer than the network"
                if small
                else _EXPOSED,
                evidence=f"{ms(exposed_ns)} ms are exposed, in {counted(count, 'collective')}"
                + f" of usually {size_mib:,.3f} MiB" * bool(size_mib)
                + "".join(f"; {some}" for some in [unseen(run.summary.ranks)] if some)
                + f"; {ms(host_ns)} ms of host time in {', '.join(sorted(calls))}" * bool(calls),
                todo=f"larger buckets of gradients, {times} in one{capacity}"
                + "; of what your own code reduces, all_reduce one flat tensor in place of many" * small,
                supposed=f"if every {times} were one, "
                + (
                    "which costs its latency and its calls once" if known else "with the calls of one, and took as long"
                ),
            ),
            Changes(
                (replace(host, scale=round(left, 4)),) if calls else (),
                buckets=tuple(BucketChange(join=times, group=group) for group in of_groups) if known else (),
            ),
            "communication",
        )


def _only_copied(work: Workload, nodes: Bool) -> bool:
    """Tell whether other streams wait for nine of ten ``nodes`` to copy what they gave: nothing else needs it yet."""
    waits = work.work[work.target[nodes[work.source] & (work.kind == EdgeKind.EVENT)]]
    return how_many(waits == Work.COPY) > _ONLY * len(waits)


def _calling(run: Outputs, nodes: Bool) -> set[str]:
    """Return the outermost ops and ranges in which nothing but ``nodes`` of devices is launched, as patterns."""
    (of_node, paths), launcher = run.selection.paths, run.selection.launched_by
    on_device = (launcher != NOWHERE) & (run.work.column("host") == 0)
    others = {name for path in np.unique(of_node[launcher[on_device & ~nodes]]).tolist() for name in paths[path]}
    own = (paths[path] for path in np.unique(of_node[launcher[on_device & nodes]]).tolist())
    names = {next((name for name in path if name not in others), "") for path in own}
    return {escaped(name) for name in names - {""}}
