"""What there is to say of a critical path: sentences, rows of its shares, and its longest stretches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from graphlink.figures import figure
from graphlink.graph.families import family_of
from graphlink.graph.gains import FamilyGain
from graphlink.graph.path_file import PathFile
from graphlink.model import EMPTY
from graphlink.records import (
    IDLE_COMM,
    IDLE_GPU,
    IDLE_HOST,
    before_what,
    began_late,
    counted,
    ms,
    percent,
    share_word,
    shortened,
)
from graphlink.replay.across import AcrossFamily, CriticalAcross
from graphlink.replay.workload import DELAY_NAME, GAP_NAME
from graphlink.tables import most, numbered_texts


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of nodes of one share on the path, ``from_ns`` of the replay on. ``first``, ``last``: ids; ``most``: the
    name with most of its time, an op with its parts; of a delay ``before`` what it is, else ""."""

    ns: Annotated[int, figure(means="on_path")]
    share: str
    from_ns: int
    first: int
    last: int
    count: Annotated[int, figure("nodes")]
    most: Annotated[str, figure("most in")]
    before: str
    most_ns: Annotated[int, figure("of it")]
    start_ns: int  # of its first node, as recorded


def family_words(family: FamilyGain | AcrossFamily) -> str:
    """Return the name of a family, and of delays what came late."""
    return f"{shortened(family.name)}{before_what(family.before)}"


def sentences(file: PathFile) -> list[str]:
    """Describe the path in sentences."""
    whole = file.length_ns
    if not whole:
        return ["Nothing on it takes any time."]
    share, gain = msgspec.structs.asdict(file.share_ns), msgspec.structs.asdict(file.gains.shares)
    most, best = max(share, key=lambda k: share[k]), max(gain, key=lambda k: gain[k])
    part, saved = percent(share[most], whole), percent(gain[most], whole)
    largest = "Most of the path is" if 2 * share[most] > whole else "The largest share of the path is"
    ends = f"; if that took no time, this would save {saved}."
    if 2 * gain[most] < share[most]:
        ends = f", but if that took no time, this would save only {saved}: other work waits right behind."
    out = [f"{largest} {share_word(most)} ({part}){ends}"]
    if best != most:
        gained, of_path = percent(gain[best], whole), percent(share[best], whole)
        out.append(f"The share that gains most is {share_word(best)}: {gained}, at {of_path} of the path.")
    if file.gains.families:
        top = file.gains.families[0]
        gained = percent(top.gain_ns, whole)
        out.append(
            f"Of single names {family_words(top)} gains most: {gained} if its {counted(top.count, 'node')} with work "
            "took no time."
        )
    if file.gains.sync_points:
        sync = file.gains.sync_points[0]
        out.append(f"No single synchronisation holds the rank up by more than {percent(sync.gain_ns, whole)}.")
    else:
        out.append("No synchronisation call alone holds the rank up.")
    return out


def share_rows(
    share: Mapping[str, int], path_ns: int, host_gap_ns: int, gain: Mapping[str, int] | None = None
) -> Iterator[tuple[str, ...]]:
    """Yield the shares of a path beside what each would gain, both of ``path_ns``: a share is no gain.

    Of the unexplained share the two parts follow: ``host_gap_ns`` on the host, the rest on the device.
    """
    late = began_late(share)
    for name, ns in share.items():
        if late != IDLE_GPU and name in ("compute", "copy") and not (gain and gain[name]):
            continue  # no GPU, or none that holds up anything
        gained = () if gain is None else (f"{ms(gain[name])} ms", percent(gain[name], path_ns))
        yield share_word(name), f"{ms(ns)} ms", percent(ns, path_ns), *gained
    if share["idle"]:
        for part, ns in (
            (f"{late} ({'device' if late == IDLE_GPU else 'start'} delays)", share["idle"] - host_gap_ns),
            (f"{IDLE_HOST} (host gaps)", host_gap_ns),
        ):
            if not ns and part.startswith(IDLE_COMM):
                continue
            yield f"  {part}", f"{ms(ns)} ms", percent(ns, path_ns)


def gap_ns(file: PathFile | CriticalAcross, took_ns: Sequence[int]) -> int:
    """Return the host gaps of a path, the nodes of which take ``took_ns`` of it each."""
    named = np.array([name == GAP_NAME for name in file.names], np.bool_)[np.array(file.nodes.name, np.int64)]
    idle = np.array([share == "idle" for share in file.shares], np.bool_)[np.array(file.nodes.share, np.int64)]
    return int(np.array(took_ns, np.int64)[named & idle].sum())


def stretches(file: PathFile, top: int) -> Iterator[Stretch]:
    """Yield the longest runs of the path of one share, longest first."""
    nodes = file.nodes
    share, cost = np.array(nodes.share, np.int64), np.array(nodes.cost_ns, np.int64)
    starts = np.flatnonzero(np.diff(share, prepend=-1))
    length = np.add.reduceat(cost, starts) if len(starts) else EMPTY
    from_ns, stops = np.cumsum(length) - length, np.append(starts[1:], len(share))
    code, names = numbered_texts(map(family_of, file.names))
    family = code[np.array(nodes.name, np.int64)]
    for k in np.argsort(-length, kind="stable")[:top].tolist():
        low, high = int(starts[k]), int(stops[k])
        longest, most_ns = most(family[low:high], cost[low:high])
        delayed = names[longest] == DELAY_NAME and high < len(nodes.name)
        yield Stretch(
            ns=int(length[k]),
            share=file.shares[share[low]],
            from_ns=int(from_ns[k]),
            first=nodes.id[low],
            last=nodes.id[high - 1],
            count=high - low,
            most=names[longest],
            before=file.names[nodes.name[high]] if delayed else "",
            most_ns=most_ns,
            start_ns=nodes.start_ns[low],
        )
