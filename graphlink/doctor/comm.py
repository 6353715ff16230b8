"""What a recording does not say of its communication, and of which rank it is."""

from __future__ import annotations

from collections.abc import Iterator

from graphlink.doctor.records import Finding, Kind, if_any
from graphlink.model import Communication, Trace

UNKNOWN = Kind(
    "comm-unknown",
    "lost",
    "parameters or group of {unknown} of {comms} communication ops are unknown",
    "they are COMP_NODEs whose time counts as communication: no size, no group, and ranks do not meet in them",
    "an execution trace of the same steps, and a PyTorch of mid 2024 or newer; what was launched before the recording never has them",
    by_capture=True,
)
DOUBTFUL = Kind(
    "comm-doubtful",
    "inferred",
    "{doubtful} kernels may be communication or computation, by their name or by the op around their launch",
    "they are computation in the graph, {time_ms} ms",
    "an op of torch.library around the launch, named as the collective is: my_library::all_reduce",
)
GROUPS_UNKNOWN = Kind(
    "groups-unknown",
    "lost",
    "the members of {groups} process groups are unknown, summed over ranks",
    "their {calls} calls are computation in the graph",
    "init_process_group and new_group before the profiler starts, and an execution trace, which lists the members",
    by_capture=True,
)
GROUPS_ASSUMED = Kind(
    "groups-assumed",
    "inferred",
    "the members of a process group are not recorded",
    "it is the only one used, so it is taken to be of all ranks",
    "a PyTorch of mid 2024 or newer, or an execution trace of schema 1.0.2 or newer",
    by_capture=True,
)
NO_RANK = Kind(
    "no-rank",
    "inferred",
    "the recording does not say of which rank it is",
    "it is taken from the file's name, else 0",
    "init_process_group before the profiler starts (distributedInfo), or a file name with the rank: kineto_3.json",
    by_capture=True,
)
ODD_HEADER = Kind(
    "odd-header",
    "note",
    "the head of the recording says what cannot be",
    "it is passed over",
    "record again",
)


def communication_lacking(comm: Communication) -> Iterator[Finding]:
    """Ops that stay computation, and groups whose members have to be guessed or cannot be."""
    nodes = len(comm.ops.row)
    yield from if_any(UNKNOWN, {"unknown": sum(comm.unknown.values()), "comms": nodes}, nodes, comm.unknown)
    doubtful = {name: ops for name, (ops, _) in comm.doubtful.items()}
    time_ns = sum(ns for _, ns in comm.doubtful.values())
    yield from if_any(DOUBTFUL, {"doubtful": sum(doubtful.values()), "time_ns": time_ns}, parts=doubtful)
    if comm.unlisted:
        calls = sum(comm.unlisted.values())
        yield Finding(GROUPS_UNKNOWN, calls / nodes, {"groups": len(comm.unlisted), "calls": calls}, parts=comm.unlisted)
    yield from if_any(GROUPS_ASSUMED, {"groups": len(comm.assumed)}, told=tuple(name or "(unnamed)" for name in comm.assumed))


def rank_lacking(trace: Trace, comm: Communication, *, distributed: bool) -> Iterator[Finding]:
    """``distributed``: other ranks were recorded, or the head of the recording tells that there were some."""
    if trace.rank is None and (distributed or len(comm.ops.row) or trace.process_groups):
        yield Finding(NO_RANK)
    odd = tuple(text for text in trace.warnings if text.startswith("distributedInfo: "))
    if odd:
        yield Finding(ODD_HEADER, 0.0, told=odd)
