"""Advice for a run: what may be worth a change, with the gain that a replay of the changed graphs tells."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from graphlink import output_names
from graphlink.advice.edits import line_for
from graphlink.advice.kinds import candidates
from graphlink.advice.on_host import COPIES, LAUNCHES
from graphlink.advice.outputs import Candidate, Outputs, idle_ns_of, ranks_of
from graphlink.advice.records import ENOUGH_PCT, KINDS, LEAST_PCT, Advice, AdviceReport, Kind
from graphlink.advice.uneven import ASIDE, HEAVY, OUTSIDE
from graphlink.engine.beside import side_by_side
from graphlink.errors import UsageError
from graphlink.gpu.fact import main_causes, once_fact, steps_stand
from graphlink.gpu.table import spent
from graphlink.model import NOWHERE, Bool
from graphlink.operations import records as operation_records
from graphlink.output_names import SUMMARY
from graphlink.records import ms
from graphlink.replay.assumptions import cannot
from graphlink.replay.band import band, step_ns, unmeasured
from graphlink.replay.changes import Changes
from graphlink.replay.coupled import followed
from graphlink.replay.folder import load, load_groups
from graphlink.replay.loader import loaders_of
from graphlink.replay.machines import ends, gain_pct, play, usual_machine
from graphlink.replay.path import critical_path
from graphlink.replay.played import Played
from graphlink.replay.selection import Selection
from graphlink.replay.whatif import fit
from graphlink.replay.workload import Work, Workload, names_found, workload
from graphlink.report.summary import Summary
from graphlink.report.summary import load as load_summary

if TYPE_CHECKING:
    from pathlib import Path

    from graphlink.page.found import Reading
    from graphlink.run.library import Run

Groups = Mapping[int, Sequence[int]]
Advised = tuple[AdviceReport, list[Changes | None]]  # with the change behind each advice
_MANY_NODES: Final = 50_000  # of all ranks, from which on a replay takes several times as long as to fork
_BYTES_A_NODE: Final = 1000  # of a replay
_MOST: Final = 0.9  # of the time of nodes that other advice changes
_PREFERRED: Final = 1.25  # times the gain: of a change that is named, or of a rank, beside one that supposes more
_MUCH_PCT: Final = 5.0  # what can go as a whole stands before work that could be faster
_LINE: Final = 80  # characters of options that a command has at most; else it names the number of the advice
_DIR: Final = re.compile(r"(?<= )DIR\b")
_HEAVIEST: Final = ("heaviest_work", HEAVY)
_MAIN: Final[tuple[Kind, ...]] = ("once", "late_starts", "pipeline_bubble")  # what may be the main fact without a gain
_WITHOUT_GAIN: Final[Mapping[Kind, int]] = {"pipeline_bubble": 1, "once": 2}  # before others, in this order
_OF_MESSAGES: Final[tuple[Kind, ...]] = ("exposed_communication", "blocking_sync")  # how idle stages show, too
_IN_HOST: Final[tuple[Kind, ...]] = ("launch_bound", "heaviest_work", "python_pause", "optimizer", "small_collectives")
_WITHOUT_GPU: Final[tuple[Kind, ...]] = (
    "pipeline_bubble",
    "exposed_communication",
    "straggler",
    "data_loading",
    "heaviest_work",
)
_OF_CAUSES: Final[Mapping[str, tuple[Kind, ...]]] = {  # what advice is about a main fact
    "compute_ns": ("heaviest_work", "tensor_cores", "small_kernels", "layout_conversions", "uneven_kernels"),
    "exposed_comm_ns": ("exposed_communication", "small_collectives", "straggler"),
    "exposed_copy_ns": ("copies",),
    "straggler_wait": ("straggler", "exposed_communication"),
    "dependency_stall": ("exposed_communication", "straggler"),
    "memory_management": ("allocator",),
    "data_loading": ("data_loading",),
    "host_blocked": ("blocking_sync",),
    "start_delay": ("late_starts", "launch_bound"),
    "host_work": _IN_HOST,
    "python": _IN_HOST,
    "unknown": ("late_starts",),
}
_NO_LINES: Final = (
    "no Python stacks were recorded: profile(with_stack=True) shows which functions wait, launch and compute"
)
_ET: Final = (
    "an execution trace was recorded, too: PyTorch writes it while ops run, so recorded steps may take several times "
    "what they take without it, and the GPU may wait for launches that otherwise come in time; compare with a "
    "recording without it (execution_trace=False)"
)
_SOONER: Final = (
    "; more than GPUs were idle for that, as the host comes sooner to all else that they wait for, which goes on while "
    "they compute"
)
_REFUSED: Final = (LAUNCHES, COPIES)  # causes whose advice says why it has no gain
_COMPILED: Final = re.compile(r"CompiledFunction|Torch-Compiled Region|triton_(?:poi|red|per)_fused")
_ON_DEVICE: Final = (Work.KERNEL, Work.COMM, Work.COPY)
_STUCK: Final = "ranks wait for each other for ever in the replay: see graphlink replay --machine coupled"


def advice_of(run: Run, files: Mapping[int, Path]) -> AdviceReport:
    """Return advice for the ranks of a run whose graphs are in ``files``.

    Raises:
        InputError: a file of the run cannot be read.
    """
    return _advised(run.summary, run.folder, files, str(run.folder))[0]


def main_advice(run: Run) -> AdviceReport:
    """Return the advice about the main fact of a run alone, which takes few replays.

    Raises:
        InputError: a file of the run cannot be read.
    """
    files = {rank: run.folder / output_names.graph(run.summary.options.name, rank) for rank in run.ranks}
    only = _about(main_causes(run.summary.ranks)[0]) or _WITHOUT_GPU
    return _advised(run.summary, run.folder, files, str(run.folder), only)[0]


def _about(causes: Sequence[str]) -> list[Kind]:
    return [kind for cause in causes for kind in _OF_CAUSES.get(cause, ())]


def change_of(folder: Path, files: Mapping[int, Path], number: int) -> Changes:
    """Return the change behind an advice, by its number in ``advice_of`` from 1, for the ranks of ``files``.

    Raises:
        InputError: a file of the run cannot be read.
        UsageError: there is no such advice, or no change tells its gain.
    """
    report, changes = _advised(load_summary(folder / SUMMARY), folder, files, str(folder))
    if not 1 <= number <= len(changes):
        todo = f"graphlink advice {shlex.quote(str(folder))} prints them with their numbers"
        raise UsageError(f"--advice {number}: there are {len(changes):,}", todo=todo)
    advice, change = report.advice[number - 1], changes[number - 1]
    if change is None or advice.gain_ns is None:
        raise UsageError(f"--advice {number} ({advice.what}) has no gain: {advice.why_not}", todo="choose another one")
    return change


def _advised(
    summary: Summary, folder: Path, files: Mapping[int, Path], name: str, only: Collection[Kind] = KINDS
) -> Advised:
    operations = {number: operation_records.load(folder / output_names.operations(number)) for number in files}
    outputs = Outputs(summary, tuple(files), workload(load(files)), operations, folder)
    return advised(outputs, load_groups(folder), name, whole=len(files) == len(summary.ranks), only=only)


def of_page(reading: Reading) -> AdviceReport | None:
    """Return advice for the ranks of a run that are replayed for its page; None where none is."""
    if reading.work is None:
        return None
    operations = {rank: reading.parts["operations"][rank] for rank in reading.graphs}
    outputs = Outputs(reading.summary, tuple(reading.graphs), reading.work, operations, reading.folder)
    whole = len(reading.graphs) == len(reading.summary.ranks)
    return advised(outputs, reading.groups, str(reading.folder), whole=whole)[0]


def advised(run: Outputs, groups: Groups, folder: str, *, whole: bool, only: Collection[Kind] = KINDS) -> Advised:
    """Return advice for a run, the largest gain first, and the change behind each; what gains nothing is left out. A
    replay for each candidate.

    ``groups`` is ``comm_group.json``; ``folder`` stands in commands; ``whole``: ``run`` has all ranks that the folder
    has; ``only``: kinds of advice.
    """
    machine = usual_machine(len(run.ranks))
    before = play(run.work, groups)
    path_ns = critical_path(run.work, before).length_ns
    prefix = [
        "graphlink",
        "replay",
        folder,
        *([] if whole else [part for rank in run.ranks for part in ("--rank", str(rank))]),
    ]
    trying = [one for one in candidates(run) if one.advice.kind in only]
    selection = run.selection  # made once, for all processes
    stand, once = steps_stand(ranks_of(run)), once_fact(ranks_of(run))
    before_step_ns = step_ns(run.work, before, run.records) if stand else None

    def gaining_of(one: Candidate) -> Advice:
        return _with_gain(one.advice, one.changes, run, groups, before, before_step_ns, path_ns)

    if len(run.work) > _MANY_NODES:
        tells = side_by_side(gaining_of, trying, [_BYTES_A_NODE * len(run.work)] * len(trying))
    else:
        tells = [gaining_of(one) for one in trying]
    tried = [one._replace(advice=tell) for one, tell in zip(trying, tells, strict=True)]
    told = _one_of_each_cause(tried, selection)
    gaining = [one for one in told if one.advice.gain_ns is None or one.advice.gain_ns > 0]
    causes, bare = main_causes(ranks_of(run))
    stages = getattr(getattr(run.summary, "pipeline", None), "bubble_rate_makespan", UNSET)
    stages_pct = 0.0 if stages is UNSET else 100 * stages
    gaining = in_order(gaining, _about(causes), 100 * bare, stages_pct, most_once=bool(once) and not stand)
    compiled = bool(names_found(run.work, _COMPILED).any())
    advice = [_numbered(one.advice, k, prefix, compiled=compiled) for k, one in enumerate(gaining, 1)]
    files = dict(zip(run.ranks, run.work.files, strict=True))
    report = AdviceReport(
        ranks=list(run.ranks),
        machine=machine,
        replayed_ns=before.total_ns,
        path_ns=path_ns,
        advice=advice,
        notes=[*cannot(files, machine, Changes()), *_of_recorder(run, advice)],
        once=once,
    )
    return report, [one.changes for one in gaining]


def _numbered(advice: Advice, number: int, prefix: Sequence[str], *, compiled: bool) -> Advice:
    """Return the advice with its folder in its texts, and with its command: by options where they can tell the change
    and fit on a line, else by its number."""
    texts = (advice.evidence, advice.todo, advice.why_not)
    evidence, todo, why_not = (_DIR.sub(lambda _: shlex.quote(prefix[2]), text) for text in texts)
    options = advice.command if advice.command and len(advice.command) <= _LINE else f"--advice {number}"
    command = f"{shlex.join(prefix)} {options}" if advice.gain_ns is not None else ""
    code = line_for(todo if not compiled else re.sub(r"torch\.compile(?!\()", "", todo))
    return replace(advice, evidence=evidence, todo=todo, code=code, why_not=why_not, command=command)


def in_order(
    advice: Sequence[Candidate], about: Collection[Kind], bare_pct: float, stages_pct: float, *, most_once: bool
) -> list[Candidate]:
    """Return the advice by its gain of a step, else of the run, behind what disturbs the run from outside, then what
    came once, then what has no gain or none of a step, then what gains too little to be printed. What came once is
    first where nothing gains a hundredth (then no work of the rest is worth a faster implementation), or ``most_once``:
    most of the run did, and its other steps do not stand for it. Launches stand behind an op that takes far longer than
    one, behind small collectives, and behind advice ``about`` the main fact, if they gain no more than twice as much;
    what can go as a whole, a pause or a range beside the training, before both. Work that could be faster and messages
    stand so behind what makes a rank late. Waits that gain more than the share of time in which GPUs computed nothing,
    ``bare_pct``, stand as launches do: these have as much to compute without them. Messages stand behind stages of a
    pipeline idle for longer, ``stages_pct``."""

    def most(some: Callable[[Candidate], bool]) -> float:
        return max((one.advice.share_pct for one in advice if one.advice.most_pct is not None and some(one)), default=0)

    heaviest = most(
        lambda one: one.advice.kind == "small_collectives" or (one.advice.kind, one.cause[: len(HEAVY)]) == _HEAVIEST
    )
    late = most(lambda one: one.advice.kind == "straggler")
    main = most(lambda one: one.advice.kind in about)
    messages = most(lambda one: one.advice.kind in _OF_MESSAGES)

    def place(candidate: Candidate) -> tuple[int, float, bool]:
        one, gain, least = candidate.advice, candidate.advice.share_pct, candidate.advice.most_pct or 0
        supposing = candidate.cause == LAUNCHES or (one.kind == "blocking_sync" and gain > bare_pct)
        follows = one.kind in ("heaviest_work", "exposed_communication")
        ahead = max(heaviest, main * (one.kind not in about)) if supposing else late * follows
        behind = gain <= 2 * ahead  # of heavy work half of its time is the gain
        whole = one.kind == "python_pause" or candidate.cause.startswith(ASIDE)
        places = (
            (one.most_pct is None, (_WITHOUT_GAIN.get(one.kind, 3), 0.0, False)),
            (one.kind == "pipeline_bubble" and stages_pct > messages, (0, -max(gain, messages), False)),
            (candidate.cause == OUTSIDE and gain >= 1, (-1, -gain, False)),
            # it can go whole, and no op takes half of its time for the asking; some steps have all of it
            (whole and gain >= _MUCH_PCT, (0, -gain * candidate.seldom - heaviest, False)),
            (least < LEAST_PCT, (4, -gain, False)),
            (
                True,
                (3 * (gain < LEAST_PCT), -min(gain, ahead) if behind else -gain, behind or one.kind in _OF_MESSAGES),
            ),
        )
        return next(key for holds, key in places if holds)

    much = any(-place(one)[1] >= ENOUGH_PCT for one in advice)
    ahead = ("once",) if most_once else () if much else _MAIN
    if any(candidate.advice.kind == "once" for candidate in advice):
        least_pct = LEAST_PCT if much else math.inf
        advice = [one for one in advice if one.advice.kind != "heaviest_work" or one.advice.share_pct >= least_pct]
    return sorted(advice, key=lambda each: (each.advice.kind not in ahead or each.changes is not None, *place(each)))


def _one_of_each_cause(tried: Sequence[Candidate], selection: Selection) -> list[Candidate]:
    """Return the advice with one alone for each cause: of a rank that is late, else the one that gains most, and CUDA
    graphs where nothing else gains a tenth more; if graphs are refused, the other one says why. Work that is heavy goes
    where other advice is about the same nodes."""

    def worth(candidate: Candidate) -> float:
        advice, changes, *_ = candidate
        preferred = changes is not None and (changes.cuda_graph or changes.buckets)
        gain = -1.0 if advice.gain_ns is None else float(advice.gain_ns)
        return gain * _PREFERRED if gain > 0 and (preferred or advice.kind in ("straggler", "python_pause")) else gain

    best: dict[str, Candidate] = {}
    for one in sorted(tried, key=worth, reverse=True):
        best.setdefault(one.cause, one)
    kept = [
        one for one in tried if not one.cause or (best[one.cause] is one and (worth(one) > 0 or one.cause in _REFUSED))
    ]
    kept = [one for one in kept if one.advice.kind != "heaviest_work" or not _covered(one, kept, selection)]
    kept = _with_its_cause(kept, selection)
    refused = {
        one.cause: one.advice.why_not.replace("[[buckets]] ", "not computed: ")
        for one in reversed(tried)
        if one.cause and one.advice.why_not
    }
    return [
        one._replace(advice=replace(one.advice, evidence=f"{one.advice.evidence}; {refused[one.cause]}"))
        if one.cause in refused and one.advice.gain_ns is not None
        else one
        for one in kept
    ]


def _with_its_cause(advice: list[Candidate], selection: Selection) -> list[Candidate]:
    """Return the advice with that of a late rank and that of its cause as one: whose work is that rank's."""
    late = next((one for one in advice if one.advice.kind == "straggler" and one.changes), None)
    causes = [one for one in advice if late and one is not late and _same(one, late, selection)]
    if late is None or not causes:
        return advice
    cause, gone = max(causes, key=lambda one: one.advice.gain_ns or 0), [late, *causes]
    best = max(cause, late, key=lambda one: one.advice.gain_ns or 0)
    short = late.advice.evidence.partition("; all ranks waited ")[0]  # the cause says what takes it longer
    late = late._replace(advice=replace(late.advice, evidence=short))
    named, other = (cause, late) if cause.advice.kind == "pipeline_bubble" else (late, cause)
    joined = replace(
        best.advice,
        kind=named.advice.kind,
        what=f"{named.advice.what}: {other.advice.what}",
        evidence=f"{named.advice.evidence}; {other.advice.evidence}",
        todo=f"{cause.advice.todo}; {late.advice.todo}",
    )
    return [best._replace(advice=joined) if one is cause else one for one in advice if one is cause or one not in gone]


def _same(one: Candidate, other: Candidate, selection: Selection) -> bool:
    """Tell whether both are about the same nodes, but for a tenth of the time of either."""
    cost_ns, (nodes, others) = selection.work.cost_ns, (_changed(each, selection) for each in (one, other))
    return bool(cost_ns[nodes & others].sum() >= _MOST * max(int(cost_ns[nodes].sum()), int(cost_ns[others].sum()), 1))


def _covered(heavy: Candidate, others: Sequence[Candidate], selection: Selection) -> bool:
    """Tell whether other advice that gains as much changes most of the nodes that ``heavy`` is about."""
    least_ns, cost_ns, own = heavy.advice.gain_ns or 0, selection.work.cost_ns, _changed(heavy, selection)
    as_much = [one for one in others if one is not heavy and (one.advice.gain_ns or 0) >= least_ns]
    nodes = np.any([own & _changed(one, selection) for one in as_much], axis=0)
    return bool(as_much) and bool(cost_ns[nodes].sum() >= _MOST * cost_ns[own].sum())


def _changed(candidate: Candidate, selection: Selection) -> Bool:
    """Return the nodes whose times an advice is about; none where these are all nodes of steps."""
    changes = candidate.changes or Changes()
    some = [selection.nodes(one) for one in changes.time if one.anything and (one.rank is not None or not one.even_out)]
    some += [loaders_of(selection.work)[0] != NOWHERE for _ in changes.dataloader]
    return np.asarray(np.any([np.zeros(len(selection.work), np.bool_), *some], axis=0))


def _of_recorder(run: Outputs, told: Sequence[Advice]) -> list[str]:
    """Note that the lines of Python that wait are not known, and that the execution trace slows the host down, where
    advice is about these."""
    kinds, by_rank = {one.kind for one in told}, {rank.rank: rank for rank in run.summary.ranks}
    lines = any(one.stack for file in run.operations.values() for one in file.operations)
    slowed = any(by_rank[rank].inputs.et is not None and by_rank[rank].gpu for rank in run.ranks)
    notes = (("blocking_sync", not lines, _NO_LINES), ("launch_bound", slowed, _ET))
    return [note for kind, holds, note in notes if kind in kinds and holds]


def _with_gain(
    advice: Advice,
    changes: Changes | None,
    run: Outputs,
    groups: Groups,
    before: Played,
    before_step_ns: float | None,
    path_ns: int,
) -> Advice:
    work, records = run.work, run.records
    without = replace(advice, supposed="")
    if changes is None:
        return without
    try:
        changed = fit(work, changes, groups, run.selection, placed=False)
    except UsageError as problem:
        return replace(without, why_not=problem.what)
    if changed.refused:
        return replace(without, why_not=next(iter(changed.refused.values())).what)
    after = ends(changed.work, groups)
    if not (before.ran.all() and after.ran.all()):
        return replace(without, why_not=_STUCK)
    gain_ns, after_step_ns = before.total_ns - after.total_ns, step_ns(changed.work, after, records)
    if gain_ns <= 0 and advice.why_not:
        return without
    banded = gain_ns > 0 and not unmeasured(changes)
    path = critical_path(changed.work, after := followed(changed.work, after)) if banded else None
    titles = [change.title for change in changes.each()]
    options = [part for title in titles for part in title.split(" ", 1)]
    sooner = advice.kind == "launch_bound" and 10 * gain_ns > 11 * sum(
        idle_ns_of(run, cause) for cause in ("host_work", "python")
    )  # by more than a tenth
    return replace(
        without,
        why_not="",
        gain_ns=gain_ns,
        gain_pct=gain_pct(gain_ns, path_ns),
        gain_step_pct=round(100 - 100 * after_step_ns / before_step_ns, 6)
        if before_step_ns and after_step_ns is not None
        else None,
        band=band(changes, work, changed.work, before.total_ns, after, path, records) if gain_ns > 0 else None,
        supposed=advice.supposed
        + (_beyond_idle(run, changed.work, before.total_ns - gain_ns, gain_ns) or _SOONER * sooner),
        command="" if any(title.startswith("[[") for title in titles) else shlex.join(options),
    )


def _beyond_idle(run: Outputs, changed: Workload, after_ns: int, gain_ns: int) -> str:
    """Return of a change that leaves device ops as they are how it can gain more than the time in which a device ran
    none; "" where it does not."""
    devices = [(rank.replay.measured_ns, gpu, spent([gpu])) for rank in ranks_of(run) for gpu in rank.gpu]
    idle_ns = max((ns - times.total() + times["idle_ns"] for ns, _, times in devices), default=gain_ns)
    works = (run.work, changed) if gain_ns > idle_ns else ()
    took_ns = [(each.cost_ns - each.fixed_ns)[np.isin(each.work, _ON_DEVICE)].sum() for each in works]
    if not took_ns or took_ns[1] < took_ns[0]:
        return ""
    at_once = after_ns < max(gpu.compute_ns for _, gpu, _ in devices)
    why = "kernels that ran one behind the other run at once then, so a real change saves less"
    hidden = "copies and communication that nothing hid run beside other work then"
    return f"; more than the {ms(idle_ns)} ms in which no op ran on a device: {why if at_once else hidden}"
