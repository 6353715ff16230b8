"""The main fact of a run, at the top of what is printed of it and of its page: what its GPUs spent most of their time
on, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import asdict

from graphlink.causes import MEANING, OF_STAGE
from graphlink.gpu.table import idle_causes, replay_words, spent
from graphlink.records import counted, percent, share_word, shares_words, shortened, time
from graphlink.report.summary import SHOWN_ONCE, once_ns

MEANS: Final = {  # part of the time of a device -> what it does then, and what that means on a page
    "compute_ns": ("computing", "compute"),
    "exposed_comm_ns": ("communicating and computing nothing", "exposed_communication"),
    "exposed_copy_ns": ("copying and computing nothing", "exposed_copy"),
    "idle_ns": ("idle", "idle"),
}
_WORTH: Final = 0.05  # of the time of the GPUs: less idle time is told without its cause
_FEW: Final = 4  # times as much work as in the steps that count: these do not stand for the run
_LEAST_STEPS: Final = 3  # a first one, and others that can agree
_FIRST: Final = slice(1)
_OTHERS: Final = slice(1, None)
_APART: Final = 0.1  # of its time: by so much more than all together a rank has to spend on it to be named


class Figure(NamedTuple):
    """A figure or name in a sentence, as pages have them: ``means`` is a key of what they explain."""

    text: str
    value: float | None = None
    means: str = ""


Words = list[str | Figure]


def _share_of(part: float, whole: float, means: str) -> Figure:
    return Figure(percent(part, whole), part / whole if whole else 0.0, means)


def first_more_ns(rank: Any) -> int:
    """Return how much longer the first step of a rank took than the others on average, where it took more than twice
    as long as any of two or more; 0 where that is no hundredth of the critical path."""
    told = getattr(rank, "iterations", UNSET)
    if told is UNSET or told.count < _LEAST_STEPS or told.first_ns <= 2 * told.longest_ns:
        return 0
    more_ns = int(told.first_ns - told.mean_ns)
    return more_ns if 100 * more_ns >= rank.critical_path.length_ns else 0


def once_fact(ranks: Sequence[Any]) -> str:
    """Return what came once, and what to do about it, where that is most of the critical paths of ranks, in single
    calls or in first steps; else ""."""
    took_ns, whole_ns = sum(map(once_ns, ranks)), sum(rank.critical_path.length_ns for rank in ranks)
    in_calls = 2 * took_ns > whole_ns
    took_ns = took_ns if in_calls else sum(map(first_more_ns, ranks))
    if 2 * took_ns <= whole_ns:
        return ""
    most = max(ranks, key=once_ns if in_calls else first_more_ns)
    calls = (f"{shortened(gain.name)} ({time(gain.once_ns)})" for gain in most.once[:SHOWN_ONCE])
    paths = "the critical path" if len(ranks) == 1 else f"the critical paths of {len(ranks):,} ranks"
    into = (
        f"calls that took long once in this recording, such as {', '.join(calls)}"
        if in_calls
        else f"the first step, beyond the {time(most.iterations.mean_ns)} that others take: that came once in this "
        "recording"
    )
    return (
        f"{percent(took_ns, whole_ns)} of {paths}, {time(took_ns)} of {time(whole_ns)}, went into {into}. Record more "
        f"steps, after a warm-up, to see what takes long each time. All else took {time(whole_ns - took_ns)} here; "
        "gains are per cent of the whole."
    )


def main_fact(summary: Any) -> Words:
    """Return the fact in one to five sentences, of ranks together, behind what came once where that is most of it;
    nothing without ranks."""
    every, once = [rank for rank in summary.ranks if rank.gpu], once_fact(summary.ranks)
    fact = _of_gpus(every, summary.run) if every else _of_host(summary) if summary.ranks else []
    return [f"{once} " * bool(once), *fact]


def main_causes(ranks: Sequence[Any]) -> tuple[list[str], float]:
    """Return what GPUs spent most of their time on, by its key in ``MEANS``, and of idle time that is worth a word the
    largest cause; and the share of time in which they computed nothing. Nothing and 1 without GPUs."""
    if not (with_gpus := [rank for rank in ranks if rank.gpu]):
        return [], 1.0
    counting, _ = _in_steps(with_gpus)
    times = _spent(counting)
    most = max(times, key=times.__getitem__)
    causes = idle_causes(*counting)
    told = causes.most_common(1) if _ratio(times, "idle_ns") >= _WORTH else []
    return [*([most] if most != "idle_ns" else []), *(cause for cause, _ in told)], 1 - _ratio(times, "compute_ns")


def _of_gpus(every: Sequence[Any], run: Any) -> Words:
    ranks, when = _in_steps(every)
    times, devices = _spent(ranks), sum(len(rank.gpu) for rank in every)
    who = "the GPU" if devices == 1 else f"the {devices:,} GPUs"
    tells_idle = times["idle_ns"] >= _WORTH * times.total()
    unknown = _not_known(ranks, [gpu for rank in every for gpu in rank.gpu], who) if tells_idle else []
    span = [] if when else _span(ranks, who)
    rest = f"in the rest {'it' if devices == 1 else 'they'}" if span else f"{when}{who}"
    start = f"{rest} {'spends' if devices == 1 else 'together spend'} "
    start = f"As recorded, {start[0].lower()}{start[1:]}" if unknown else start[0].upper() + start[1:]
    words, most = Words(), times.most_common(1)[0][0]
    apart_ns = sum(gpu.excluded_ns or 0 for rank in ranks for gpu in rank.gpu)
    without = f"{time(apart_ns)} of waiting in collectives that are excluded"
    notes: Words = [f" {without} are left out."] * (apart_ns > 0)
    if devices > 1:
        whole = Figure(time(times.total()), times.total(), "gpu_time")
        notes = [" Their times add up to ", whole, f", without {without}" * (apart_ns > 0), "."]
    if times["exposed_comm_ns"] >= _WORTH * times.total() and (some := unseen(every)):
        notes += [f" {some[0].upper()}{some[1:]}."]
    for part, ns in times.most_common():
        if part == most or percent(ns, times.total()) != "0.0 %":
            why = _why_idle(ranks) if part == "idle_ns" and tells_idle else []
            why = _why_waiting(ranks, run) if part == most == "exposed_comm_ns" else why
            share: Words = [_share_of(ns, times.total(), MEANS[part][1])]
            share = share if part != most else _share(times, part) if devices == 1 else [*share, " of their time"]
            words += [*share, f" {MEANS[part][0]}", *why, "; " if why else ", "]
    others = _of_others(ranks, run, most) if len(ranks) > 1 else []
    return [*span, *unknown, start, *words[:-1], ".", *notes, *others]


def unseen(ranks: Sequence[Any]) -> str:
    """Return that communication may hold waiting for ranks that are not linked; "" where all are."""
    linked, world = len(ranks), max((rank.world_size for rank in ranks), default=0)
    some = f"{linked:,} of {world:,} ranks {'is' if linked == 1 else 'are'} linked"
    return f"{some}: communication may hold waiting for the others" * (linked < world)


def _in_steps(ranks: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """Return the ranks with the time of their GPUs in the steps that count, all but the first, and when that is, in
    words; as they are and "" where a rank has no such steps, its host ran ahead in them, or three quarters of the work
    lie outside of these, but for that of the first where the others agree."""
    counting = [
        SimpleNamespace(rank=rank.rank, gpu=[gpu for step in rank.steps[1:] for gpu in step.gpu]) for rank in ranks
    ]
    inside, busy = (_work_ns(gpu for rank in some for gpu in rank.gpu) for some in (counting, ranks))
    ahead = any(getattr(getattr(rank, "iterations", None), "on_device_ns", UNSET) is not UNSET for rank in ranks)
    busy -= _agree(ranks) * _work_ns(gpu for rank in ranks for step in rank.steps[_FIRST] for gpu in step.gpu)
    if not all(part.gpu for part in counting) or _FEW * inside < busy or ahead:
        return ranks, ""
    count = max(len(rank.steps) for rank in ranks) - 1
    return counting, f"In the {f'{count:,} steps' if count > 1 else 'step'} after the first, "


def steps_stand(ranks: Sequence[Any]) -> bool:
    """Tell whether the steps that count, all but the first, stand for the run: they agree, or GPUs have a quarter of
    the work of the first there, and more."""
    parts = ([gpu for rank in ranks for step in rank.steps[part] for gpu in step.gpu] for part in (_FIRST, _OTHERS))
    first, others = map(_work_ns, parts)
    return _FEW * others >= first or _agree(ranks)


def _agree(ranks: Sequence[Any]) -> bool:
    """Tell whether each rank has two or more steps after the first in which its GPUs have about as much work: no work
    is two standard deviations and more from the mean."""
    work_ns = [[_work_ns(step.gpu) for step in rank.steps[_OTHERS]] for rank in ranks]
    return all(len(steps) > 1 and 2 * pstdev(steps) < fmean(steps) for steps in work_ns)


def _work_ns(devices: Iterable[Any]) -> int:
    times = spent([*devices])
    return times.total() - times["idle_ns"]


def _not_known(ranks: Sequence[Any], devices: Sequence[Any], who: str) -> Words:
    """Return what ``devices`` may have run that is not recorded and counts as idle: replays of graphs, else all that
    ``who`` did in idle time for which nothing tells a reason, where that is most of it; nothing without either."""
    if replays := replay_words(*devices):
        some = replays.removeprefix("; recorded ")
        return [f"Only {some} of graphs are recorded: what GPUs ran in the others is not known and counts as idle. "]
    causes = idle_causes(*ranks)
    if 2 * causes["unknown"] <= causes.total():
        return []
    whole = _spent(ranks).total()
    return [
        f"What {who} did in ",
        _share_of(causes["unknown"], whole, "unknown"),
        f" of {time(whole)} is not known: the recording shows no work there, and no reason. ",
    ]


def _span(ranks: Sequence[Any], who: str) -> Words:
    """Return for how much of the run its GPUs had no work, before and after all of theirs, where that is most of it."""
    work_ns, run_ns = _spent(ranks).total(), sum(rank.replay.measured_ns * len(rank.gpu) for rank in ranks)
    if 2 * work_ns >= run_ns:
        return []
    has = "has" if sum(len(rank.gpu) for rank in ranks) == 1 else "together have"
    return [
        f"{who[0].upper()}{who[1:]} {has} no work in ",
        _share_of(run_ns - work_ns, run_ns, "no_work"),
        f" of the run's {time(run_ns)}. ",
    ]


def _spent(ranks: Sequence[Any]) -> Counter[str]:
    return spent([gpu for rank in ranks for gpu in rank.gpu])


def _share(spent: Counter[str], field: str) -> Words:
    whole = spent.total()
    return [_share_of(spent[field], whole, MEANS[field][1]), " of ", Figure(time(whole), whole, "gpu_time")]


def _why_idle(ranks: Sequence[Any]) -> Words:
    """Return the cause of most idle time of ranks, behind the share of it."""
    causes = idle_causes(*ranks)
    most, ns = causes.most_common(1)[0]
    known = MEANING.get(most, most)
    return [": ", known, " (", Figure(most), ", ", _share_of(ns, causes.total(), most), " of the idle time)"]


def _why_waiting(ranks: Sequence[Any], run: Any) -> Words:
    """Return whom communication waited for, where that is most of it and one rank stands out."""
    numbers = {rank.rank for rank in ranks}
    waited = sum(wait.wait_ns for wait in run.waits if wait.rank in numbers) if run is not None else 0
    late = run.straggler if run is not None else None
    if late is None or 2 * waited < _spent(ranks)["exposed_comm_ns"]:
        return []
    how_often = late.evidence.partition(" (")[0].removeprefix(f"rank {late.rank} ")
    return [f": mostly waiting for rank {late.rank}, which {how_often}"]


def _of_others(ranks: Sequence[Any], run: Any, most: str) -> Words:
    """Return the rank that is idle for a far larger share than all together, and one whose own main fact is
    communication."""
    idle, comm, words = "idle_ns", "exposed_comm_ns", Words()
    first, busy = (max(ranks, key=lambda rank: (_ratio(_spent([rank]), part), -rank.rank)) for part in (idle, comm))
    times = _spent([first])
    if _ratio(times, idle) > _ratio(_spent(ranks), idle) + _APART:
        words += [f" Rank {first.rank} is idle most: ", *_share(times, idle), "."]
    times = _spent([busy])
    if most != comm and max(times, key=times.__getitem__) == comm:
        words += [f" Rank {busy.rank} spends ", *_share(times, comm), " ", MEANS[comm][0]]
        words += [*_why_waiting([busy], run), "."]
    return words


def _ratio(times: Counter[str], part: str) -> float:
    return times[part] / (times.total() or 1)


def _of_host(summary: Any) -> Words:
    """Return what decides how long a run without GPUs takes."""
    run = summary.run.replay if summary.run else None
    parts = run.path_share_ns if run else asdict(summary.ranks[0].critical_path.share_ns)
    shares = shares_words({share_word(share): ns for share, ns in parts.items()}, sum(parts.values()))
    told = _of_pipeline(getattr(summary, "pipeline", None))
    chain = f"{'. The' if told else ': the'} longest chain of work in the run is {shares}" if shares else ""
    return ["No work of a GPU was recorded", *told, chain, "."]


def _of_pipeline(pipeline: Any) -> Words:
    """Return for how much of its steps a pipeline stands idle, and why most; nothing without one."""
    idle = getattr(pipeline, "bubble_rate_makespan", UNSET)
    if idle is UNSET:
        return []
    causes, whole_ns = Counter(pipeline.causes_ns).most_common(1), sum(pipeline.causes_ns.values())
    return [
        f". In its steps the {counted(pipeline.stages, 'rank')} of the pipeline stand idle ",
        _share_of(idle, 1, "bubble"),
        " of the time",
        *(
            f"; the largest cause is {name} ({OF_STAGE.get(name, name)}; {percent(ns, whole_ns)} of the idle time)"
            for name, ns in causes
        ),
    ]
