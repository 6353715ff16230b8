"""What may be worth a change in a run, found in its outputs: each kind of advice with its evidence and the what-if that
tells its gain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
from msgspec import UNSET

from graphlink.advice.communication import BOUNDED, MIB, buckets, exposed
from graphlink.advice.heaviest import MATRIX, heaviest
from graphlink.advice.on_host import (
    COPIES,
    ONCE,
    TO_HOST,
    allocators,
    blocking_syncs,
    data_loading,
    launch_bound,
    launch_ns_of,
    once,
    optimizers,
)
from graphlink.advice.outputs import (
    Candidate,
    Outputs,
    beside,
    idle_ns_of,
    ranks_of,
    scaled,
    where_called,
    whose_work,
)
from graphlink.advice.records import ENOUGH_PCT, Advice, Kind
from graphlink.advice.stages import stages
from graphlink.advice.uneven import OUTSIDE, aside, compilations, pauses, stragglers, uneven
from graphlink.choices import LATENCY_NS
from graphlink.patterns import LAYOUT, UserPattern, escaped
from graphlink.records import counted, ms, shares_words, short_path, time
from graphlink.replay.changes import Changes, Selector, TimeChange
from graphlink.replay.times import launches
from graphlink.replay.workload import Work, names_found
from graphlink.spans import overlap_ns, union
from graphlink.tables import codes, grouped, sums

_OF_COPIES: Final = (  # what names of copies say of their memory, in words, and what to do; the first that a name fits
    ("-> Pageable", "to pageable memory", TO_HOST),
    (
        "Pageable",
        "from pageable memory",
        "copy the next batch early, while this step computes: pin_memory=True of the DataLoader, then to(device, "
        "non_blocking=True), on a stream of its own",
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
        "begin copies of pinned memory earlier, on a stream of their own, beside kernels",
    ),
    (
        "",
        "of memory of which the recording does not tell whether it is pinned",
        "pin the host's memory (pin_memory=True) and copy with non_blocking=True, if that is not so yet; else a stream "
        "of their own, beside kernels",
    ),
)
_SETS: Final = re.compile(r"(?i)memset|fill_?buffer")
_CONTIGUOUS: Final = r"(?:^|/)aten::contiguous(?:/|$)"
_MOST: Final = 0.9  # of the time of such kernels, in copies; of that of copies, in kinds that are worth a change
_POINTWISE: Final = re.compile(
    r"^(?!.*Fused)(?:.*(?:elementwise|multi_tensor_apply|triton_poi|FillFunctor|CUDAFunctor))"
)


def candidates(run: Outputs) -> Iterator[Candidate]:
    """Return what may be worth a change, whatever it gains. Linear in nodes, but n log n in synchronisation edges."""
    return (candidate for kind in _KINDS for candidate in kind(run))


def _copies(run: Outputs) -> Iterator[Candidate]:
    """Return copies that nothing hides: of which memory they are, by how long each sort is exposed (of those that are
    hidden, takes), and what to do about the sorts that take most; nothing where nothing was copied, but memory set.
    Where more of the time is spent in exposed copies than in all that could hide them, less is to be copied. What was
    copied before the first kernel, and in no step, came once. O(n log n) in nodes."""
    work, devices = run.work, [one for rank in ranks_of(run) for one in rank.gpu]
    sets, begin_ns, took_ns = names_found(work, _SETS), work.column("start_ns"), work.column("duration_ns")
    copies = (work.work == Work.COPY) & ~sets
    busy = (np.isin(work.work, (Work.KERNEL, Work.COMM)) | sets) & (work.column("device") >= 0)
    if not copies.any():
        return
    device = codes(work.member, work.column("device"))
    begin_ns = begin_ns + device * (int((begin_ns + took_ns).max()) + 1)  # one device behind the other
    end_ns = begin_ns + took_ns
    hiding, either = (union(begin_ns[nodes], end_ns[nodes]) for nodes in (busy, busy | copies))
    hiding_ns, either_ns = (int((spans.end_ns - spans.start_ns).sum()) for spans in (hiding, either))
    hidden_ns, pieces_ns = overlap_ns(hiding, begin_ns[copies], end_ns[copies]), took_ns[copies]
    exposed_ns = pieces_ns - (hidden_ns if (hidden_ns < pieces_ns).any() else 0)
    which = np.argmax([names_found(work, re.compile(pattern))[copies] for pattern, *_ in _OF_COPIES], axis=0)
    spent = Counter(dict(enumerate(sums(len(_OF_COPIES), which, exposed_ns).tolist()))).most_common()
    before_ns = np.cumsum([0, *(ns for _, ns in spent)])
    most = [_OF_COPIES[k] for (k, _), ns in zip(spent, before_ns, strict=False) if ns < _MOST * before_ns[-1]]
    todo = [words for *_, words in most]
    of_host = {"Pageable", "Pinned", ""} & {pattern for pattern, *_ in most}  # between the host and a GPU
    if either_ns > 2 * hiding_ns and of_host and "Pageable" not in of_host:  # from pinned memory they take far less
        todo = [
            "copy less: keep on the GPU what each step copies again (weights, optimizer state), or halve its bytes "
            f"(bf16); beside copies only {ms(hiding_ns)} ms of other work could run",
            *["copy from pinned memory (pin_memory=True) with non_blocking=True, which is quicker"]
            * (of_host != {"Pinned"}),
            *(words for pattern, _, words in most if pattern not in of_host),
        ]
    half_ns = int(np.sort(pieces_ns)[np.searchsorted(np.cumsum(np.sort(pieces_ns)), pieces_ns.sum() / 2)])
    if half_ns < launch_ns_of(work, launches(work), 0.5):
        todo.append("copy in fewer and larger pieces: most of that time is of copies that take less than a launch")
    whose = whose_work(run, copies & (run.selection.launched_by >= 0))
    once = bool(exposed_ns[run.uploads[copies]].sum() >= ONCE * before_ns[-1])
    sorts = shares_words({_OF_COPIES[k][1]: ns for k, ns in spent}, int(before_ns[-1]))
    yield Candidate(
        Advice(
            kind="copies",
            what="copies before the first kernel" if once else "copies that nothing hides",
            evidence=f"{ms(sum(one.exposed_copy_ns for one in devices))} ms of "
            f"{ms(sum(one.copy_ns for one in devices))} ms are exposed: {sorts}; {counted(len(pieces_ns), 'piece')}, "
            f"half of their time in those of {time(half_ns)} and more"
            + (f", most in {short_path(whose.path)}" if whose else "")
            + _rates(run),
            todo="record steps that are marked, after a warm-up: what they copy comes again"
            if once
            else "; ".join(todo),
            supposed=BOUNDED,
            why_not="what is copied before the first kernel, such as weights, comes once" * once,
        ),
        None if once else scaled((Work.COPY, "", 0)),
        COPIES,
    )


def _rates(run: Outputs) -> str:
    """Return how quick copies of each sort of ``_OF_COPIES`` are whose bytes are recorded; of less than 0.1 GB/s
    nothing, as the latency is all that shows there."""
    copied = [one for _, one in run.kernels if one.bytes is not UNSET and one.ns and not _SETS.search(one.whole_name)]
    sorts = grouped((next(k[1] for k in _OF_COPIES if re.search(k[0], one.whole_name)), one) for one in copied)
    rates = {sort: sum(one.bytes or 0 for one in some) / sum(one.ns for one in some) for sort, some in sorts.items()}
    return "".join(f"; {rate:,.1f} GB/s {sort}" for sort, rate in rates.items() if rate >= 0.1)


def _tensor_cores(run: Outputs) -> Iterator[Candidate]:
    without, other = Counter[str](), set[str]()
    cores = [file.tensor_cores for file in run.operations.values()]
    type_ns = sum(of.other_type_ns for of in cores)
    unused_ns = sum(of.eligible_ns - of.eligible_used_ns - of.eligible_unknown_ns for of in cores)
    for operation, kernel in run.kernels:
        could = operation.tensor_cores.eligible_ns > 0 or operation.tensor_cores.without_op_ns > 0
        if could and kernel.tensor_cores == "not_used" and MATRIX.search(kernel.whole_name):
            without[kernel.whole_name] += kernel.ns
        else:
            other.add(kernel.whole_name)
    ns = without.total()
    if not ns:
        return
    named = [escaped(name) for name, _ in without.most_common() if name not in other]
    pattern = f"^(?:{'|'.join(named)})$"
    types = f"; at least {ms(type_ns)} ms of them have inputs that tensor cores do not take (float32 without TF32)"
    rest = f"; another {ms(unused_ns - ns)} ms of their kernels use none either, but do other work (layouts, sums)"
    nodes = names_found(run.work, re.compile(pattern)) & (run.work.work == Work.KERNEL) & bool(named)
    yield Candidate(
        Advice(
            kind="tensor_cores",
            what="matrix products and convolutions without tensor cores",
            evidence=f"of matrix products and convolutions, kernels that multiply without tensor cores take {ms(ns)} "
            f"ms{where_called(whose_work(run, nodes))}{rest * (unused_ns > ns)}{types * bool(type_ns)}",
            todo=f"{run.tools.types}; sizes that are multiples of 8",
            supposed=f"if those of {counted(len(named), 'name')} took half of their time",
            why_not="" if named else "other ops run the same kernels",
        ),
        scaled((Work.KERNEL, pattern, 0.5)) if named else None,
    )


def _kernels_beside(run: Outputs) -> Iterator[Candidate]:
    """Return kernels that other layouts or fused ops would spare, by name."""
    kinds: tuple[tuple[Kind, re.Pattern[str], float, str, str, str, str], ...] = (
        (
            "layout_conversions",
            LAYOUT,
            0,
            "conversions between layouts (NCHW, NHWC) around convolutions",
            "cuDNN multiplies in NHWC",
            "model and inputs to(memory_format=torch.channels_last), with the convolutions in half precision or TF32",
            "if these kernels took no time",
        ),
        (
            "small_kernels",
            _POINTWISE,
            0.5,
            "elementwise ops that run as kernels of their own",
            "each reads and writes all of its data",
            "torch.compile or fused layers (bias, activation, normalisation, optimizer) join them",
            "if these kernels took half of their time, as two that are joined read and write once; at most, as those "
            "of different tensors, or alone beside a library's kernels, keep theirs; launches are kept",
        ),
    )
    for kind, pattern, scale, what, why, todo, supposed in kinds:
        nodes = names_found(run.work, pattern) & (run.work.work == Work.KERNEL)
        if ns := run.selection.own_ns(nodes):
            names = counted(len(np.unique(run.work.names()[0][nodes])), "name")
            evidence = f"{ms(ns)} ms in kernels of {names}, {why}{where_called(whose_work(run, nodes))}"
            yield Candidate(
                Advice(kind=kind, what=what, evidence=evidence, todo=todo, supposed=supposed),
                scaled((Work.KERNEL, pattern.pattern, scale)),
                "pointwise" if kind == "small_kernels" else "",
            )


def _contiguous(run: Outputs) -> Iterator[Candidate]:
    """Return copies into another layout: ``contiguous()`` copies only what has another one."""
    copied = run.selection.nodes(Selector(sort="kernel", path=UserPattern(_CONTIGUOUS, "advice")))
    if copied.any():
        whose = whose_work(run, copied)
        single = names_found(run.work, _POINTWISE) & (run.work.work == Work.KERNEL)
        same = run.work.cost_ns[copied & single].sum() >= _MOST * run.work.cost_ns[single].sum()
        yield Candidate(
            Advice(
                kind="layout_conversions",
                what="contiguous() copies tensors into another layout",
                evidence=f"{ms(int(run.work.cost_ns[copied].sum()))} ms in {counted(int(copied.sum()), 'kernel')}"
                + where_called(whose),
                todo="one layout for model and inputs"
                + " (memory_format=torch.channels_last for convolutions)" * beside(run, whose, "conv(?:[1-3]d|ol)")
                + ", so that contiguous(), after permute() or transpose(), has nothing to copy",
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
    long_ns = int(late_ns[late_ns > LATENCY_NS].sum())
    worth = 100 * long_ns >= ENOUGH_PCT * max(rank.replay.measured_ns for rank in ranks_of(run))
    turns = run.turns if known and worth else ""
    yield Candidate(
        Advice(
            kind="late_starts",
            what="another process seems to take turns on the GPU"
            if turns
            else "device ops begin late, and nothing recorded explains it",
            evidence=f"{turns}, as with time slices of a GPU; " * bool(turns)
            + f"{counted(len(late_ns), 'device op')} began {ms(int(late_ns.sum()))} ms later than usual; " * (not turns)
            + f"GPUs were idle for {ms(idle_ns)} ms after launches"
            + (f", and {ms(unknown_ns)} ms for unknown reasons" if unknown_ns else "")
            + run.recorded,
            todo=f"end the other process ({run.tools.processes} shows it), or record again when the GPU is free"
            if turns
            else f"look for another process on the GPU ({run.tools.processes}), and record again"
            + ", with torch.cuda.synchronize() before the first recorded step" * (not known)
            + "; graphlink doctor tells what the recording lacks",
            supposed=f"if none began later than usual, {usual_us:,.1f} us after it could",
            why_not=""
            if known
            else "most of that time lies behind graph launches, or launches that are not recorded: graphlink idle DIR",
        ),
        Changes((TimeChange(sort="delay", most_us=usual_us),)) if known else None,
        OUTSIDE * bool(turns),
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
    exposed,
    buckets,
    _copies,
    stages,
    _tensor_cores,
    _contiguous,
    _kernels_beside,
    _late_starts,
    _profiler,
    _memory,
    once,
    heaviest,  # the last: of equal gains the first stands first, and others say more
)
