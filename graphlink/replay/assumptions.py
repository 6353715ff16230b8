"""Which assumption each kind of change rests on, and what it cannot know: one table, by the ``kind`` of a change."""

from __future__ import annotations

from typing import Final, NamedTuple

from graphlink.replay.records import Made


class Assumption(NamedTuple):
    """A sentence each."""

    rests_on: str
    cannot_know: str


ASSUMPTIONS: Final = {
    "scale": Assumption(
        "Only these times change: all else takes as long as recorded, and starts when what it waits for has ended.",
        "It cannot know whether other work on the same GPU, CPU or network becomes faster or slower through it.",
    ),
    "add_us": Assumption(
        "Each of these ops takes so much more or less, whatever it took, and no op less than 0.",
        "It cannot know whether other work on the same GPU, CPU or network becomes faster or slower through it.",
    ),
    "remove": Assumption(
        "Nothing needs the result of what is removed, and the call that launched a removed device op still costs its "
        "time.",
        "It cannot know what the program would do instead.",
    ),
    "like": Assumption(
        "An op takes here what the op of the same path, name and turn took in the other run.",
        "It cannot know whether the two runs did the same work under the same name.",
    ),
    "even_out": Assumption(
        "The rank has the same work as the others, so that its ops would take the median of theirs.",
        "It cannot know why the rank is slow: if it has more work than the others, its time does not become theirs.",
    ),
    "launch_us": Assumption(
        "Each launch call takes so much more or less in its thread, and no op less than 0.",
        "It cannot know what of the time of an op its launch call takes, as the two are recorded together in the "
        "graph.",
    ),
    "remove_wait": Assumption(
        "Nothing that the host does after the wait needs what it waited for.",
        "It cannot know whether the program reads the result there, nor how much memory runs ahead.",
    ),
    "move_wait": Assumption(
        "Nothing that the host does before the new place needs what it waited for. There a stream synchronisation "
        "awaits what is on its "
        "stream by then, and other calls what they awaited.",
        "It cannot know where the program first reads the result, whether an event is recorded again on the way, nor "
        "when a stream was "
        "told to wait for an event: the middle of when that can have been is taken.",
    ),
    "cuda_graph": Assumption(
        "Each part does the same work whenever it runs, and its device ops take as long as when they are launched one "
        "by one.",
        "It cannot know whether sizes or decisions of the host change from one time to the next, which a graph cannot "
        "follow.",
    ),
    "buckets": Assumption(
        "A collective takes a latency and its bytes over a bandwidth, as those of its group in the recording. "
        "Gradients of a divided one "
        "come evenly over the time since the one before.",
        "It cannot know in which order another division would take the gradients, nor what copying them together "
        "costs.",
    ),
    "dataloader": Assumption(
        "A worker takes as long for a batch as was recorded, and other threads take as long as without it.",
        "It cannot know how much busy workers slow the main thread, nor what receiving a batch costs where the "
        "recording has no workers "
        "(counted as 0): the time is a lower bound.",
    ),
    "network": Assumption(
        "Communication takes the steps and bytes of ring algorithms, and nothing else uses the network meanwhile.",
        "It cannot know which algorithm the library would choose, nor how much other traffic slows it.",
    ),
}


def made(kind: str, what: str, nodes: int, ns: int) -> Made:
    """Return what a change of this kind did, with its assumption."""
    rests_on, cannot_know = ASSUMPTIONS[kind]
    return Made(kind=kind, what=what, nodes=nodes, ns=ns, rests_on=rests_on, cannot_know=cannot_know)
