"""The verdict in three sentences: what a step takes and why GPUs are idle, what would gain most, how far to
trust it.
"""

from __future__ import annotations

from statistics import median
from typing import Final

from msgspec import UNSET

from graphlink.causes import MEANING
from graphlink.gpu.summary import exposed_percent, idle_percent
from graphlink.page.found import Found
from graphlink.page.parts import Figure, Sentence, Words
from graphlink.page.words import name, share_figure, time_figure
from graphlink.pipeline.summary import Pipeline
from graphlink.records import counted, shortened
from graphlink.replay.band import uncertain
from graphlink.report.summary import MOST_BLOCKS, Rank
from graphlink.standstill.summary import all_stood, explained

_MEANING: Final = {str(cause): text for cause, text in MEANING.items()}


def verdict(found: Found) -> list[Sentence]:
    """Return the sentences; of a folder without graphs (Paddle's logs) what its pipeline says."""
    if not found.ranks:
        return _of_pipeline(found)
    return [Sentence([*_step(found), *_idle(found)]), Sentence(_gain(found)), Sentence(_trust(found))]


def _of_pipeline(found: Found) -> list[Sentence]:
    pipeline = found.summary.pipeline
    if pipeline is None:
        return [Sentence(["The folder holds no graph and no pipeline: there is nothing to tell."])]
    why = "No gain was computed: the recording has no graph that could be replayed."
    trust = "The figures are those of the log: how long jobs of the pipeline took, and when."
    return [
        Sentence(_bubbles(pipeline)),
        Sentence([why]),
        Sentence([trust]),
    ]


def _bubbles(pipeline: Pipeline) -> Words:
    lost = sum(pipeline.causes_ns.values())
    most = max(pipeline.causes_ns, key=pipeline.causes_ns.__getitem__, default="unknown")
    share = share_figure(pipeline.causes_ns.get(most, 0), lost, "bubble")
    stages = f", summed over {counted(pipeline.stages, 'stage')}, mostly "
    return ["The pipeline stood idle for ", time_figure(lost, "bubble"), stages, name(most), " (", share, ")."]


def _step_ns(rank: Rank) -> int:
    """Return how long the usual step of a rank takes, or else its recording."""
    told = rank.iterations
    return rank.replay.measured_ns if told is UNSET else told.first_ns if told.mean_ns is None else told.mean_ns


def _step(found: Found) -> Words:
    rank = max(found.ranks, key=lambda one: (_step_ns(one), -one.rank))
    at, told = f"summary.json#/ranks/{found.at[rank.rank]}", rank.iterations
    on = f" on rank {rank.rank}, the slowest" if len(found.ranks) > 1 else ""
    if told is UNSET:
        took = time_figure(rank.replay.measured_ns, "recorded", f"{at}/replay/measured_ns")
        return ["The recording takes ", took, f"{on}; it marks no steps."]
    if told.mean_ns is None:
        return ["The recorded step takes ", time_figure(told.first_ns, "step", f"{at}/iterations/first_ns"), f"{on}."]
    mean = time_figure(told.mean_ns, "step", f"{at}/iterations/mean_ns")
    of = f"mean of {told.count - 1:,}, the first set aside" if told.count > 2 else "the first set aside"
    return ["A step takes ", mean, f" ({of}){on}."]


def _idle(found: Found) -> Words:
    ranks = [rank for rank in found.ranks if rank.gpu]
    if not ranks:
        pipeline = found.summary.pipeline
        return [" No device ops were recorded.", *([" ", *_bubbles(pipeline)] if pipeline else [])]
    worst = max(ranks, key=lambda one: (idle_percent(one), -one.rank))
    told = _one(worst, several=len(ranks) > 1)
    others: Words = []
    if len(ranks) > MOST_BLOCKS:
        usual = median(idle_percent(rank) for rank in ranks)
        others = [f" The median of the {len(ranks)} ranks is ", Figure(f"{usual:.1f} %", usual / 100, "idle"), " idle."]
    busy = max(ranks, key=lambda one: (exposed_percent(one), -one.rank))
    exposed, whole = sum(one.exposed_comm_ns for one in busy.gpu), _whole(busy)
    if exposed > sum(one.idle_ns for one in busy.gpu):
        share = share_figure(exposed, whole, "exposed_communication")
        others += [f" Rank {busy.rank} spends ", share, " of its GPU time in communication that nothing hides."]
    return [" ", *told, *others]


def _whole(rank: Rank) -> int:
    return sum(one.whole_ns for one in rank.gpu) or 1


def _one(rank: Rank, *, several: bool) -> Words:
    """Tell how much of their time the GPUs of a rank, of ``several`` or alone, are idle, and mostly why."""
    idle, whole = sum(one.idle_ns for one in rank.gpu), _whole(rank)
    causes: dict[str, int] = {}
    for one in rank.gpu:
        for cause, ns in one.idle_by_cause_ns.items():
            causes[cause] = causes.get(cause, 0) + ns
    single = len(rank.gpu) == 1
    gpus = "GPU" if single else "GPUs" if several else f"{len(rank.gpu)} GPUs"
    of = f" of rank {rank.rank}" if several else ""
    words: Words = [
        f"The {gpus}{of} {'is' if single else 'are'} idle for ",
        share_figure(idle, whole, "idle"),
        " of ",
        time_figure(whole, "gpu_time"),
    ]
    if not idle:
        return [*words, "."]
    most = max(causes, key=causes.__getitem__)
    return [
        *words,
        ", mostly ",
        name(most),
        " (",
        share_figure(causes[most], idle, most),
        f" of it: {_MEANING.get(most, most)}).",
    ]


def _gain(found: Found) -> Words:
    report = found.advice
    best = next((one for one in report.advice if one.gain_ns), None) if report else None
    if report is None or best is None or best.gain_ns is None or best.gain_pct is None:
        return ["No change of those that were tried would make the run end earlier."]
    some = "" if len(report.ranks) == len(found.ranks) else f" on rank {report.ranks[0]}"
    k = report.advice.index(best)
    gain = time_figure(best.gain_ns, "gain", f"advice#/advice/{k}/gain_ns")
    share = Figure(f"{best.gain_pct:.1f} %", best.gain_pct / 100, "gain")
    doubt = (
        " A second run varies too much to tell this from no gain." if uncertain(best.band, report.replayed_ns) else ""
    )
    return [
        f"Where most can be gained{some}: {best.what}. The run would end ",
        share,
        " (",
        gain,
        f") earlier {best.supposed}.{doubt}",
    ]


def _trust(found: Found) -> Words:
    ranks = found.ranks
    least = min(ranks, key=lambda one: float(explained(all_stood(one.standstill))))
    share = explained(all_stood(least.standstill))
    stood = Figure(f"{share} %", float(share) / 100, "explained")
    some = "" if len(ranks) == 1 else ", at worst (rank " + f"{least.rank})"
    count = len({text for rank in ranks for text in rank.warnings}) + len(found.summary.warnings)
    noted = (
        f" {counted(count, 'warning')} below {'says' if count == 1 else 'say'} what the recording lacks."
        if count
        else ""
    )
    known = [
        " of the time that calls, threads and streams waited is explained",
        some,
        "; gains that hang on the rest are guesses." if float(share) < 95 else ".",
    ]
    return ["How far to trust it: ", *_error(found), " ", stood, "".join(known), noted]


def _error(found: Found) -> Words:
    """Tell the error of the replay that the gains are differences of: of all ranks together, where they were replayed
    so.
    """
    run = found.summary.run.replay if found.summary.run else None
    if run is not None and run.error_pct is not None and found.advice and len(found.advice.ranks) == len(found.ranks):
        error = Figure(f"{run.error_pct:+.3f} %", run.error_pct, "replay", "summary.json#/run/replay/error_pct")
        return ["the replay of all ranks together differs by ", error, " from the recording."]
    worst = max(found.ranks, key=lambda one: abs(one.replay.error_pct))
    at = f"summary.json#/ranks/{found.at[worst.rank]}/replay/error_pct"
    error = Figure(f"{worst.replay.error_pct:+.3f} %", worst.replay.error_pct, "replay", at)
    return [
        "the replay differs by ",
        error,
        " from the recording (that the graph agrees with itself is no prediction).",
    ]


def about(found: Found) -> str:
    """Return a line on what was recorded: ranks, GPUs, host, when."""
    ranks = found.ranks
    if not ranks:
        pipeline = found.summary.pipeline
        return f"{counted(pipeline.stages, 'stage')} of a pipeline, from logs" if pipeline else ""
    world = max(rank.world_size for rank in ranks)
    parts = [counted(len(ranks), "rank") if len(ranks) == world else f"{len(ranks):,} of {counted(world, 'rank')}"]
    gpus = {gpu for rank in ranks if rank.machine is not UNSET for gpu in rank.machine.gpus}
    hosts = {rank.machine.host for rank in ranks if rank.machine is not UNSET and rank.machine.host}
    parts += [", ".join(shortened(gpu) for gpu in sorted(gpus)[:3])] if gpus else []
    parts += [f"on {shortened(next(iter(hosts)))}" if len(hosts) == 1 else f"on {len(hosts)} hosts"] if hosts else []
    when = sorted(rank.inputs.recorded_at for rank in ranks if rank.inputs.recorded_at)
    return ", ".join([*parts, *([f"recorded {when[0]}"] if when else [])])
