"""The sums that hold for every device of every recording."""

from __future__ import annotations

from msgspec import UNSET

from graphlink.gpu.time import GpuTime


def check_sums(found: GpuTime) -> None:
    """Both sums of the contract, exactly, and idle intervals that are disjoint and as long as they say."""
    for one in (*found.gpu, *(one for step in found.steps for one in step.gpu)):
        assert one.compute_ns + one.exposed_comm_ns + one.exposed_copy_ns + one.idle_ns == one.to_ns - one.from_ns
        assert sum(one.idle_by_cause_ns.values()) == one.idle_ns
        assert one.exposed_comm_ns <= one.comm_ns
        assert one.exposed_copy_ns <= one.copy_ns
    for one, (device, idle) in zip(found.gpu, found.idle, strict=True):
        assert one.device == device
        assert (idle.start_ns < idle.end_ns).all()
        assert (idle.end_ns[:-1] <= idle.start_ns[1:]).all()
        assert int((idle.end_ns - idle.start_ns).sum()) == one.idle_ns
    for one in found.gpu:
        streams = [] if one.by_stream is UNSET else one.by_stream
        assert {stream.busy_ns + stream.idle_ns for stream in streams} == {one.to_ns - one.from_ns}
        busy_ns = one.to_ns - one.from_ns - one.idle_ns
        assert max(stream.busy_ns for stream in streams) <= busy_ns <= sum(stream.busy_ns for stream in streams)
        groups = [] if one.by_group is UNSET else one.by_group
        assert (
            max((group.comm_ns for group in groups), default=0) <= one.comm_ns <= sum(group.comm_ns for group in groups)
        )
        assert all(0 <= group.exposed_ns <= group.comm_ns for group in groups)
        assert sum(group.exposed_ns for group in groups) >= one.exposed_comm_ns
