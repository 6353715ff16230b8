"""What may be worth a change in a run, found in its outputs: each kind of advice with its evidence and the what-if that
tells its gain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import asdict, replace

from graphlink.advice.heaviest import heaviest
from graphlink.advice.on_host import (
    COPIES,
    TO_HOST,
    allocators,
    blocking_syncs,
    data_loading,
    launch_bound,
    once,
    optimizers,
)
from graphlink.advice.outputs import Candidate, Outputs, idle_ns_of, ns_of, ranks_of, scaled, where_called, whose_work
from graphlink.advice.records import Advice, Kind
from graphlink.advice.uneven import aside, compilations, pauses, stragglers, uneven
from graphlink.gpu.table import spent
from graphlink.graph_model import EdgeKind, NodeType
from graphlink.model import NOWHERE, Bool
from graphlink.patterns import LAYOUT, UserPattern, escaped
from graphlink.records import counted, ms, percent, shares_words
from graphlink.replay.buckets import turns_of
from graphlink.replay.changes import BucketChange, Changes, Selector, TimeChange
from graphlink.replay.times import QUICKEST
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.spans import overlap_ns, union
from graphlink.tables import how_many, marked, sums

_OVERLAP: Final = (
    "overlap it: other gradient buckets, prefetch of shards, other parallel sizes; with all ranks linked look at "
    "graphlink critical-path DIR --across"
)
_MESSAGES: Final = (
    "begin to send and to receive before the result is needed (isend, irecv), send less (bf16); with all ranks linked "
    "look at graphlink critical-path DIR --across"
)
_OF_COPIES: Final = (  # what names of copies say of their memory, in words, and what to do; the first that a name fits
    ("-> Pageable", "to pageable memory", TO_HOST),
    (
        "Pageable",
        "from pageable memory",
        "copy the next batch early, while this step computes: pin_memory=True of the DataLoader, then "
        "to(device, non_blocking=True), on a stream of its own",
    ),
    (r"PtoP|Peer", "between GPUs", "begin copies between GPUs earlier, on a stream of their own"),
    (
        r"(?i)DtoD|device ?to ?device",
        "within a GPU",
        "fuse copies within a GPU with the kernels around them (torch.compile), and leave out those that are not "
        "needed (contiguous(), clone(), cat)",
    ),
    (
        "Pinned",
        "from or to pinned memory",
        "begin copies of pinned memory earlier, on a stream of their own, beside kernels, and copy less, in fewer and "
        "larger pieces",
    ),
    (
        "",
        "of memory of which the recording does not tell whether it is pinned",
        "pin the host's memory (pin_memory=True) and copy with non_blocking=True, if that is not so yet; else a stream "
        "of their own, beside kernels",
    ),
)
_SETS: Final = re.compile(r"(?i)memset|fill_?buffer")
_PARTS: Final = {
    "schedule": "the schedule itself",
    "imbalance": "unequal stages",
    "communication": "transfers",
    "rest": "all else",
}
_OF_STAGES: Final = {  # what to do by the part of idle time that is largest, and by its cause where no theory tells it
    "schedule": "more microbatches, another schedule",
    "imbalance": "equal stages: layers of those that take longest to others",
    "communication": "begin to send and to receive earlier, send less (bf16)",
    "exposed_communication": "begin to send and to receive earlier, send less (bf16)",
    "dependency_stall": "make the stages that others wait for quicker, and as quick each time (their host, other "
    "processes on their cores)",
    "straggler_wait": "let the rank that arrives last arrive on time",
    "launch_starved": "less Python between microbatches, larger microbatches",
    "host_sync": "no synchronisation between microbatches",
    "data_loading": "load data ahead",
    "memory_management": "keep sizes equal, so that nothing is allocated",
}
_CONTIGUOUS: Final = r"(?:^|/)aten::contiguous(?:/|$)"
_MOST: Final = 0.9  # of the time of such kernels, in copies; of that of copies, in kinds that are worth a change
_JOINED: Final = (2, 4, 8, 64)  # buckets in one, that are tried
_USUAL: Final = 8  # where nothing but their calls is saved
MIB: Final = 1 << 20
MOST_KERNELS: Final = 12  # names in a pattern
HALVED: Final[tuple[Kind, ...]] = ("heaviest_work", "tensor_cores")  # whose gain is that of half of the time
_MATRIX: Final = re.compile(
    r"(?i)gemm|gemv|conv|[dw]grad|winograd|fft|fmha|attention|lstm|gru|rnn"
)  # else it serves one: layouts, sums
_POINTWISE: Final = re.compile(
    r"^(?!.*Fused)(?:.*(?:elementwise|multi_tensor_apply|triton_poi|FillFunctor|CUDAFunctor))"
)


def candidates(run: Outputs) -> Iterator[Candidate]:
    """Return what may be worth a change, whatever it gains. Linear in nodes, but n log n in synchronisation edges."""
    return (candidate for kind in _KINDS for candidate in kind(run))


def _exposed(run: Outputs) -> Iterator[Candidate]:
    devices = [one for rank in ranks_of(run) for one in rank.gpu]
    of_comm = run.work.per_file(lambda file: file.type)[run.work.work == Work.COMM]
    messages = np.isin(of_comm, (NodeType.COMM_SEND, NodeType.COMM_RECV)).sum()
    excluded_ns = sum(one.excluded_ns or 0 for one in devices)
    excluded = f"; {ms(excluded_ns)} ms more of waiting, in collectives that are excluded, are not counted"
    of_copies, todo = _copied(run.work)
    sorts: tuple[tuple[Kind, Work, str, int, int, str, str], ...] = (
        (
            "exposed_communication",
            Work.COMM,
            "communication that no computation hides",
            spent(devices)["exposed_comm_ns"],
            sum(one.comm_ns for one in devices) - excluded_ns,
            excluded * bool(excluded_ns),
            _MESSAGES if 2 * messages > len(of_comm) else _OVERLAP,
        ),
        (
            "copies",
            Work.COPY,
            "copies that nothing hides",
            sum(one.exposed_copy_ns for one in devices),
            sum(one.copy_ns for one in devices),
            of_copies,
            todo,
        ),
    )
    for kind, sort, what, exposed_ns, whole_ns, which, todo in sorts:
        if (run.work.work == sort).any() and todo:
            yield Candidate(
                Advice(
                    kind=kind,
                    what=what,
                    evidence=f"{ms(exposed_ns)} ms of {ms(whole_ns)} ms are exposed{which}"
                    if whole_ns
                    else _on_host(run),
                    todo=todo,
                    supposed="if all of it took no time; "
                    + "what ranks wait for that others compute stays; " * (sort == Work.COMM and todo == _MESSAGES)
                    + "a real change saves less",
                ),
                scaled((sort, "", 0)),
                "communication" if sort == Work.COMM else COPIES,
            )


def _on_host(run: Outputs) -> str:
    """Return what communication took that no device runs, all ranks together: where they are matched, waiting apart."""
    whole = run.summary.run
    if (
        whole is None
        or len(run.ranks) < len(run.summary.ranks)
        or not (meetings := [one for group in whole.groups for one in group.collectives])
    ):
        return f"{ms(int(run.work.cost_ns[run.work.work == Work.COMM].sum()))} ms on the host (gloo), with its waiting"
    waited, moved = (ms(sum(getattr(one, name) for one in meetings)) for name in ("wait_ns", "transfer_ns"))
    return (
        f"on the host (gloo) ranks waited {waited} ms for others, and transfers took {moved} ms, on all ranks "
        "together, also where other work went on meanwhile"
    )


def _copied(work: Workload) -> tuple[str, str]:
    """Return of which memory copies are, by how long each sort is exposed (of those that are hidden, takes), and what
    to do about the sorts that take most; "" where nothing was copied, but memory set. O(n log n) in nodes."""
    sets, begin_ns, took_ns = names_found(work, _SETS), work.column("start_ns"), work.column("duration_ns")
    copies, busy = (work.work == Work.COPY) & ~sets, np.isin(work.work, (Work.KERNEL, Work.COMM)) | sets
    if not copies.any():
        return "", ""
    _, device = np.unique(np.stack([work.member, work.column("device")]), axis=1, return_inverse=True)
    begin_ns = begin_ns + device.ravel() * (int((begin_ns + took_ns).max()) + 1)  # one device behind the other
    end_ns = begin_ns + took_ns
    hidden_ns = overlap_ns(union(begin_ns[busy], end_ns[busy]), begin_ns[copies], end_ns[copies])
    exposed_ns = took_ns[copies] - (hidden_ns if (hidden_ns < took_ns[copies]).any() else 0)
    which = np.argmax([names_found(work, re.compile(pattern))[copies] for pattern, *_ in _OF_COPIES], axis=0)
    spent = Counter(dict(enumerate(sums(len(_OF_COPIES), which, exposed_ns).tolist()))).most_common()
    before_ns = np.cumsum([0, *(ns for _, ns in spent)])
    most = [_OF_COPIES[k][2] for (k, _), ns in zip(spent, before_ns, strict=False) if ns < _MOST * before_ns[-1]]
    return f": {shares_words({_OF_COPIES[k][1]: ns for k, ns in spent}, int(before_ns[-1]))}", "; ".join(most)


def _buckets(run: Outputs) -> Iterator[Candidate]:
    """Return fewer collectives, each of several, where devices wait for communication a hundredth of the time, or each
    takes the host longer than a device. Where nothing tells what joined ones take, they save their calls alone."""
    work, measured_ns = run.work, sum(rank.replay.measured_ns for rank in ranks_of(run))
    exposed_ns = spent([one for rank in ranks_of(run) for one in rank.gpu])["exposed_comm_ns"]
    groups = turns_of(work, BucketChange(join=_JOINED[0])).values()
    in_series = [own for by_rank, _ in groups for own in by_rank.values()]
    nodes = marked(len(work), np.concatenate(in_series)) if in_series else work.work == Work.COMM
    nodes &= work.column("device") >= 0
    count, sizes, calls = how_many(nodes), work.column("comm_size")[nodes], _calling(run, nodes)
    if not count:
        return
    host = TimeChange(path=UserPattern(f"(?:^|/)(?:{'|'.join(calls)})(?:/|$)", "advice"), sort="host", scale=0)
    host_ns = int(work.cost_ns[run.selection.nodes(host)].sum()) if calls else 0
    quickest_ns = int(np.quantile((work.cost_ns - work.fixed_ns)[nodes], QUICKEST))
    small = 100 * host_ns >= measured_ns and host_ns > count * quickest_ns
    lengths = [len(turns) for _, series in groups for turns in series] or [count]
    longest = max(lengths) * bool(groups)
    joins = [(times, True) for fewer, times in pairwise((0, *_JOINED)) if fewer < longest]  # more: the same buckets
    joins = joins if 100 * exposed_ns >= measured_ns or small else []
    small = small and (longest >= _USUAL or (not longest and _only_copied(work, nodes)))
    joins += [(_USUAL, False)] * small
    for times, known in joins:
        size_mib, left = float(np.median(sizes)) / MIB, sum(-(-length // times) for length in lengths) / sum(lengths)
        capacity = f" (bucket_cap_mb of DDP: at least {max(times * size_mib, 1):,.0f})" * bool(size_mib)
        yield Candidate(
            Advice(
                kind="small_collectives" if small else "exposed_communication",
                what="many small collectives, each of which takes the host longer than the network"
                if small
                else "communication that no computation hides",
                evidence=f"{ms(exposed_ns)} ms are exposed, in {counted(count, 'collective')}"
                + f" of usually {size_mib:,.3f} MiB" * bool(size_mib)
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
                buckets=(BucketChange(join=times),) if known else (),
            ),
            "communication",
        )


def _only_copied(work: Workload, nodes: Bool) -> bool:
    """Tell whether other streams wait for nine of ten ``nodes`` to copy what they gave: nothing else needs it yet."""
    waits = work.work[work.target[nodes[work.source] & (work.kind == EdgeKind.EVENT)]]
    return how_many(waits == Work.COPY) > _MOST * len(waits)


def _calling(run: Outputs, nodes: Bool) -> set[str]:
    """Return the outermost ops and ranges in which nothing but ``nodes`` of devices is launched, as patterns."""
    (of_node, paths), launcher = run.selection.paths, run.selection.launched_by
    on_device = (launcher != NOWHERE) & (run.work.column("host") == 0)
    others = {name for path in np.unique(of_node[launcher[on_device & ~nodes]]).tolist() for name in paths[path]}
    own = (paths[path] for path in np.unique(of_node[launcher[on_device & nodes]]).tolist())
    names = {next((name for name in path if name not in others), "") for path in own}
    return {escaped(name) for name in names - {""}}


def _bubbles(run: Outputs) -> Iterator[Candidate]:
    pipeline = getattr(run.summary, "pipeline", None)
    if not pipeline or pipeline.stages < 2:
        return
    causes, parts = pipeline.causes_ns, {} if pipeline.theory is UNSET else asdict(pipeline.theory.parts_ns)
    whole_ns = parts.pop("measured", 0)
    part = max(parts, key=parts.__getitem__, default="schedule")
    cause = max(causes.keys() & _OF_STAGES.keys(), key=causes.__getitem__, default="") if part == "rest" else part
    idle = pipeline.bubble_rate_makespan
    share = "" if idle is UNSET else f", {percent(idle, 1)} of the time of its steps"
    told = shares_words({_PARTS[name]: ns for name, ns in parts.items()}, whole_ns)
    yield Candidate(
        Advice(
            kind="pipeline_bubble",
            what="stages of the pipeline stand idle",
            evidence=f"{ms(sum(causes.values()))} ms on {counted(pipeline.stages, 'rank')}{share}, the largest cause is"
            f" {max(causes, key=causes.__getitem__, default='')}"
            + f"; its parts: {told} (graphlink bubbles DIR)"
            * bool(told),
            todo=_OF_STAGES.get(cause, _OF_STAGES["schedule"]),
            why_not="another schedule is another program: graphlink bubbles DIR --schedule zb-h1 --input-share 0.5 "
            "simulates one"
            if part == "schedule"
            else f"no replay changes that alone; another schedule could save only its own part, "
            f"{percent(parts['schedule'], whole_ns)} of that time",
        ),
        None,
    )


def _tensor_cores(run: Outputs) -> Iterator[Candidate]:
    without = Counter[str]()
    other: set[str] = set()
    type_ns = unused_ns = 0
    for file in run.operations.values():
        of = file.tensor_cores
        type_ns += of.other_type_ns
        unused_ns += of.eligible_ns - of.eligible_used_ns - of.eligible_unknown_ns
        for operation in file.operations:
            could = operation.tensor_cores.eligible_ns > 0
            for kernel in operation.kernels:
                if could and kernel.tensor_cores == "not_used" and _MATRIX.search(kernel.whole_name):
                    without[kernel.whole_name] += kernel.ns
                else:
                    other.add(kernel.whole_name)
    ns = without.total()
    if not ns:
        return
    named = [name for name, _ in without.most_common(MOST_KERNELS) if name not in other]
    pattern = _telling(named, other)
    types = f"; at least {ms(type_ns)} ms of them have inputs that tensor cores do not take (float32 without TF32)"
    rest = f"; another {ms(unused_ns - ns)} ms of their kernels use none either, but by their names do other work "
    rest += "(layouts, sums)"
    nodes = names_found(run.work, re.compile(pattern)) & (run.work.work == Work.KERNEL) & bool(named)
    yield Candidate(
        Advice(
            kind="tensor_cores",
            what="matrix products and convolutions without tensor cores",
            evidence=f"of matrix products and convolutions, kernels that multiply without tensor cores take {ms(ns)} "
            f"ms{where_called(whose_work(run, nodes))}{rest * (unused_ns > ns)}{types * bool(type_ns)}",
            todo=f"{run.tools.types}; sizes that are multiples of 8",
            supposed=f"if the {counted(len(named), 'kernel')} with most time took half of it",
            why_not="" if named else "other ops run the same kernels",
        ),
        scaled((Work.KERNEL, pattern, 0.5)) if named else None,
    )


def _kernels_beside(run: Outputs) -> Iterator[Candidate]:
    """Return kernels that other layouts or fused ops would spare, by name."""
    kinds: tuple[tuple[Kind, re.Pattern[str], str, str, str, str], ...] = (
        (
            "layout_conversions",
            LAYOUT,
            "conversions between layouts (NCHW, NHWC) around convolutions",
            "cuDNN multiplies in NHWC",
            "model and inputs to(memory_format=torch.channels_last), with the convolutions in half precision or TF32",
            "if these kernels took no time",
        ),
        (
            "small_kernels",
            _POINTWISE,
            "elementwise ops that run as kernels of their own",
            "each reads and writes all of its data",
            "torch.compile or fused layers (bias, activation, normalisation, optimizer) join them",
            "if these kernels took no time; fusing them saves a part of that, and their launches too",
        ),
    )
    for kind, pattern, what, why, todo, supposed in kinds:
        names = {name for file in run.work.files for name in file.strings if pattern.search(name)}
        ns = ns_of(run, pattern.pattern, Work.KERNEL)
        if names and ns:
            nodes = names_found(run.work, pattern) & (run.work.work == Work.KERNEL)
            evidence = f"{ms(ns)} ms in kernels of {counted(len(names), 'name')}, {why}"
            evidence += where_called(whose_work(run, nodes))
            yield Candidate(
                Advice(kind=kind, what=what, evidence=evidence, todo=todo, supposed=supposed),
                scaled((Work.KERNEL, pattern.pattern, 0)),
                "pointwise" if kind == "small_kernels" else "",
            )


def _contiguous(run: Outputs) -> Iterator[Candidate]:
    """Return copies into another layout: ``contiguous()`` copies only what has another one."""
    copied = run.selection.nodes(Selector(sort="kernel", path=UserPattern(_CONTIGUOUS, "advice")))
    if copied.any():
        single = names_found(run.work, _POINTWISE) & (run.work.work == Work.KERNEL)
        same = run.work.cost_ns[copied & single].sum() >= _MOST * run.work.cost_ns[single].sum()
        yield Candidate(
            Advice(
                kind="layout_conversions",
                what="contiguous() copies tensors into another layout",
                evidence=f"{ms(int(run.work.cost_ns[copied].sum()))} ms in {counted(int(copied.sum()), 'kernel')}"
                + where_called(whose_work(run, copied)),
                todo="one layout for model and inputs (memory_format=torch.channels_last for convolutions), so that "
                "contiguous(), after permute() or transpose(), has nothing to copy",
                supposed="if these kernels took no time",
            ),
            Changes((TimeChange(sort="kernel", path=UserPattern(_CONTIGUOUS, "advice"), scale=0),)),
            "pointwise" if same else "",
        )


def _late_starts(run: Outputs) -> Iterator[Candidate]:
    if not (run.work.work == Work.KERNEL).any() or not (
        (run.work.work == Work.DELAY).any() or (run.work.fixed_ns > 0).any()
    ):
        return
    idle_ns, unknown_ns = (idle_ns_of(run, cause) for cause in ("start_delay", "unknown"))
    known = idle_ns > unknown_ns
    usual_us = float(np.median(run.work.fixed_ns[run.work.work == Work.KERNEL])) / 1000
    late_ns = np.where(run.work.work == Work.DELAY, run.work.cost_ns, run.work.fixed_ns) - round(usual_us * 1000)
    late_ns = late_ns[late_ns > 0]
    yield Candidate(
        Advice(
            kind="late_starts",
            what="device ops begin late, and nothing recorded explains it",
            evidence=f"{counted(len(late_ns), 'device op')} began {ms(int(late_ns.sum()))} ms later than usual; "
            f"GPUs were idle for {ms(idle_ns)} ms after launches"
            + (f", and {ms(unknown_ns)} ms for unknown reasons" if unknown_ns else "")
            + run.recorded,
            todo=f"look for another process on the GPU ({run.tools.processes}), and record again"
            + ", with torch.cuda.synchronize() before the first recorded step" * (not known)
            + "; graphlink doctor tells what the recording lacks",
            supposed=f"if none began later than usual, {usual_us:,.1f} us after it could",
            why_not=""
            if known
            else "most of that time lies behind graph launches, or launches that are not recorded: graphlink idle DIR",
        ),
        Changes((TimeChange(sort="delay", most_us=usual_us),)) if known else None,
    )


def _profiler(run: Outputs) -> Iterator[Candidate]:
    if ns := idle_ns_of(run, "profiler_artefact"):
        yield Candidate(
            Advice(
                kind="profiler",
                what="the profiler itself delays the run",
                evidence=f"GPUs were idle for {ms(ns)} ms for it{run.recorded}",
                todo="fewer activities, shorter windows; stacks and shapes only in a recording of their own",
                why_not="it is no part of the run that is recorded",
            ),
            None,
        )


def _memory(run: Outputs) -> Iterator[Candidate]:
    """Return how full the fullest GPU was: as nvidia-smi logged it, else as PyTorch's allocator did, which does not
    know of others.
    """
    logs = getattr(run.summary, "logs", None)
    logged = [
        (round(one.memory_used_mib.max * MIB), round(one.memory_total_mib * MIB))
        for log in (logs.nvidia_smi if logs else ())
        for one in log.gpus
        if one.memory_used_mib is not None and one.memory_used_mib.max is not None and one.memory_total_mib
    ]
    held = [
        (one.reserved_bytes, one.total_bytes)
        for rank in ranks_of(run)
        for one in (rank.memory if rank.memory is not UNSET else ())
        if one.total_bytes
    ]
    used = logged or held
    if not used:
        return
    most, total = max(used, key=lambda one: one[0] / one[1])
    yield Candidate(
        Advice(
            kind="memory",
            what="memory of the GPUs is left",
            evidence=f"at most {most / MIB:,.0f} of {total / MIB:,.0f} MiB were "
            f"{'in use (nvidia-smi)' if logged else 'reserved by PyTorch'}",
            todo="a larger batch, less recomputation or offloading",
            why_not="a larger batch is another program",
        ),
        None,
    )


_KINDS: Final[tuple[Callable[[Outputs], Iterable[Candidate]], ...]] = (
    stragglers,
    data_loading,
    optimizers,
    allocators,
    compilations,
    pauses,
    aside,
    uneven,
    launch_bound,
    blocking_syncs,
    _exposed,
    _buckets,
    _bubbles,
    _tensor_cores,
    _contiguous,
    _kernels_beside,
    _late_starts,
    _profiler,
    _memory,
    once,
    heaviest,  # the last: of equal gains the first stands first, and others say more
)


def _telling(names: list[str], other: set[str]) -> str:
    """Return a pattern that finds the names and none of the others: of each the shortest beginning that no
    other has.
    """
    parts = []
    for name in names:
        size = next(
            (n for n in range(min(24, len(name)), len(name)) if not any(one.startswith(name[:n]) for one in other)),
            len(name),
        )
        parts.append(escaped(name[:size]) + ("$" if size == len(name) else ""))
    return f"^(?:{'|'.join(dict.fromkeys(parts))})"
