"""What may be worth a change on the host: loading data, launching, waiting, and what takes it longest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import ceil, log2
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from graphlink.advice.outputs import Candidate, Outputs, idle_ns_of, ns_of, ranks_of, scaled
from graphlink.advice.records import Advice
from graphlink.gpu.fact import first_more_ns
from graphlink.graph.families import PYTHON
from graphlink.graph_model import EdgeKind, NodeType
from graphlink.linking.call_roles import Role, role_of
from graphlink.model import I32, I64, NOWHERE, Bool
from graphlink.patterns import ALLOCATOR, COPY, LAUNCH, LOADER, UserPattern, escaped
from graphlink.records import counted, in_function, ms, percent, shortened
from graphlink.replay.changes import Changes, GraphChange, LoaderChange, TimeChange, WaitChange
from graphlink.replay.loader import loaders_of
from graphlink.replay.syncs import RUNTIME_CALL, SyncWait, awaited, blocked_ns, sync_waits, waiting_lines, waiting_ops
from graphlink.replay.times import QUICKEST, launches
from graphlink.replay.workload import Work, Workload, names_found
from graphlink.report.summary import once_ns, once_words
from graphlink.tables import codes, grouped, how_many, largest, least, marked

_Key = TypeVar("_Key", int, str)
MOST_SYNCS: Final = 5  # ops that wait, of which the gains are computed
PART: Final = " (cont.)"
_MOST: Final = 0.9  # of the time of calls, in the first launches of kernels
ONCE: Final = 0.8  # of a time, in what came once, or in calls of one name
_CODE: Final = "the code of a kernel is loaded when it is launched for the first time"
LAUNCHES: Final = "launches"  # a cause of advice
_OPTIMIZERS: Final = "optimizer"  # a cause of advice
_ALLOCATOR: Final = "allocator"  # another
_ADAM: Final = re.compile(r"^Optimizer\.step#AdamW?\.step")  # SparseAdam and others cannot be fused, SGD gains nothing
_SEVERAL: Final = 4  # sorts of ops in it; a fused one has one or two
_FUSED: Final = 0.25  # of the time of Adam on the CPU, for 16 to 262,144 numbers a tensor (docs/advice.md)
_OPTIMIZER: Final = re.compile(r"^Optimizer\.step#")
_CAN_FUSE: Final = re.compile(r"^Optimizer\.step#(Adam|AdamW|SGD)\.step$")  # on a GPU
_BY_ITSELF: Final = "enumerate(DataLoader)#_SingleProcess"
_READ: Final = re.compile(r"DtoH|[Dd]evice -> (?:Pageable|Pinned|Host)")
MOST_WORKERS: Final = 16  # that are advised
_ON_DEVICE: Final = (
    "the GPU",
    "no .cpu(), print or .item() of device tensors in the step",
    "",
)
_ASKED: Final = {  # what of a path of ops waits for a value -> what to do
    r"aten::(?:nonzero|masked_select|_?unique\w*)\b": "no nonzero, masked_select or index by a mask in the step: "
    "torch.where, or a product with the mask, does not wait for how many there are",
    r"aten::is_nonzero": "no `if` or `while` on a device tensor in the step: torch.where chooses on the GPU",
    r"aten::(?:item|_local_scalar_dense)": "no .item() of device tensors in the step: keep them, and read them after "
    "the last step",
}
_SYNCHRONIZE: Final = (
    "no torch.cuda.synchronize() in the step: record torch.cuda.Event to time it, or to let another stream wait"
)
_NO_CALL: Final = "ask for what it waits for later, behind other work of the host"  # it looks at memory again and again
_PIN: Final = "; copies with pinned memory and non_blocking=True"
_TO_DEVICE: Final = re.compile(r"HtoD|HostToDevice|(?:Pageable|Pinned|Host) -> [Dd]evice")
_COPIED: Final = (
    "make what is copied on the GPU and keep it there; or copy it early, before the step that needs it, from pinned "
    "memory (pin_memory=True) with non_blocking=True"
)
TO_HOST: Final = (
    "copy into pinned memory with non_blocking=True, go on, and read it later, behind an event of that copy; write "
    "checkpoints from a thread (torch.distributed.checkpoint.async_save)"
)
COPIES: Final = "copies"  # a cause of advice
_ON_SENDERS: Final = (
    "the rank that sends",
    "make what that rank does quicker, or move work from its stage to others; more microbatches leave stages less to "
    "wait for; graphlink critical-path DIR --across shows what each wait was for",
    "what is sent is needed: only the rank that sends can end the wait sooner",
)
_ON_RANKS: Final = (
    "other ranks",
    "equal work for all ranks, on as many free cores; graphlink critical-path DIR --across shows what each wait was "
    "for; of collectives that your own code calls, begin early and wait late (async_op=True; DDP does so)",
    "what comes of a collective is needed: only the rank that comes last can end the wait sooner",
)


def data_loading(run: Outputs) -> Iterator[Candidate]:
    names = {name.removesuffix(PART) for file in run.work.files for name in file.strings}
    loaders = sorted({escaped(name.split("#")[0]) for name in names if LOADER.fullmatch(name)})
    if not loaders:
        return
    idle_ns = idle_ns_of(run, "data_loading")
    idle = f"; GPUs were idle for {ms(idle_ns)} ms meanwhile{run.recorded}" if idle_ns else ""
    pin = ", pin_memory=True" * any("HtoD" in name and "Pinned" not in name for name in names)
    what, more = "the run waits for its data", f"prefetch_factor{pin}; decode and augment before the run"
    workers, making_ns = _workers(run.work)
    if workers:
        yield Candidate(
            Advice(
                kind="data_loading",
                what=what,
                evidence=f"the main thread made its batches itself, in {ms(making_ns)} ms of host time{idle}",
                todo=f"num_workers={workers} of the DataLoader, on as many free cores, {more}",
                supposed=f"if {counted(workers, 'worker')} made the batches on cores of their own: so many keep up "
                "with the rest of the run",
            ),
            Changes(dataloader=(LoaderChange(workers=workers),)),
        )
        return
    pattern = f"^(?:{'|'.join(loaders)})"
    yield Candidate(
        Advice(
            kind="data_loading",
            what=what,
            evidence=f"the loader took {ms(ns_of(run, pattern, Work.HOST))} ms of host time{idle}",
            todo=f"more workers of the DataLoader (num_workers), {more}",
            supposed="if the loader itself took no time; the ops that it calls keep theirs",
        ),
        scaled((Work.HOST, pattern, 0)),
    )


def _workers(work: Workload) -> tuple[int, int]:
    """Return how many workers of PyTorch's DataLoader make batches as fast as the rest of the run takes them, the next
    power of two, and what the batches take in ns; 0 workers where the loaders have some, or are not PyTorch's."""
    owner, _ = loaders_of(work)
    made = (owner != NOWHERE) & (work.work == Work.HOST)
    heads = np.unique(owner[made])
    if not len(heads) or not all(_BY_ITSELF in work.name(head) for head in heads.tolist()):
        return 0, 0
    ranks = len(work.ranks)
    begin_ns = work.column("start_ns")
    end_ns = largest(ranks, work.member, begin_ns + work.column("duration_ns"))
    whole_ns = int((end_ns - least(ranks, work.member, begin_ns)).sum())
    making_ns = int(work.cost_ns[made].sum())
    needed = making_ns / max(whole_ns - making_ns, making_ns / MOST_WORKERS, 1)
    return 1 << max(ceil(log2(max(needed, 1))), 1), making_ns


def launch_bound(run: Outputs) -> Iterator[Candidate]:
    """Return how much launches cost: the quickest ops with one do little else, and what they take is what each launch
    costs the host.
    """
    work = run.work
    idle_ns = sum(idle_ns_of(run, cause) for cause in ("host_work", "python"))
    of_node, kernels = launches(work), work.cost_ns[work.work == Work.KERNEL]
    launch_ns = launch_ns_of(work, of_node, QUICKEST)
    if not launch_ns or not len(kernels) or not len(_launching(work)[1]):
        return  # where no kernel came twice, nothing shows what a launch takes but the first one
    short = percent(how_many(kernels < launch_ns), len(kernels))
    came_once_ns = sum(map(once_ns, ranks_of(run)))
    idle = Advice(
        kind="launch_bound",
        what="GPUs wait for the host to launch work",
        evidence=f"GPUs were idle for {ms(idle_ns)} ms while the host was in ops or Python{run.recorded}; "
        f"{counted(int(of_node.sum()), 'launch call')}, for each of which the host takes {launch_ns / 1000:,.1f} us in "
        f"the quickest ops and {launch_ns_of(work, of_node, 0.5) / 1000:,.1f} us in half of them"
        + f"; {ms(came_once_ns)} ms of ops came once, beside that" * bool(came_once_ns)
        + f"; {short} of the kernels take less time than the quickest launch",
        todo="CUDA graphs (torch.cuda.graph, torch.compile(mode='reduce-overhead')) of each step, or of what lies "
        "between waits: shapes have to be the same each time, and a graph keeps its memory",
        supposed="if each step were one launch of a CUDA graph; where none can hold all of it, each part between",
    )
    yield Candidate(idle, Changes(cuda_graph=(GraphChange(auto=True),)), LAUNCHES)
    yield Candidate(
        replace(
            idle,
            todo="fused optimizers, torch.compile, fewer and larger ops, fewer Python layers",
            supposed=f"if each launch call took {launch_ns / 1000:,.1f} us less",
        ),
        Changes((TimeChange(launch_us=-launch_ns / 1000),)),
        LAUNCHES,
    )


def launch_ns_of(work: Workload, of_node: I64, quantile: float) -> int:
    """Return what the host takes for an op with one launch, a quantile of them; 0 where there are none."""
    alone = work.cost_ns[(of_node == 1) & (work.work == Work.HOST) & (work.cost_ns > 0)]
    return int(np.quantile(alone, quantile)) if len(alone) else 0


def optimizers(run: Outputs) -> Iterator[Candidate]:
    """Return how much optimizers cost that update each tensor by kernels, or ops, of its own."""
    of_node, paths = run.selection.paths
    ops = {names[-1] for names in paths if len(names) > 1 and _ADAM.search(names[-2])}
    several = len(ops) >= _SEVERAL and not any("_fused_" in name for name in ops)
    named = {match[1] for names in paths for name in names[-1:] if (match := _CAN_FUSE.match(name))}
    whose = " and ".join(sorted(named)) or "the optimizer"
    fused = TimeChange(path=UserPattern(rf"(?:^|/){_ADAM.pattern[1:]}", "advice"), scale=_FUSED)
    quarter = "took a quarter of their time, as those of fused Adam do at most"
    if launches(run.work).any():
        inside = np.array([any(map(_OPTIMIZER.search, names)) for names in paths], np.bool_)[of_node]
        kernels_ns = int(run.work.cost_ns[inside & (run.work.work == Work.KERNEL)].sum())
        yield Candidate(
            Advice(
                kind="optimizer",
                what="the optimizer launches many kernels",
                evidence=f"{ms(ns_of(run, _OPTIMIZER.pattern, Work.HOST))} ms of host time in it, beside its ops; its "
                f"kernels take {ms(kernels_ns)} ms",
                todo=f"fused=True of {whose}"
                + ", or foreach=True" * (not names_found(run.work, re.compile("_foreach_|multi_tensor_apply")).any())
                + ": one kernel for many tensors",
                supposed="if each of its steps were one launch, and its kernels "
                + (quarter if several else "ran one behind the other"),
            ),
            Changes(
                (replace(fused, sort="kernel"),) if several else (),
                cuda_graph=(GraphChange(name=UserPattern(_OPTIMIZER.pattern, "advice"), gap_us=0),),
            ),
            _OPTIMIZERS,
        )
    elif several:
        within = np.array([any(map(_ADAM.search, names)) for names in paths], np.bool_)[of_node] & (
            run.work.work == Work.HOST
        )
        yield Candidate(
            Advice(
                kind="optimizer",
                what="the optimizer updates each tensor by several ops",
                evidence=f"{ms(int(run.work.cost_ns[within].sum()))} ms in "
                f"{counted(how_many(within & ~run.work.is_part), 'op')} inside of it, of {len(ops)} names",
                todo=f"fused=True of {whose}: one op for all tensors, on the CPU, too",
                supposed="if it took a quarter of its time, as fused Adam does on the CPU",
            ),
            Changes((fused,)),
            _OPTIMIZERS,
        )


def allocators(run: Outputs) -> Iterator[Candidate]:
    """Return what calls that allocate or free memory cost the host, by the ops that make them."""
    idle_ns, (spent, calls) = idle_ns_of(run, "memory_management"), _allocating(run)
    if not idle_ns:
        return
    once = {gain.name for rank in ranks_of(run) for gain in rank.once}  # it starts CUDA, or loads a library
    inside = {name: _inside(name) for name in spent.keys() - once}
    own_ns = {name: int(run.work.cost_ns[run.selection.nodes(change)].sum()) for name, change in inside.items()}
    changes = [
        replace(inside[name], scale=max(round(1 - spent[name] / own_ns[name], 4), 0))
        for name in sorted(own_ns, key=lambda name: (-spent[name], name))
        if own_ns[name]
    ]
    kept_ns = spent.total() - sum(spent[name] for name in own_ns if own_ns[name])
    names = {name for wait in sync_waits(run.work) for name in wait.names if ALLOCATOR.fullmatch(name)}
    removed = [WaitChange(which=name, remove=True) for name in sorted(names | _freeing(run, spent))]
    yield Candidate(
        Advice(
            kind="allocator",
            what="GPUs wait for the allocator",
            evidence=f"{', '.join(f'{count:,} {name}' for name, count in calls.most_common())}: "
            f"{ms(spent.total())} ms of the host; GPUs were idle for {ms(idle_ns)} ms for it{run.recorded}",
            todo="keep sizes equal, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the step",
            supposed="if these calls took no time"
            + f"; {ms(kept_ns)} ms of them came once, or outside ops, and are not counted" * bool(kept_ns),
            why_not="" if changes else "the calls come once, or are not recorded by op",
        ),
        Changes(tuple(changes), tuple(removed)) if changes else None,
        _ALLOCATOR * bool(changes),
    )


def _allocating(run: Outputs) -> tuple[Counter[str], Counter[str]]:
    """Return for how long each op (or Python) allocates and frees memory, and how many calls of each name do."""
    spent, calls = Counter[str](), Counter[str]()
    for file in run.operations.values():
        for part in file.parts:
            if part.of in ("call", "waiting_call") and ALLOCATOR.fullmatch(part.name):
                calls[part.name] += sum(part.count)
                spent[PYTHON if part.operation is None else file.operations[part.operation].path[-1]] += sum(part.ns)
    return spent, calls


def _inside(op: str) -> TimeChange:
    """Return the what-if without the host time of an op and of what it calls: ops in it may allocate for it."""
    if op == PYTHON:
        return TimeChange(name=UserPattern(f"^{PYTHON}$", "advice"), sort="host", scale=0)
    return TimeChange(path=UserPattern(f"(?:^|/){escaped(op)}(?:/|$)", "advice"), sort="host", scale=0)


def _freeing(run: Outputs, allocating: Iterable[str]) -> set[str]:
    """Return the ops that wait for all work of a device inside of ops that allocate: so that memory can be freed."""
    nodes = [run.selection.nodes(_inside(op)) for op in allocating if op != PYTHON]
    inside = np.any([np.zeros(len(run.work), np.bool_), *nodes], axis=0)
    for_all = [wait for wait in sync_waits(run.work) if Role.DEVICE_SYNC in map(role_of, wait.names)]
    return {name for wait in for_all if inside[wait.part] for name in waiting_ops(wait)}


def _waits_of(work: Workload) -> dict[str, list[tuple[SyncWait, int, int]]]:
    """Return the waits of each op, of that which waited longest first, each with the node that it waited for last and
    how long it blocked in ns. Linear in waits."""
    waits, blocked = sync_waits(work), blocked_ns(work)
    each = ((wait, last, int(blocked[wait.targets[0]])) for wait, last in zip(waits, awaited(work, waits), strict=True))
    found = grouped((op, own) for own in each for op in waiting_ops(own[0])[:1])
    return dict(sorted(found.items(), key=lambda item: -_blocked_ns(item[1])))


def _blocked_ns(waits: list[tuple[SyncWait, int, int]]) -> int:
    return sum(ns for *_, ns in waits)


def blocking_syncs(run: Outputs) -> Iterator[Candidate]:
    """Return the ops that wait longest, for a device or, where what they wait for is on none, for other ranks, whose
    part is needed."""
    work, device, is_copy = run.work, run.work.column("device"), run.work.work == Work.COPY
    copies_ns, launch_ns = int(work.cost_ns[is_copy].sum()), launch_ns_of(work, launches(work), QUICKEST)
    of_node, paths = run.selection.paths
    received = work.per_file(lambda file: file.type) == NodeType.COMM_RECV
    waited, freeing = _waits_of(work), _freeing(run, _allocating(run)[0])
    on_host = [op for op, waits in waited.items() if all((device[[*wait.sources]] < 0).all() for wait, *_ in waits)]
    others_ns = sum(_blocked_ns(waited[op]) for op in on_host[1:])
    others = f"; {ms(others_ns)} ms in {counted(len(on_host) - 1, 'more op')}" * (len(on_host) > 1)
    for op, waits in [*waited.items()][:MOST_SYNCS]:
        if op in on_host[1:]:
            continue  # one cause: the first says of how many it is
        ns, names = _blocked_ns(waits), {name for wait, *_ in waits for name in wait.names}
        if ns and _blocked_ns([wait for wait in waits if run.uploads[wait[1]]]) >= ONCE * ns:
            continue
        calls = {name for name in names if RUNTIME_CALL.fullmatch(name)}
        copied = [(int(work.cost_ns[last]), own_ns) for _, last, own_ns in waits if is_copy[last]]
        copied_ns, for_copies_ns = (sum(column) for column in zip(*copied or [(0, 0)], strict=True))
        line = "".join(
            f", most in {in_function(at)}: {ms(min(took, ns or took))} ms"
            for at, took in waiting_lines(run.operations, op).most_common(1)
        )
        receiving = 2 * sum(received[last] for _, last, _ in waits) > len(waits)
        whom, todo, why_not = _ON_DEVICE if op not in on_host else _ON_SENDERS if receiving else _ON_RANKS
        often = counted(len(waits), "wait") + " in Python between ops" * (op == PYTHON)
        often += f" ({', '.join(sorted(calls - {op}))})" * bool(calls - {op})
        cause, cause_ns = _most((work.name(last), max(own_ns, 1)) for _, last, own_ns in waits)
        cause, of_it = shortened(cause), ", all" if cause_ns >= ns else f" in all, {ms(cause_ns)} ms of it"
        of_it = f", {ms(ns)} ms{of_it}" * bool(ns)
        if op not in on_host:
            path, _ = _most(("/".join((*paths[of_node[wait.part]], op)), max(own_ns, 1)) for wait, _, own_ns in waits)
            pin = "Pinned" not in cause and (any(map(COPY.fullmatch, calls)) or "Pageable" in cause)
            helps = (
                (_TO_DEVICE.search(cause), _COPIED),
                (_READ.search(cause) and copied_ns > len(waits) * launch_ns, TO_HOST),  # a value is copied in less
                (any("DeviceSynchronize" in name for name in calls), _SYNCHRONIZE),
                (not (calls or RUNTIME_CALL.fullmatch(op)), _NO_CALL),
                *((re.search(pattern, path), words) for pattern, words in _ASKED.items()),
                (True, todo + _PIN * pin),
            )
            todo = next(words for holds, words in helps if holds)
            whom = "copies to the GPU" if todo is _COPIED else whom
        yield Candidate(
            Advice(
                kind="blocking_sync",
                what=f"{cause if op == PYTHON else shortened(op)} makes the host wait for {whom}",
                evidence=f"{often}{of_it} for {cause}{line}"
                + (_sent(work, waits) if receiving else "")
                + others * (op in on_host),
                todo=todo,
                supposed="if the host did not wait there",
                why_not=why_not,
            ),
            None if op in on_host else _without(work, op),
            _ALLOCATOR if op in freeing else COPIES * (2 * copied_ns > copies_ns and 2 * for_copies_ns > ns),
        )


def _most(spent: Iterable[tuple[_Key, int]]) -> tuple[_Key, int]:
    """Return the first of what has most ns in all, and these."""
    ns = {key: sum(each) for key, each in grouped(spent).items()}
    return max(ns.items(), key=lambda item: item[1])


def _sent(work: Workload, waits: list[tuple[SyncWait, int, int]]) -> str:
    """Return the rank whose messages were waited for longest."""
    sender, received = work.column("comm_src"), work.per_file(lambda file: file.type) == NodeType.COMM_RECV
    rank, ns = _most((int(sender[last]), own_ns) for _, last, own_ns in waits if received[last])
    return f", {ms(ns)} ms for what rank {rank} sends" * (rank != NOWHERE)


def _without(work: Workload, op: str) -> Changes:
    """Return the what-if without the waits of an op, and without the op where it only reads from a device."""
    by = names_found(work, re.compile(f"^{escaped(op)}$"))
    launch = (work.kind == EdgeKind.LAUNCH) & by[work.source]
    read = work.target[launch & (work.work[work.target] != Work.DELAY)]
    if len(read) and names_found(work, _READ)[read].all():
        return Changes((TimeChange(path=UserPattern(f"(?:^|/){escaped(op)}$", "advice"), remove=True),))
    return Changes(wait=(WaitChange(which=op, remove=True),))


def once(run: Outputs) -> Iterator[Candidate]:
    """Return what took time once, and not each time, on the rank where it took longest: no change of the work in each
    step saves it.
    """
    yield from _loading(run)
    some = [rank for rank in ranks_of(run) if rank.once or first_more_ns(rank)]
    if not some:
        return
    most = max(some, key=lambda rank: (once_ns(rank), first_more_ns(rank)))
    more_ns = first_more_ns(most)
    in_steps = len(getattr(most, "steps", ())) > 1
    others = f"; {counted(len(some) - 1, 'more rank')} with such ops" if len(some) > 1 else ""
    op, (call, in_call_ns) = most.once[0].name if most.once else "the first step", _longest_call(run, most)
    of_call = f"; {ms(in_call_ns)} ms of {shortened(op)} in {call}" * bool(call)
    yield Candidate(
        Advice(
            kind="once",
            what=f"{call} in " * bool(call)
            + f"{shortened(op)} took long "
            + ("once" if in_steps else "in one piece")
            + f" on rank {most.rank}" * (len(run.ranks) > 1),
            evidence="; ".join(
                filter(None, (once_words(most), f"the first step {ms(more_ns)} ms more" * bool(more_ns)))
            )
            + of_call
            + others,
            todo="warm up before the recording begins (graphlink.capture leaves out the first steps)"
            + ", or link later steps alone (graphlink link --step)" * in_steps
            + (
                f": {_CODE}; {run.tools.loads} loads all at the start"
                if LAUNCH.fullmatch(call)
                else f". Such things happen once: {run.tools.starts * any(rank.gpu for rank in some)}a library is "
                "loaded, memory is used for the first time, a thread waits for a core"
            ),
            why_not="most of this time came once, and not in each step"
            if in_steps
            else "whether it comes in each step is not known: fewer than two steps are marked",
        ),
        None,
    )


def _longest_call(run: Outputs, rank: Any) -> tuple[str, int]:
    """Return the name of the GPU calls that take most of what an op of a rank took once, and their time; "" where no
    calls do."""
    file, spent = run.operations.get(rank.rank), Counter[str]()
    for part in file.parts if file and rank.once else ():
        if part.of in ("call", "waiting_call") and part.operation is not None:
            inside = file is not None and file.operations[part.operation].path[-1] == rank.once[0].name
            spent[part.name] += sum(part.ns) * inside
    call, ns = next(iter(spent.most_common(1)), ("", 0))
    return (call, ns) if rank.once and ns >= ONCE * rank.once[0].once_ns else ("", 0)


def _launching(work: Workload) -> tuple[I32, I32]:
    """Return the host nodes that launch a kernel before all others of its name, and those that launch it again."""
    launch = np.flatnonzero((work.kind == EdgeKind.LAUNCH) & (work.work[work.target] == Work.KERNEL))
    kernel = codes(work.member[work.target[launch]], work.names()[0][work.target[launch]])
    first = np.unique(kernel, return_index=True)[1]
    return work.source[launch[first]], work.source[np.delete(launch, first)]


def first_launches(work: Workload, name: str) -> Bool:
    """Return the launch calls of a name that load the code of a kernel, each when it is launched for the first time,
    where these take most of the time of all."""
    calls = names_found(work, re.compile(f"^{escaped(name)}$")) & (RUNTIME_CALL.fullmatch(name) is not None)
    first = calls & marked(len(calls), _launching(work)[0])
    return first & bool(work.cost_ns[first].sum() >= _MOST * work.cost_ns[calls].sum())


def _loading(run: Outputs) -> Iterator[Candidate]:
    for name in sorted({rank.top_gain.name for rank in ranks_of(run) if rank.top_gain is not UNSET}):
        loads = first_launches(run.work, name)
        if loads.any():
            evidence = f"{ms(int(run.work.cost_ns[loads].sum()))} ms in {counted(how_many(loads), 'call')}, each the "
            advice = Advice(
                kind="once",
                what=f"{name} took long when kernels were launched for the first time",
                evidence=f"{evidence}first of a kernel",
                todo="warm up before the recording begins (graphlink.capture leaves out the first steps): "
                f"{_CODE}; {run.tools.loads} loads all at the start",
                why_not="it came once for each kernel, and not in each step",
            )
            yield Candidate(advice, None)
