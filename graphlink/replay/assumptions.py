"""Which assumption each kind of change rests on, and what it cannot know: one table, by the ``kind`` of a change. And
what no what-if of some graphs answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Final

import numpy as np

from graphlink.choices import ASTRA_SIM, FOLDED, JOINED
from graphlink.graph.fold import NAMES
from graphlink.graph_model import Graph, NodeType
from graphlink.replay.changes import AnyChange, Changes
from graphlink.replay.records import Made
from graphlink.replay.workload import DELAY_NAME, GAP_NAME, measured_ns

KEPT_SHARE: Final = 0.05  # unexplained time, of all, above which a what-if says so
_POLLS: Final = re.compile(r"^(cuda|cu|hip)(Event|Stream)Query$|is_completed|[Ee]vent[.:]+query")
_PATHS: Final = re.compile(r"^(cuda|hip)(Malloc|Free)(Async)?$|[Aa]utotun|[Tt]imeout")
ASSUMPTIONS: Final = {  # what it rests on, what it cannot know
    "scale": (
        "Only these times change: all else takes as long as recorded, and starts when what it waits for has ended.",
        "It cannot know whether other work on the same GPU, CPU or network becomes faster or slower through it.",
    ),
    "add_us": (
        "Each of these ops takes so much more or less, whatever it took, and no op less than 0.",
        "It cannot know whether other work on the same GPU, CPU or network becomes faster or slower through it.",
    ),
    "most_us": (
        "Each of these nodes that takes longer takes that long, and the others as long as recorded.",
        "It cannot know why some take longer.",
    ),
    "remove": (
        "Nothing needs the result of what is removed, and the call that launched a removed device op still costs its "
        "time.",
        "It cannot know what the program would do instead.",
    ),
    "like": (
        "An op takes here what the op of the same path, name and turn took in the other run.",
        "It cannot know whether the two runs did the same work under the same name.",
    ),
    "even_out": (
        "The rank has the same work as the others, so that its ops would take the median of theirs; each step has the "
        "same work, and what most steps do not have is not needed.",
        "It cannot know why a rank or step is slow: if it has more work than others, its time does not become theirs.",
    ),
    "launch_us": (
        "Each launch call takes so much more or less in its thread, and no op less than 0.",
        "It cannot know what of the time of an op its launch call takes, as the two are recorded together in the "
        "graph.",
    ),
    "remove_wait": (
        "Nothing that the host does after the wait needs what it waited for.",
        "It cannot know whether the program reads the result there, nor how much memory runs ahead.",
    ),
    "move_wait": (
        "Nothing that the host does before the new place needs what it waited for. There a stream synchronisation "
        "awaits what is on its "
        "stream by then, and other calls what they awaited.",
        "It cannot know where the program first reads the result, whether an event is recorded again on the way, nor "
        "when a stream was "
        "told to wait for an event: the middle of when that can have been is taken.",
    ),
    "cuda_graph": (
        "Each part does the same work whenever it runs, and its device ops take as long as when they are launched one "
        "by one.",
        "It cannot know whether sizes or decisions of the host change from one time to the next, which a graph cannot "
        "follow.",
    ),
    "buckets": (
        "A collective takes a latency and its bytes over a bandwidth, as those of its group in the recording. "
        "Gradients of a divided one "
        "come evenly over the time since the one before.",
        "It cannot know in which order another division would take the gradients, what copying them together costs, "
        "nor, where hosts communicate, how much quicker ops are on few cores with fewer collectives beside them.",
    ),
    "dataloader": (
        "A worker takes as long for a batch as was recorded, without what recording cost its ops where bare steps are "
        "known, and other threads take as long as without it.",
        "It cannot know how much busy workers slow the main thread, nor what receiving a batch costs where the "
        "recording has no workers "
        "(counted as 0): the time is a lower bound.",
    ),
    "network": (
        "Communication takes the steps and bytes of ring algorithms, and nothing else uses the network meanwhile.",
        "It cannot know which algorithm the library would choose, nor how much other traffic slows it.",
    ),
}


def made(change: AnyChange, what: str, nodes: int, ns: int) -> Made:
    """Return what a change did, with its assumption."""
    rests_on, cannot_know = ASSUMPTIONS[change.kind]
    what = f"{change.done}: {what}"
    return Made(kind=change.kind, what=what, nodes=nodes, ns=ns, rests_on=rests_on, cannot_know=cannot_know)


def cannot(files: Mapping[int, Graph], machine: str, changes: Changes) -> list[str]:
    """Describe what a what-if of these graphs does not answer."""
    out = [*_timed_by_luck(files.values())]
    waits = any(np.isin(file.type, (NodeType.COMM_COLL, NodeType.COMM_RECV)).any() for file in files.values())
    if machine not in JOINED and waits and not changes.network:
        out.append(
            "communication takes as long as recorded, with its waiting; if all ranks are linked, --machine coupled "
            "replays the waiting"
        )
    out += _kept(files, changes)
    if _folded(files.values()) and any(change.sort in (None, "host") and change.name for change in changes.time):
        out.append(NAMES)
    if machine == ASTRA_SIM:
        out.append("in one slot a gain of one stream may be another's: compare with --machine ideal")
    return out


def of_graphs(files: Collection[Graph]) -> list[str]:
    """Describe what graphs lack, and what a replay leaves out of them and ASTRA-sim stumbles over."""
    notes = [NAMES] if _folded(files) else []
    errors = sum(len(file.file.faults.node) + len(file.file.duplicate_ids) for file in files)
    if errors:
        some = f"graphlink check: {errors:,} error{'s' * (errors > 1)} of ids and dependencies"
        notes.append(f"{some}, which are left out here and which ASTRA-sim stumbles over")
    return notes


def _folded(files: Collection[Graph]) -> bool:
    return any(file.metadata.host == FOLDED for file in files)


def _kept(files: Mapping[int, Graph], changes: Changes) -> list[str]:
    """Describe how much time nothing explains in the graph of the rank with most of it: what delayed it does not change
    with it.
    """
    changed = {change.sort for change in changes.time if not change.name}
    names = [name for name, sort in ((DELAY_NAME, "delay"), (GAP_NAME, "gap")) if sort not in changed]
    shares = []
    for rank, file in files.items():
        kept = np.isin(file.name, [i for i, name in enumerate(file.strings) if name in names])
        unexplained = file.duration_ns - np.minimum(file.launch_latency_ns, file.duration_ns)
        whole = measured_ns(file)
        shares.append((int(unexplained[kept].sum()) / whole if whole else 0.0, rank))
    most, rank = max(shares, default=(0.0, 0))
    if most <= KEPT_SHARE:
        return []
    return [
        f"{' and '.join(name + 's' for name in names)} stay as recorded ({100 * most:.0f} % of the time of rank "
        f"{rank}, all threads and streams added up): what was awaited there may change as well, such as another rank "
        "whose messages are not recorded"
    ]


def _timed_by_luck(files: Collection[Graph]) -> Iterator[str]:
    """Yield what is there as often, or in the way, that the timing of the recording decided, as far as names in the
    graphs show it.
    """
    for pattern, what in (
        (_POLLS, "a wait that polls ({names}) turns as often as recorded: {count:,} in these graphs"),
        (
            _PATHS,
            "an op whose path depended on the time or on free memory ({names}) takes the recorded path: {count:,} in "
            "these graphs",
        ),
    ):
        counts = Counter[str]()
        for file in files:
            nodes = np.bincount(file.name, minlength=len(file.strings)).tolist()
            calls = Counter(call for texts in file.file.sync_call.values() for text in texts for call in text.split())
            for name, count in chain(zip(file.strings, nodes, strict=True), calls.items()):
                if count and pattern.search(name):
                    counts[name] += count
        if counts:
            names = ", ".join(name[:40] for name, _ in counts.most_common(3))
            yield what.format(names=names, count=counts.total())
