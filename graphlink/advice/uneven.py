"""What may be worth a change because it is uneven: pauses of Python, steps and kernels that take longer than others, a
rank that the others wait for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from graphlink.advice.outputs import Candidate, Outputs, Tools, ranks_of, scaled
from graphlink.advice.records import Advice, Kind
from graphlink.graph.families import PYTHON
from graphlink.graph_model import PART
from graphlink.linking.step_cut import Steps
from graphlink.model import I64, NOWHERE, Bool
from graphlink.patterns import DIGITS, OPERATOR, UserPattern, escaped
from graphlink.records import counted, ms, shortened
from graphlink.replay.changes import SORT_OF, Changes, TimeChange
from graphlink.replay.counterparts import in_quick_steps
from graphlink.replay.loader import loaders_of
from graphlink.replay.selection import Selection
from graphlink.replay.syncs import RUNTIME_CALL
from graphlink.replay.workload import GAP_NAME, OF_HOST, Work, Workload, names_found
from graphlink.steps import STEP_MARK
from graphlink.tables import grouped, largest, least, sums

LESS_PYTHON: Final = (
    "less Python in the step: gc.freeze() before it or gc.disable() in it, no sleep, less logging; graphlink ops DIR "
    "shows where it is, and with stacks=True in graphlink.capture in which lines"
)
OUTSIDE: Final = "outside"  # a cause of advice: what is no part of the run, and disturbs all that was measured
_CLOCK: Final = "the clock of the GPU is lower in some steps"
_TURNS: Final = "another process takes turns on the GPU"
SLOWER: Final = "the same kernels take longer in some steps"
HEAVY: Final = "heavy op"  # a cause of advice, with its name
FAR: Final = 4  # times as long as the longest usual pause, or as a launch
ASIDE: Final = "aside"  # a cause of advice: a range that no gradient needs, with its name
_PAUSE: Final = f"^(?:{PYTHON}|{GAP_NAME})$"
_NO_PAUSE: Final = rf"^(?!{_PAUSE[1:]}|{STEP_MARK.pattern[:-2]}(?:{re.escape(PART)})*$)"  # a mark's own time is one
_MOST: Final = 0.9  # of usual pauses; of a difference, in so few names that these are its cause
_FEW: Final = 3
_ONCE: Final = 0.8  # of all, in one pause
_LEAST: Final = 0.02  # of what a rank takes longer: names with less are as on the others
_OWN: Final = (Work.HOST, Work.GAP, Work.KERNEL, Work.COPY, Work.DELAY)
_SELDOM: Final = "less often, beside the training (a thread, a process, asynchronous checkpoints), or before it"
_CALLER: Final = (
    "find what calls it in those steps (graphlink ops DIR; with stacks=True in graphlink.capture its lines of Python), "
    "and do that less often, or before the run"
)
SHARED: Final = (
    "record again on a machine that does nothing else: other work may take turns on its cores; inputs of other sizes "
    "in some steps take longer, too"
)
_TRYING: Final = (
    "torch.backends.cudnn.benchmark = False, or fewer different sizes of input: with it cuDNN tries its algorithms "
    "whenever a size is new"
)
_COMPILING: Final = re.compile(r"^entire_(?:frame|backward)_compile$|\(dynamo_timed\)$")
_COMPILING_PATH: Final = r"(?:^|/)(?:entire_(?:frame|backward)_compile|[^/]*\(dynamo_timed\))(?:/|$)"
_COMPILE: Final = (
    "run each size of input before the steps that count; dynamic=True of torch.compile, or "
    "torch._dynamo.mark_dynamic, where sizes change; TORCH_LOGS=recompiles names what made it compile again"
)
_BALANCE: Final = (
    "equal work for all ranks in each step: experts that get as many tokens (a loss that balances them, a capacity), "
    "samples of equal length (packed, or sorted by length over the ranks)"
)
_EQUAL: Final = 0.1  # of a turn or of a factor: by how much more and less it may differ
_GRADIENT: Final = re.compile(r"^autograd::engine::evaluate_function")
_OF_TRAINING: Final = re.compile(
    r"(?i)optim|zero_grad|backward|dataloader|^autograd::"
)  # no range of what is done beside it
_WRITES: Final = re.compile(  # ops that change tensors that are there, not those that fill new ones
    r"^aten::(?!copy_|fill_|zero_|detach_|resize_|set_|random_|uniform_|normal_)\w*[a-z0-9]_$"
)
_MOST_RANGES: Final = 3
_OTHER: Final = 1.5  # times as long: kernels that are so different that not both can be equal


def pauses(run: Outputs) -> Iterator[Candidate]:
    """Return the pauses of Python between ops that are far longer than the usual ones, as if they were as long."""
    work, least_ns = run.work, round(run.summary.options.gap_us * 1000)
    ns = (work.cost_ns - work.column("wake_ns"))[names_found(work, re.compile(_PAUSE))]
    ns = np.append(least_ns, np.sort(ns[ns > least_ns]))
    far = int(np.argmax(ns[1:] / np.maximum(ns[:-1], 1))) if len(ns) > 1 else 0
    long = ns[far + 1 :]
    if len(long) < 2 or long[0] < FAR * ns[far] or long[-1] > _ONCE * long.sum() or _waits_unseen(run, int(long.sum())):
        return
    most_us = round(float(np.quantile(ns[: far + 1], _MOST)) / 1000, 3)
    every = _period(run.selection, names_found(work, re.compile(_PAUSE)) & (work.cost_ns >= long[0]))
    yield Candidate(
        Advice(
            kind="python_pause",
            what="Python pauses between ops",
            evidence=f"{counted(len(long), 'pause')} of {ms(int(long[0]))} to {ms(int(long[-1]))} ms, where all others "
            f"take at most {ms(int(ns[far]))} ms{every}",
            todo=LESS_PYTHON,
            supposed=f"if each took {most_us:,.0f} us, the most that nine of ten others take",
        ),
        Changes((TimeChange(name=UserPattern(_PAUSE, "advice"), most_us=most_us),)),
        PYTHON,
    )


def aside(run: Outputs) -> Iterator[Candidate]:
    """Return the ranges of what each rank does behind the last gradient of a step, as if they did not run: a callback,
    a log, an evaluation, a checkpoint."""
    work, marks = run.work, run.selection.marks
    for text, pattern, nodes in ranges_aside(run.selection):
        spent_ns, every = int(work.cost_ns[nodes & np.isin(work.work, _OWN)].sum()), _period(run.selection, nodes)
        times = int((nodes & names_found(work, re.compile(f"^{pattern}$")) & ~work.is_part).sum())
        steps = sum(map(len, marks))
        seldom = times < steps
        if max(map(len, marks)) < 2:
            return  # what one step has may be there for the next one
        yield Candidate(
            Advice(
                kind="uneven_steps" if seldom else "aside",
                what=f"{text} runs behind the gradients of {'some steps' if seldom else 'each step'}{every}",
                evidence=f"{ms(spent_ns)} ms in {counted(times, 'range')} of {ms(spent_ns // max(times, 1))} ms each, "
                "on all ranks together",
                todo=_SELDOM,
                supposed="if it did not run",
            ),
            Changes((TimeChange(path=UserPattern(f"(?:^|/){pattern}(?:/|$)", "advice"), remove=True),)),
            f"{ASIDE} {pattern}",
            max(steps / max(times, 1), 1),
        )


def ranges_aside(selection: Selection) -> list[tuple[str, str, Bool]]:
    """Return the outermost ranges that are always behind the last gradient of their step, in words and as a pattern,
    with the nodes inside: the few that take longest. What changes tensors in each step is none: it clips gradients, or
    updates weights. Names that differ in their numbers alone are one range. Linear in nodes, and in different paths.
    """
    work, (of_node, paths) = selection.work, selection.paths
    behind, gradient = np.zeros(len(work), np.bool_), names_found(work, _GRADIENT) & (work.column("host") != 0)
    for (low, high), marks in zip(work.bounds, selection.marks, strict=True):
        called_ns, step = selection.called_ns[low:high], selection.step[low:high]
        last_ns = largest(len(marks) + 1, step[gradient[low:high]], called_ns[gradient[low:high]])
        behind[low:high] = (called_ns > last_ns[step]) & (last_ns[step] > 0)
    whole, part = (np.bincount(of_node[which], minlength=len(paths)) for which in (slice(None), behind))
    within = dict[str, bool]()
    for names, all_behind, some in zip(paths, (whole == part).tolist(), (whole > 0).tolist(), strict=True):
        for name in names if some else ():
            within[name] = within.get(name, True) and all_behind
    family, texts = work.names()
    other = {texts[k] for k in np.unique(family[(work.work != Work.HOST) | (work.column("host") == 0)]).tolist()}
    usual = [name for name in within if OPERATOR.fullmatch(name) or RUNTIME_CALL.fullmatch(name) or name in other]
    within |= dict.fromkeys(usual, False)
    outermost = ["" if any(map(_OF_TRAINING.search, names)) else next(filter(within.get, names), "") for names in paths]
    called = grouped((DIGITS.sub("0", name), name) for name in dict.fromkeys(outermost))
    changing = {
        DIGITS.sub("0", name) for name, names in zip(outermost, paths, strict=True) if any(map(_WRITES.search, names))
    }
    place = {name: k for k, name in enumerate(called)}
    ranges, of_range = [*place], np.array([place[DIGITS.sub("0", name)] for name in outermost], np.int64)[of_node]
    parts = [np.unique(selection.step[low:high] * len(ranges) + of_range[low:high]) for low, high in work.bounds]
    steps = np.bincount(np.concatenate(parts) % len(ranges), minlength=len(ranges))
    seldom = steps < sum(map(len, selection.marks))
    spent_ns = sums(len(ranges), of_range, work.cost_ns)
    order = np.argsort(-spent_ns, kind="stable").tolist()
    longest = [k for k in order if ranges[k] and (seldom[k] or ranges[k] not in changing)]
    return [(*_called(called[ranges[k]]), np.asarray(of_range == k)) for k in longest[:_MOST_RANGES]]


def _called(names: Sequence[str]) -> tuple[str, str]:
    """Return names that differ in their numbers alone, in words and as a pattern."""
    first, *others = (shortened(name) for name in sorted(names, key=lambda name: [*map(int, DIGITS.findall(name))]))
    if not others:
        return first, escaped(names[0])
    return f"{first} to {others[-1]}", r"\d+".join(map(escaped, DIGITS.split(names[0])))


def _period(selection: Selection, nodes: Bool) -> str:
    """Return ``, every 3 steps`` where nodes are in three and more steps of a rank, each as many behind the last; ""
    where they are in other ones, or in all."""
    apart = set[int]()
    for low, high in selection.work.bounds:
        steps = np.unique(selection.step[low:high][nodes[low:high]])
        if len(steps):
            apart |= {*np.diff(steps).tolist()} if len(steps) >= _FEW else {0}
    return f", every {min(apart)} steps" if len(apart) == 1 and min(apart) > 1 else ""


def _waits_unseen(run: Outputs, ns: int) -> bool:
    """Tell whether what looks like work or a pause, in all ``ns`` long, may be a wait: for messages of other ranks over
    gloo, or as nothing explains most of it, or of the calls that waited."""
    work, ranks = run.work, [one.standstill for one in ranks_of(run) if hasattr(one, "standstill")]
    stood = [part for one in ranks for part in (one.threads, one.calls)]
    over_gloo = (work.work == Work.COMM) & (work.column("device") < 0)
    return bool(over_gloo.any()) or 2 * sum(part.ns - part.explained_ns for part in stood) > ns


def uneven(run: Outputs) -> Iterator[Candidate]:
    """Return what takes longer in some of the marked steps than in the quicker ones: kernels, and what the host does in
    the steps that count. All ranks have to have the same steps."""
    selection = run.selection
    numbers = [[number for number, *_ in sorted(marks, key=lambda mark: mark[1])] for marks in selection.marks]
    if len(numbers[0]) > 1 and all(own == numbers[0] for own in numbers):
        steps = Steps(numbers[0][0], numbers[0][-1])
        quick_ns = in_quick_steps(selection, run.work.work == Work.KERNEL, [steps])
        slower = quick_ns > 0
        own_ns, quick_ns = (run.work.cost_ns - run.work.fixed_ns)[slower], quick_ns[slower]
        moving = _moves(run.work, selection, slower, own_ns - quick_ns)
        more_ns = int((own_ns - quick_ns).sum())
        if not moving and 2 * (own_ns - quick_ns)[_resized(run)[slower]].sum() > more_ns:
            yield _larger(more_ns, f"{steps.first}-{steps.last}", "uneven_kernels")
        else:
            yield from _uneven_kernels(run, own_ns, quick_ns, steps, moving=moving, some=_some(run, slower))
        yield from _uneven_steps(run, Steps(numbers[0][1], numbers[0][-1]), more_ns)


def _moves(work: Workload, selection: Selection, slower: Bool, more_ns: I64) -> bool:
    """Tell whether what kernels ``slower`` take more lies in each step on some ranks alone, and not always on the same:
    work moves between them."""
    step, ranks = selection.step, len(work.ranks)
    steps = int(step.max(initial=0)) + 1
    of_step = sums(ranks * steps, step[slower] * ranks + work.member[slower], more_ns).reshape(steps, ranks)
    of_step = of_step[of_step.any(axis=1)]
    some = of_step.min(axis=1) <= _EQUAL * of_step.max(axis=1)
    return bool(len(some) >= _FEW and some.all() and len({*of_step.argmax(axis=1).tolist()}) > 1)


def _some(run: Outputs, slower: Bool) -> bool:
    """Tell whether between kernels ``slower`` than usual, in the same step of a rank, others that multiply on tensor
    cores take what they usually do: no clock is lower there."""
    work, kernel = run.work, run.work.work == Work.KERNEL
    step = run.selection.step * len(work.ranks) + work.member
    began_ns, count = work.column("start_ns"), int(step.max(initial=0)) + 1
    first_ns, last_ns = (each(count, step[slower], began_ns[slower])[step] for each in (least, largest))
    between = kernel & ~slower & (began_ns > first_ns) & (began_ns < last_ns)
    used = {kernel.whole_name for _, kernel in run.kernels if kernel.tensor_cores == "used"}
    family, names = work.names()
    usual = between & np.isin(family, [k for k, name in enumerate(names) if name in used])
    return bool(work.cost_ns[usual].sum() > _EQUAL * work.cost_ns[slower].sum())


def _uneven_kernels(
    run: Outputs, own_ns: I64, quick_ns: I64, steps: Steps, *, moving: bool, some: bool
) -> Iterator[Candidate]:
    """Yield advice about kernels that take longer in some steps; ``moving``: on one rank, then on another; ``some``:
    others beside them take what they usually do.
    """
    if len(own_ns):
        what, why, todo = why_uneven(own_ns, quick_ns, run.tools)
        if moving:
            what, todo = "in each step other ranks have more to compute", _BALANCE
        elif some and what == _CLOCK:
            what, todo = "some kernels take longer in some steps, others beside them do not", _BALANCE
        yield Candidate(
            Advice(
                kind="uneven_kernels",
                what=what,
                evidence=f"{counted(len(own_ns), 'kernel')} take {ms(int((own_ns - quick_ns).sum()))} ms more than in "
                f"the quicker steps: {why}",
                todo=todo,
                supposed="if all took what they take in the quicker steps; "
                + ("equal work saves less" if moving else "what is slow in all steps does not show"),
            ),
            Changes((TimeChange(step=f"{steps.first}-{steps.last}", sort="kernel", even_out=True),)),
            OUTSIDE if what in (_CLOCK, _TURNS) else "",
        )


def why_uneven(own_ns: I64, quick_ns: I64, tools: Tools) -> tuple[str, str, str]:
    """Return what, why and what to do: kernels that take ``own_ns`` and in the quicker steps ``quick_ns``.

    By as much more, whatever each takes: another process has the GPU meanwhile. By an equal factor: its clock is lower.
    """
    more_ns, factor = own_ns - quick_ns, own_ns / quick_ns
    for each, none in ((more_ns, 0), (factor, 1)):
        order = np.argsort(each)
        weight = np.cumsum(more_ns[order])
        usual = float(each[order][np.searchsorted(weight, weight[-1] / 2)])
        equal = np.abs(each - usual) <= _EQUAL * (usual - none)
        ends_ns = quick_ns[equal].min(), quick_ns[equal].max()
        if equal.sum() < _FEW or more_ns[equal].sum() < _MOST * more_ns.sum() or ends_ns[1] < _OTHER * ends_ns[0]:
            continue
        some = f"{counted(int(equal.sum()), 'kernel')} of {ms(int(ends_ns[0]))} to {ms(int(ends_ns[1]))} ms each take"
        if none:
            todo = f"the GPU lowers its clock for power or heat: {tools.clocks}"
            return _CLOCK, f"{some} {usual:.2f} times as long", todo
        todo = f"end the other process ({tools.processes} shows it), or record again when the GPU is free"
        return _TURNS, f"{some} {ms(round(usual))} ms longer, one of its turns", todo
    todo = (
        f"look for another process on the GPU and for clocks that go down for power or heat ({tools.clocks}); other "
        "sizes in some steps take longer, too"
    )
    return SLOWER, f"{np.median(factor):.1f} times as long", todo


def _uneven_steps(run: Outputs, steps: Steps, in_kernels_ns: int) -> Iterator[Candidate]:
    """Return what the host does in some steps, where that takes it more than ``in_kernels_ns``, which kernels do:
    Python between ops apart from ops, where neither is nearly all of it."""
    work, selection = run.work, run.selection
    quick_ns = in_quick_steps(selection, np.isin(work.work, OF_HOST), [steps])
    more_ns = np.where(quick_ns == NOWHERE, 0, work.cost_ns - work.fixed_ns - quick_ns)
    known = loaders_of(work)[0] != NOWHERE  # has advice of its own, as what ranges hold, and compilations
    known |= np.any([*(nodes for *_, nodes in ranges_aside(selection)), compiling(selection), known], axis=0)
    whole_ns = int(more_ns.sum())
    if whole_ns <= in_kernels_ns or 2 * more_ns[known].sum() > whole_ns or _waits_unseen(run, whole_ns):
        return
    pause = names_found(work, re.compile(_PAUSE))
    mixed = (1 - _MOST) * whole_ns < more_ns[pause].sum() < _MOST * whole_ns
    for nodes, pattern in ((pause, _PAUSE), (~pause, _NO_PAUSE)) if mixed else ((pause | ~pause, None),):
        yield from _longer(run, steps, quick_ns, np.where(nodes, more_ns, 0), pattern)


def _longer(run: Outputs, steps: Steps, quick_ns: I64, more_ns: I64, pattern: str | None) -> Iterator[Candidate]:
    """Return what takes ``more_ns`` in some steps than in the quicker ones, among nodes of names that a pattern finds
    (None: all)."""
    work, which = run.work, f"{steps.first}-{steps.last}"
    family, names = work.names()
    of_name = np.bincount(family, more_ns, len(names))
    name, whole_ns = names[int(of_name.argmax())], int(more_ns.sum())
    python = name in (PYTHON, GAP_NAME)
    longest = int(more_ns.argmax())
    if more_ns[longest] >= _ONCE * whole_ns:  # one call of one step
        yield from _came_once(run, name, int(more_ns[longest]))
        return
    what, spent_ns = PYTHON if python else shortened(name), int(of_name.max())
    same = 2 * more_ns[quick_ns > 0].sum() > whole_ns  # the quicker steps have it, too
    if same and 2 * more_ns[_resized(run)].sum() > whole_ns:
        yield _larger(whole_ns, which, "uneven_steps")
        return
    seldom = _CALLER if OPERATOR.fullmatch(name) else _SELDOM
    todo = LESS_PYTHON if python else _TRYING if "convolution" in name else SHARED if same else seldom
    if same and 2 * spent_ns < whole_ns:
        what, spent_ns, todo = "the same host work", whole_ns, SHARED
    every = _period(run.selection, (more_ns > 0) & (family == of_name.argmax()))
    yield Candidate(
        Advice(
            kind="uneven_steps",
            what=f"{what} takes longer in some steps",
            evidence=f"{ms(spent_ns)} ms more in some of steps {which} than in the quicker ones{every}",
            todo=todo,
            supposed="if each step took what the quicker ones take, without what these do not have",
        ),
        Changes((TimeChange(step=which, name=UserPattern(pattern, "advice") if pattern else None, even_out=True),)),
        PYTHON if python else f"{HEAVY} {name}",
    )


def _came_once(run: Outputs, name: str, ns: int) -> Iterator[Candidate]:
    """Return what took a hundredth of the run in one call of one step, unless it is told among what ranks did once."""
    if 100 * ns >= max(one.critical_path.length_ns for one in ranks_of(run)) and name not in {
        gain.name for rank in ranks_of(run) for gain in rank.once
    }:
        advice = Advice(
            kind="once",
            what=f"{PYTHON if name == GAP_NAME else shortened(name)} took long once",
            evidence=f"{ms(ns)} ms more in one call than in the quicker steps",
            todo=SHARED,
            why_not="it came in one step, and not in each",
        )
        yield Candidate(advice, None)


def _resized(run: Outputs) -> Bool:
    """Return which nodes belong to operations whose inputs have other sizes in other steps."""
    out = np.zeros(len(run.work), np.bool_)
    for (low, high), rank in zip(run.work.bounds, run.ranks, strict=True):
        if rank in run.selection.operations:
            some = [operation.resized for operation in run.operations[rank].operations]
            out[low:high] = np.array([*some, False], np.bool_)[run.selection.operations[rank].of_node]
    return out


def more_than_in_quick_steps(run: Outputs, nodes: Bool) -> int:
    """Return what nodes take longer than in the quicker steps, the first step among all, in ns; 0 where their inputs
    differ in size between steps."""
    numbers = [number for marks in run.selection.marks for number, *_ in marks]
    if not numbers or 2 * (nodes & _resized(run)).sum() > nodes.sum():
        return 0
    quick_ns = in_quick_steps(run.selection, nodes, [Steps(min(numbers), max(numbers))])
    return int((run.work.cost_ns - run.work.fixed_ns - quick_ns)[quick_ns != NOWHERE].sum())


def _larger(more_ns: int, which: str, kind: Kind) -> Candidate:
    advice = Advice(
        kind=kind,
        what="inputs are larger in some steps",
        evidence=f"{ms(more_ns)} ms more in some of steps {which} than in the quicker ones, most of it in ops whose "
        "inputs have other sizes there",
        todo="compare steps by what they process, not by their time; batches of equal size, if only their order or "
        "padding differs: sort samples by length, or pack them",
        why_not="larger inputs are more work, and a step as short as the quicker ones does less of it",
    )
    return Candidate(advice, None)


def compilations(run: Outputs) -> Iterator[Candidate]:
    """Return what torch.compile takes in the recorded steps, as if it compiled nothing there."""
    work, (of_node, paths) = run.work, run.selection.paths
    nodes = compiling(run.selection)
    spent_ns = int(work.cost_ns[nodes].sum())
    if not spent_ns:
        return
    outermost = [[*map(bool, map(_COMPILING.search, names))] == [*[False] * (len(names) - 1), True] for names in paths]
    times = int((np.array(outermost, np.bool_)[of_node] & ~work.is_part).sum())
    steps = len(np.unique(run.selection.step[nodes] * len(work.ranks) + work.member[nodes]))
    once = sum(map(len, run.selection.marks)) > 1 and steps == 1
    yield Candidate(
        Advice(
            kind="compilation",
            what="torch.compile compiles " + ("in one step" if once else "in the recorded steps"),
            evidence=f"{ms(spent_ns)} ms in {counted(times, 'compilation')}, in {counted(steps, 'step')}",
            todo=_COMPILE,
            supposed="if nothing were compiled there",
            why_not="it came in one step alone: record later ones" * once,
        ),
        None if once else Changes((TimeChange(path=UserPattern(_COMPILING_PATH, "advice"), remove=True),)),
    )


def compiling(selection: Selection) -> Bool:
    """Return the nodes that are part of a compilation by torch.compile."""
    of_node, paths = selection.paths
    return np.array([any(map(_COMPILING.search, names)) for names in paths], np.bool_)[of_node]


def stragglers(run: Outputs) -> Iterator[Candidate]:
    """Return the rank that the others wait for, with the work that takes it longer than them."""
    whole = run.summary.run
    late = whole and (whole.straggler or whole.suspect)
    if whole is None or late is None:
        return
    rank = late.rank
    waited_ns = sum(one.wait_ns for one in whole.waits if one.rank in run.ranks)
    on_gpu = any(one.gpu for one in ranks_of(run))
    look, clock = ("idle", "GPU clock, ") if on_gpu else ("critical-path", "")
    changes, why = slower(run.work, rank)
    cores = f"free cores for rank {rank}: fewer processes and threads on its host (OMP_NUM_THREADS), or less work; "
    yield Candidate(
        Advice(
            kind="straggler",
            what=f"make rank {rank} arrive on time",
            evidence=f"{late.evidence}; all ranks waited {ms(waited_ns)} ms in communication{why}",
            todo=cores * (not on_gpu and changes.any)
            + f"compare graphlink {look} DIR --rank {rank} with another rank: data, host, {clock}share of work",
            supposed=f"if rank {rank} took no longer than the other ranks",
            why_not="" if changes.any else "its own work takes no longer than that of the others",
        ),
        changes if changes.any else None,
    )


def slower(work: Workload, rank: int) -> tuple[Changes, str]:
    """Return what makes a rank as the median of the others, and what takes it longer most: by name where those that
    matter are less than half of the others' work, else by sort, with the names told behind it.

    Communication is no cause: it holds the waiting for others.
    """
    if rank not in work.ranks or len(work.ranks) == 1:
        return Changes(), ""
    family, names = work.names()
    cost_ns = np.where(np.isin(work.work, [*_OWN]), work.cost_ns, 0)
    told: dict[tuple[int, int], str] = {}  # by what it takes there and elsewhere: a sort of one name is told once
    for named, key in ((True, family * len(Work) + work.work), (False, work.work.astype(np.int64))):
        count = int(key.max()) + 1
        spent = sums(len(work.ranks) * count, work.member * count + key, cost_ns).reshape(-1, count)
        calls = np.bincount(work.member * count + key, cost_ns > 0, spent.size).reshape(-1, count)
        own_ns = spent[work.ranks.index(rank)]
        usual_ns = np.median(np.delete(spent, work.ranks.index(rank), axis=0), axis=0)
        more_ns = np.maximum(own_ns - usual_ns, 0)
        order = np.argsort(-more_ns, kind="stable")
        slower = order[more_ns[order] > _LEAST * more_ns.sum()]
        of_sorts = np.isin(np.arange(len(own_ns)) % len(Work), slower % len(Work))
        of = {k: (Work(k % len(Work)), names[k // len(Work)] if named else "") for k in slower.tolist()}
        told = {
            (int(own_ns[k]), int(usual_ns[k])): shortened(name) or f"{SORT_OF[sort]} work"
            for k, (sort, name) in [*of.items()][:_FEW]
            if more_ns[k] > (1 - _MOST) * more_ns.max()
        } | told
        if more_ns[slower].sum() >= _MOST * more_ns.sum() and 2 * usual_ns[slower].sum() < usual_ns[of_sorts].sum():
            break
    changes = scaled(
        *(
            (sort, f"^{escaped(name)}$" if name else "", round(float(usual_ns[k] / own_ns[k]), 4))
            for k, (sort, name) in of.items()
        ),
        rank=rank,
    )
    time = [  # as with experts, not all kernels of a name may be slow; what other ranks have fewer of stays scaled
        replace(one, scale=None, even_out=True) if sort == Work.KERNEL and not np.ptp(calls[:, k]) else one
        for one, (k, (sort, _)) in zip(changes.time, of.items(), strict=True)
    ]
    why = "".join(
        f"; {what} takes {ms(there_ns)} ms there, {ms(usual)} on the others" for (there_ns, usual), what in told.items()
    )
    return replace(changes, time=tuple(time)), why
