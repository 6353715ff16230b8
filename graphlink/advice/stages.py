"""What may be worth a change where stages of a pipeline stand idle: which stage, and what of it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import asdict

from graphlink import output_names
from graphlink.advice.outputs import Candidate, Outputs, ranks_of
from graphlink.advice.records import Advice
from graphlink.advice.uneven import slower
from graphlink.causes import OF_STAGE
from graphlink.model import NOWHERE
from graphlink.records import counted, ms, percent, shares_words
from graphlink.replay.changes import Changes
from graphlink.wings import provided

_OTHERS: Final = ("warmup", "cooldown", "dependency_stall", "straggler_wait")  # what a stage waits for others
_OF_PARTS: Final = {  # what of a stage parts of idle time are about
    "imbalance": ("work", "was at work"),
    "communication": ("exposed_communication", "exchanged messages"),
}
_SLOWER: Final = 1.1  # times as long as the others: a stage that these wait for
# what to do by the part of idle time that theory tells as the largest, else by what takes the slowest stage longer
_TODO: Final = {
    "schedule": "more microbatches, another schedule{microbatches}: or several stages on each rank, interleaved",
    "imbalance": "equal stages: move layers from {stage} to {least}",
    "work": "make {stage} as quick each time: inputs of equal sizes, cores of its own",
    "once": "record more steps, after a warm-up: {stage} took that long in one pass",
    "communication": "begin to send and to receive earlier (isend, irecv), send less (bf16), first for {stage}",
    "exposed_communication": "begin to send and to receive earlier (isend, irecv), send less (bf16), first for {stage}",
    "dependency_stall": "make {stage} quicker, and as quick each time (its host, other processes on its cores)",
    "launch_starved": "less for the host of {stage} to do between its passes: larger and fewer ops (torch.compile), "
    "less Python, cores of its own",
    "no_core": "cores of its own for {stage}: fewer processes and threads on its host (OMP_NUM_THREADS); less Python "
    "between its passes",  # where the host itself computes
    "host_sync": "no synchronisation (.item(), .cpu(), print) between the microbatches of {stage}",
    "data_loading": "load the data of {stage} ahead",
    "memory_management": "keep sizes equal in {stage}, so that nothing is allocated",
}
_NOBODY: Final = {"stage": "the stages that others wait for", "least": "others"}
_MORE: Final = "; then more microbatches{microbatches}, which leave less to wait for"


def stages(run: Outputs) -> Iterator[Candidate]:
    """Return that stages stand idle: with the stage that others wait for, and by what takes it longer than them; its
    gain is that of a stage whose own work takes as long as on the others."""
    pipeline = getattr(run.summary, "pipeline", None)
    if not pipeline or pipeline.stages < 2:
        return
    causes, parts = pipeline.causes_ns, {} if pipeline.theory is UNSET else asdict(pipeline.theory.parts_ns)
    whole_ns = parts.pop("measured", 0)
    part = max(parts, key=parts.__getitem__, default="schedule")
    words, why, cause, computed, changes = _NOBODY, "", part, "", Changes()
    idle, count = pipeline.bubble_rate_makespan, pipeline.microbatches
    if run.folder is not None:
        file = provided("answers", "bubbles")(run.folder / output_names.BUBBLES)
        rank, words, why, cause = _slowest(file, part)
        changes = slower(run.work, rank)[0] if part == "rest" and cause != "once" else changes
        if count and (took_ns := provided("answers", "makespans")(file, count, 2 * count)):
            computed = (
                f"; graphlink bubbles DIR --schedule {pipeline.schedule.lower()} --microbatches {2 * count} computes "
                f"{ms(took_ns[1])} ms where {count} take {ms(took_ns[0])}: half of it for as many samples, if half a "
                "microbatch takes half its time"
            )
    if cause == "rest":
        cause = max(causes.keys() & _TODO.keys(), key=causes.__getitem__, default="schedule")
    if cause == "launch_starved" and not any(rank.gpu for rank in ranks_of(run)):
        cause = "no_core"
    share = "" if idle is UNSET else f", {percent(idle, 1)} of the time of its steps"
    more = {"microbatches": f" (n_microbatches={2 * count} in place of {count})" * (count > 0)}
    named = {f"{OF_STAGE.get(name, name)} ({name})": ns for name, ns in causes.items()}
    why_not = (
        "another schedule is another program: graphlink bubbles DIR --schedule zb-h1 --input-share 0.5 simulates one"
        if part == "schedule"
        else "no replay changes that alone; another schedule could save only its own part, "
        f"{percent(parts['schedule'], whole_ns)} of that time"
    )
    yield Candidate(
        Advice(
            kind="pipeline_bubble",
            what="stages of the pipeline stand idle",
            evidence=f"{ms(sum(causes.values()))} ms on {counted(pipeline.stages, 'rank')} together{share}: "
            f"{shares_words(named, sum(causes.values()), 3)}{why}{computed}",
            todo=(_TODO[cause] + _MORE * (cause != "schedule")).format_map(words | more),
            supposed="if its own work took as long as on the other ranks",
            why_not=why_not,
        ),
        changes if changes.any else None,
    )


def _slowest(file: Any, part: str) -> tuple[int, dict[str, str], str, str]:
    """Return the rank of the stage that waits for no other one for longest, ``NOWHERE`` where none stands out, it and
    the one with least work in words, what shows that, and what takes it longest beyond what that takes the others:
    ``part`` where these take as long."""
    own = [{"work": one.work_ns, **{k: ns for k, ns in one.idle_ns.items() if k not in _OTHERS}} for one in file.stages]
    of_part, busy = _OF_PARTS.get(part, ("", "waited for no other stage"))
    took = [spent.get(of_part, 0) if of_part else sum(spent.values()) for spent in own]
    most, least = took.index(max(took)), min(range(len(own)), key=lambda k: own[k]["work"])
    others = [k for k in range(len(own)) if k != most] or [most]
    usual_ns = round(median(took[k] for k in others))
    if took[most] <= _SLOWER * usual_ns:
        return NOWHERE, _NOBODY, "", part
    named = [f"stage {one.stage} (rank {one.rank})" for one in file.stages]
    each = ", ".join(f"{name} {ms(ns)}" for name, ns in own[most].items() if ns)  # as graphlink bubbles shows them
    of = "" if of_part else f" ({each})"
    why = f"; {named[most]} {busy} for {ms(took[most])} ms{of}, the others for {ms(usual_ns)}"
    if part == "rest":
        more = {name: ns - median(own[k].get(name, 0) for k in others) for name, ns in own[most].items()}
        part = max(more, key=more.__getitem__)
        why += f", {ms(round(more[part]))} ms of the difference: {OF_STAGE.get(part, 'more to compute')}"
        passes = [one for one in file.ranges if part == "work" and one.rank == file.stages[most].rank]
        longest = max(passes, key=lambda one: one.busy_ns, default=None)
        if longest is not None and 2 * longest.busy_ns > more[part]:
            part, why = "once", f"{why}, {ms(longest.busy_ns)} ms in one {longest.phase} alone"
    return file.stages[most].rank, {"stage": named[most], "least": named[least]}, why, part
