"""What may be worth a change in a run, found in its outputs: each kind of advice with its evidence and the what-if that
tells its gain.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, log2
from typing import Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from graphlink.advice.records import Advice, Kind
from graphlink.graph.families import PYTHON
from graphlink.model import NOWHERE
from graphlink.operations.records import Operations
from graphlink.patterns import LOADER, UserPattern
from graphlink.records import counted, ms, percent, shortened
from graphlink.replay.changes import (
    MOST_WORKERS,
    SORT_OF,
    Changes,
    GraphChange,
    LoaderChange,
    TimeChange,
    WaitChange,
)
from graphlink.replay.loader import BY_WORKERS, loaders_of
from graphlink.replay.syncs import RUNTIME_CALL, awaited, blocked_ns, sync_waits, waiting_lines, waiting_ops
from graphlink.replay.times import QUICKEST, launches
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.report.summary import Rank, Summary, once_words
from graphlink.tables import codes

MOST_SYNCS: Final = 5  # ops that wait, of which the gains are computed
MIB: Final = 1 << 20
MOST_KERNELS: Final = 12  # names in a pattern
HALVED: Final[tuple[Kind, ...]] = ("heaviest_work", "tensor_cores")  # whose gain is that of half of the time
_PART: Final = " (cont.)"
_MATRIX: Final = re.compile(
    r"(?i)gemm|gemv|conv|[dw]grad|winograd|fft|fmha|attention|lstm|gru|rnn"
)  # else it serves one: layouts, sums
_ON_DEVICE: Final = (
    "the GPU",
    "no .item(), .cpu(), print or nonzero of device tensors in the step; copies with pinned memory and "
    "non_blocking=True",
)
_ON_RANKS: Final = (
    "other ranks",
    "send earlier, wait later (async_op=True), give all ranks equal work; graphlink critical-path DIR --across",
)
# what may be worth a change, and the what-if that computes its gain: None where none does, and ``why_not`` says why
Candidate = tuple[Advice, Changes | None]  # commands in texts are of the folder ``DIR``
_LAYOUT: Final = re.compile(r"(?i)nchwToNhwc|nhwcToNchw")
_POINTWISE: Final = re.compile(r"elementwise|multi_tensor_apply|triton_poi|FillFunctor|CUDAFunctor")


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a run has written, of the ranks that advice is for."""

    summary: Summary
    ranks: tuple[int, ...]
    work: Workload
    operations: Mapping[int, Operations]


def candidates(run: Outputs) -> Iterator[Candidate]:
    """Yield what may be worth a change, whatever it gains. Linear in nodes, but n log n in synchronisation edges."""
    for kind in _KINDS:
        yield from kind(run)


def _scaled(*scales: tuple[Work, str, float], rank: int | None = None) -> Changes:
    """Return a what-if: sorts of work, patterns of names ("" = all) and factors; of one rank, if it is set."""
    return Changes(
        tuple(
            TimeChange(
                sort=SORT_OF[work], name=UserPattern(pattern, "advice") if pattern else None, scale=factor, rank=rank
            )
            for work, pattern, factor in scales
        )
    )


def _data_loading(run: Outputs) -> Iterator[Candidate]:
    names = {name.removesuffix(_PART) for file in run.work.files for name in file.strings}
    loaders = sorted({_escaped(name.split("#")[0]) for name in names if LOADER.fullmatch(name)})
    if not loaders:
        return
    idle_ns = _idle_ns(run, "data_loading")
    idle = f"; GPUs were idle for {ms(idle_ns)} ms meanwhile" if idle_ns else ""
    what, more = "the run waits for its data", "prefetch_factor, pin_memory=True; decode and augment before the run"
    workers, making_ns = _workers(run.work)
    if workers:
        yield (
            Advice(
                kind="data_loading",
                what=what,
                evidence=f"the main thread made its batches itself, in {ms(making_ns)} ms of host time{idle}",
                todo=f"num_workers={workers} of the DataLoader, {more}",
                supposed=f"if {counted(workers, 'worker')} made the batches, on cores of their own",
            ),
            Changes(dataloader=(LoaderChange(workers=workers),)),
        )
        return
    pattern = f"^(?:{'|'.join(loaders)})"
    yield (
        Advice(
            kind="data_loading",
            what=what,
            evidence=f"the loader took {ms(_ns_of(run.work, pattern, Work.HOST))} ms of host time{idle}",
            todo=f"more workers of the DataLoader (num_workers), {more}",
            supposed="if the loader itself took no time; the ops that it calls keep theirs",
        ),
        _scaled((Work.HOST, pattern, 0)),
    )


def _workers(work: Workload) -> tuple[int, int]:
    """Return how many workers make batches as fast as the rest of the main thread takes them, the next power of two,
    and what the batches take it in ns; 0 workers where it has some already, or makes none."""
    owner, _ = loaders_of(work)
    made = (owner != NOWHERE) & (work.work == Work.HOST)
    heads = np.unique(owner[made])
    if not len(heads) or any(BY_WORKERS in work.name(head) for head in heads.tolist()):
        return 0, 0
    thread = codes(work.member, work.column("tid"))
    host = (work.work == Work.HOST) & np.isin(thread, thread[heads])
    making_ns, all_ns = int(work.cost_ns[made].sum()), int(work.cost_ns[host].sum())
    needed = making_ns / max(all_ns - making_ns, 1)
    return min(1 << max(ceil(log2(needed)), 1) if needed else 2, MOST_WORKERS), making_ns


def _launch_bound(run: Outputs) -> Iterator[Candidate]:
    """Return how much launches cost: the quickest ops with one do little else, and what they take is what each launch
    costs the host.
    """
    work = run.work
    idle_ns = sum(_idle_ns(run, cause) for cause in ("host_work", "python"))
    of_node, kernels = launches(work), work.cost_ns[work.work == Work.KERNEL]
    alone = work.cost_ns[(of_node == 1) & (work.work == Work.HOST) & (work.cost_ns > 0)]
    if not len(alone) or not len(kernels):
        return
    launch_ns = int(np.quantile(alone, QUICKEST))
    short = percent(int(np.count_nonzero(kernels < launch_ns)), len(kernels))
    idle = Advice(
        kind="launch_bound",
        what="GPUs wait for the host to launch work",
        evidence=f"GPUs were idle for {ms(idle_ns)} ms while the host was in ops or Python; "
        f"{counted(int(of_node.sum()), 'launch call')}, each costs the host {launch_ns / 1000:,.1f} us (as in the "
        f"quickest ops); {short} of the kernels take less time than one launch call",
        todo="CUDA graphs (torch.cuda.graph, torch.compile(mode='reduce-overhead')) of each step, or of what lies "
        "between waits: shapes have to be the same each time, and a graph keeps its memory",
        supposed="if each step, or each part of it between what no graph can hold, were one launch of a CUDA graph",
    )
    yield idle, Changes(cuda_graph=(GraphChange(auto=True),))
    yield (
        replace(
            idle,
            todo="fused optimizers, torch.compile, fewer and larger ops, fewer Python layers",
            supposed=f"if each launch call took {launch_ns / 1000:,.1f} us less",
        ),
        Changes((TimeChange(launch_us=-launch_ns / 1000),)),
    )


def _blocking_syncs(run: Outputs) -> Iterator[Candidate]:
    """Return the ops that wait longest, for a device or, where what they wait for is on none, for messages of other
    ranks.
    """
    waited, count, on_device = Counter[str](), Counter[str](), Counter[str]()
    calls: dict[str, set[str]] = defaultdict(set)
    causes: dict[str, Counter[str]] = defaultdict(Counter)
    blocked, device = blocked_ns(run.work), run.work.column("device")
    for wait in sync_waits(run.work):
        ops = waiting_ops(wait)
        for op in ops[:1]:
            waited[op] += int(blocked[wait.targets[0]])
            count[op] += 1
            on_device[op] += bool((device[list(wait.sources)] >= 0).any())
            calls[op] |= {name for name in wait.names if RUNTIME_CALL.fullmatch(name)}
            causes[op][run.work.name(awaited(run.work, wait))] += 1
    for op, ns in waited.most_common(MOST_SYNCS):
        by = f" ({', '.join(sorted(calls[op] - {op}))})" if calls[op] - {op} else ""
        line = "".join(
            f", most from {at} ({ms(took)} ms)" for at, took in waiting_lines(run.operations, op).most_common(1)
        )
        whom, todo = _ON_DEVICE if on_device[op] else _ON_RANKS
        waits = counted(count[op], "wait") + " in Python between ops" * (op == PYTHON)
        cause = shortened(causes[op].most_common(1)[0][0])
        yield (
            Advice(
                kind="blocking_sync",
                what=f"{cause if op == PYTHON else shortened(op)} makes the host wait for {whom}",
                evidence=f"{waits}{by}{f', {ms(ns)} ms in all' if ns else ''}, most often for {cause}{line}",
                todo=todo,
                supposed="if the host did not wait there",
            ),
            Changes(wait=(WaitChange(which=op, remove=True),)),
        )


def _exposed(run: Outputs) -> Iterator[Candidate]:
    devices = [one for rank in _ranks(run) for one in rank.gpu]
    sorts: tuple[tuple[Kind, Work, str, int, int, str], ...] = (
        (
            "exposed_communication",
            Work.COMM,
            "communication that no computation hides",
            sum(one.exposed_comm_ns for one in devices),
            sum(one.comm_ns for one in devices),
            "overlap it: other gradient buckets, prefetch of shards, other parallel sizes; with all ranks linked look "
            "at "
            "graphlink critical-path DIR --across",
        ),
        (
            "copies",
            Work.COPY,
            "copies that nothing hides",
            sum(one.exposed_copy_ns for one in devices),
            sum(one.copy_ns for one in devices),
            "pinned memory and non_blocking=True, a stream of their own, fewer and larger copies",
        ),
    )
    for kind, sort, what, exposed_ns, whole_ns, todo in sorts:
        mine = run.work.work == sort
        if mine.any():
            on_host = f"{ms(int(run.work.cost_ns[mine].sum()))} ms on the host (gloo), all ranks added up"
            yield (
                Advice(
                    kind=kind,
                    what=what,
                    evidence=f"{ms(exposed_ns)} ms of {ms(whole_ns)} ms are exposed" if whole_ns else on_host,
                    todo=todo,
                    supposed="if all of it took no time; a real change saves less",
                ),
                _scaled((sort, "", 0)),
            )


def _stragglers(run: Outputs) -> Iterator[Candidate]:
    whole = run.summary.run
    if whole is None or whole.straggler is None:
        return
    waited_ns = sum(one.wait_ns for one in whole.waits if one.rank in run.ranks)
    look = "idle" if any(one.gpu for one in _ranks(run)) else "critical-path"
    scales = _slower(run, whole.straggler.rank)
    yield (
        Advice(
            kind="straggler",
            what=f"rank {whole.straggler.rank} comes late to communication",
            evidence=f"{whole.straggler.evidence}; all ranks waited {ms(waited_ns)} ms in communication",
            todo=f"compare graphlink {look} DIR --rank {whole.straggler.rank} with another rank: data, host, GPU "
            "clock, share of the work",
            supposed=f"if its {', '.join(sort.name.lower() for sort, _ in scales)} time were the median of the other "
            "ranks",
            why_not="" if scales else "its own work takes no longer than that of the others",
        ),
        _scaled(*((sort, "", factor) for sort, factor in scales), rank=whole.straggler.rank) if scales else None,
    )


def _slower(run: Outputs, rank: int) -> list[tuple[Work, float]]:
    """Return the sorts of work that take a rank longer than the median of the others, each with the factor that makes
    them equal.

    Communication is none: it holds the waiting for others.
    """
    work, found = run.work, list[tuple[Work, float]]()
    if rank not in work.ranks or len(work.ranks) == 1:
        return found
    for sort in (Work.HOST, Work.GAP, Work.KERNEL, Work.COPY, Work.DELAY):
        mine = work.work == sort
        spent = np.bincount(work.member[mine], work.cost_ns[mine], len(work.ranks))
        own, usual = spent[work.ranks.index(rank)], np.median(np.delete(spent, work.ranks.index(rank)))
        if own > usual:
            found.append((sort, round(float(usual / own), 4)))
    return found


def _bubbles(run: Outputs) -> Iterator[Candidate]:
    pipeline = getattr(run.summary, "pipeline", None)
    if not pipeline:
        return
    lost_ns = sum(pipeline.causes_ns.values())
    most = max(pipeline.causes_ns, key=pipeline.causes_ns.__getitem__, default="")
    yield (
        Advice(
            kind="pipeline_bubble",
            what="stages of the pipeline stand idle",
            evidence=f"{ms(lost_ns)} ms in {counted(pipeline.stages, 'stage')}, most of it {most}",
            todo="more microbatches, another schedule, equal stages",
            why_not="another schedule is another program: graphlink bubbles DIR --schedule zb-h1 --input-share 0.5 "
            "simulates one",
        ),
        None,
    )


def _heaviest(run: Outputs) -> Iterator[Candidate]:
    """Return the work of one name whose absence each rank would gain most from, where it is an op or a kernel and not
    what a loader does."""
    sorts = {"host": Work.HOST, "compute": Work.KERNEL}
    tops = {
        (one.top_gain.name, one.top_gain.share)
        for one in _ranks(run)
        if one.top_gain is not UNSET and one.top_gain.share in sorts
    }
    loader, _ = loaders_of(run.work)
    for name, share in sorted(tops):
        if LOADER.fullmatch(name.removesuffix(_PART)) or _LAYOUT.search(name):
            continue  # has advice of its own
        pattern = f"^{_escaped(name)}$"
        mine = names_found(run.work, re.compile(pattern)) & (run.work.work == sorts[share])
        loading = mine & (loader != NOWHERE)
        if 2 * run.work.cost_ns[loading].sum() > run.work.cost_ns[mine].sum():
            continue  # of the loader, which has advice of its own
        yield (
            Advice(
                kind="heaviest_work",
                what=f"{shortened(name)} is the work that holds up most",
                evidence=f"{ms(int(run.work.cost_ns[mine].sum()))} ms in {counted(int(mine.sum()), 'node')} of this "
                "name",
                todo="a faster implementation, fewer or smaller calls; graphlink ops DIR shows where they come from",
                supposed="if it took half of its time",
            ),
            _scaled((sorts[share], pattern, 0.5)),
        )


def _once(run: Outputs) -> Iterator[Candidate]:
    """Return what took time once, and not each time, on the rank where it took longest: no change of the work in each
    step saves it.
    """
    some = [rank for rank in _ranks(run) if rank.once]
    if not some:
        return
    most = max(some, key=lambda rank: sum(gain.once_ns for gain in rank.once))
    in_steps = len(getattr(most, "steps", ())) > 1
    others = f"; ops of {counted(len(some) - 1, 'other rank')} did so too" if len(some) > 1 else ""
    yield (
        Advice(
            kind="once",
            what=f"{shortened(most.once[0].name)} took long once" + f" on rank {most.rank}" * (len(run.ranks) > 1),
            evidence=once_words(most) + others,
            todo="warm up before the recording begins (graphlink.capture leaves out the first steps), or link "
            "later steps alone (graphlink link --step). Once comes the start of CUDA, loading a library, an algorithm "
            "that is chosen (torch.backends.cudnn.benchmark), a thread that waits for a core",
            why_not="it does not come in each step"
            if in_steps
            else "whether it comes in each step is not known: fewer than two are recorded",
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
    types = rest = ""
    if type_ns:
        types = f"; {ms(type_ns)} ms of all such ops have inputs that tensor cores do not take (float32 without TF32)"
    if unused_ns > ns:
        rest = (
            f"; another {ms(unused_ns - ns)} ms of their kernels use none either, but by their names do other work "
            "(layouts, sums)"
        )
    yield (
        Advice(
            kind="tensor_cores",
            what="matrix products and convolutions without tensor cores",
            evidence=f"of matrix products and convolutions, kernels that multiply without tensor cores take {ms(ns)} "
            f"ms{rest}{types}",
            todo="bf16 or fp16 by torch.autocast, TF32 (torch.set_float32_matmul_precision('high')), sizes that are "
            "multiples of 8",
            supposed=f"if the {counted(len(named), 'kernel')} with most time took half of it",
            why_not="" if named else "other ops run the same kernels",
        ),
        _scaled((Work.KERNEL, pattern, 0.5)) if named else None,
    )


def _kernels_beside(run: Outputs) -> Iterator[Candidate]:
    """Return kernels that other layouts or fused ops would spare, by name."""
    kinds: tuple[tuple[Kind, re.Pattern[str], str, str, str, str], ...] = (
        (
            "layout_conversions",
            _LAYOUT,
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
        ns = _ns_of(run.work, pattern.pattern, Work.KERNEL)
        if names and ns:
            evidence = f"{ms(ns)} ms in kernels of {counted(len(names), 'name')}, {why}"
            yield (
                Advice(kind=kind, what=what, evidence=evidence, todo=todo, supposed=supposed),
                _scaled((Work.KERNEL, pattern.pattern, 0)),
            )


def _late_starts(run: Outputs) -> Iterator[Candidate]:
    if not any(one.gpu for one in _ranks(run)) or not (
        (run.work.work == Work.DELAY).any() or (run.work.fixed_ns > 0).any()
    ):
        return
    idle_ns, unknown_ns = (_idle_ns(run, cause) for cause in ("start_delay", "unknown"))
    known = idle_ns > unknown_ns
    yield (
        Advice(
            kind="late_starts",
            what="device ops begin late, and nothing recorded explains it",
            evidence=f"GPUs were idle for {ms(idle_ns)} ms after launches"
            + (f", and {ms(unknown_ns)} ms for unknown reasons" if unknown_ns else ""),
            todo="look for another process on the GPU (nvidia-smi), and record again; graphlink doctor tells what the "
            "recording lacks",
            supposed="if all began as soon as they could",
            why_not=""
            if known
            else "most of that time lies behind graph launches, or launches that are not recorded: graphlink idle DIR",
        ),
        _scaled((Work.DELAY, "", 0)) if known else None,
    )


def _idle_for(run: Outputs) -> Iterator[Candidate]:
    causes: tuple[tuple[Kind, str, str, str, str], ...] = (
        (
            "allocator",
            "memory_management",
            "GPUs wait for the allocator",
            "keep sizes equal, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the step",
            "the calls lie inside ops, which are nodes as a whole",
        ),
        (
            "profiler",
            "profiler_artefact",
            "the profiler itself holds up the run",
            "fewer activities, shorter windows; stacks and shapes only in a recording of their own",
            "it is no part of the run that is recorded",
        ),
    )
    for kind, cause, what, todo, why_not in causes:
        ns = _idle_ns(run, cause)
        if ns:
            evidence = f"GPUs were idle for {ms(ns)} ms for it"
            yield Advice(kind=kind, what=what, evidence=evidence, todo=todo, why_not=why_not), None


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
        for rank in _ranks(run)
        for one in (rank.memory if rank.memory is not UNSET else ())
        if one.total_bytes
    ]
    used = logged or held
    if not used:
        return
    most, total = max(used, key=lambda one: one[0] / one[1])
    yield (
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
    _data_loading,
    _launch_bound,
    _blocking_syncs,
    _exposed,
    _stragglers,
    _bubbles,
    _tensor_cores,
    _kernels_beside,
    _late_starts,
    _idle_for,
    _memory,
    _once,
    _heaviest,  # the last: of equal gains the first stands first, and others say more
)


def _ranks(run: Outputs) -> list[Rank]:
    return [one for one in run.summary.ranks if one.rank in run.ranks]


def _idle_ns(run: Outputs, cause: str) -> int:
    """Return how long the devices of all ranks were idle for a cause."""
    return sum(one.idle_by_cause_ns.get(cause, 0) for rank in _ranks(run) for one in rank.gpu)


def _ns_of(work: Workload, pattern: str, sort: Work) -> int:
    """Return what nodes of a sort cost whose name a pattern finds."""
    return int(work.cost_ns[names_found(work, re.compile(pattern)) & (work.work == sort)].sum())


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
        parts.append(_escaped(name[:size]) + ("$" if size == len(name) else ""))
    return f"^(?:{'|'.join(dict.fromkeys(parts))})"


def _escaped(name: str) -> str:
    """Return a name as a pattern that finds it; spaces need no escape outside of verbose patterns."""
    return re.escape(name).replace("\\ ", " ")
