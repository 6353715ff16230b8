"""The bytes of packets, and the order in which slices begin and end."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from graphlink.model import NOWHERE
from graphlink.perfetto import packets as perfetto
from graphlink.perfetto.packets import Arg, PerfettoTrace, Process, Track
from graphlink.perfetto.slices import Slices, events, lanes, nested


def slices(rows: list[tuple[int, int, int, int, int]]) -> Slices:
    """Rows of (track, start, end, parent, name), keys in this order."""
    track, start, end, parent, name = (np.array([r[k] for r in rows], np.int64) for k in range(5))
    return Slices(
        track.astype(np.int32),
        start,
        end,
        np.arange(len(rows), dtype=np.int64),
        parent.astype(np.int32),
        name.astype(np.int32),
    )


@st.composite
def forests(draw: st.DrawFn, cross: bool = False) -> Slices:
    """Slices of a few tracks, each inside an earlier one or after all earlier ones; with ``cross`` ends are anywhere
    after the start.
    """
    rows: list[tuple[int, int, int, int, int]] = []
    open_: dict[int, list[int]] = defaultdict(list)  # of a track: slices that the next one may lie in
    now: dict[int, int] = defaultdict(int)
    for i in range(draw(st.integers(0, 12))):
        track = draw(st.integers(0, 2))
        start = now[track] + draw(st.integers(0, 2))
        stack = [k for k in open_[track] if rows[k][2] >= start]
        depth = draw(st.integers(0, len(stack)))
        parent = stack[depth - 1] if depth else NOWHERE
        last = (
            rows[stack[depth]][2] if not cross and depth < len(stack) else start
        )  # its earlier sibling is over by then
        start = max(start, last)
        if parent != NOWHERE and start > rows[parent][2]:
            continue_at = rows[parent][2]
            start = continue_at if not cross and last <= continue_at else start
        most = rows[parent][2] if parent != NOWHERE and not cross else start + draw(st.integers(0, 9))
        end = draw(st.integers(start, max(start, most)))
        if parent != NOWHERE and not cross and start > rows[parent][2]:
            continue
        open_[track] = [*stack[:depth], len(rows)]
        now[track] = start
        rows.append((track, start, end, parent, i % 4))
    return slices(rows)


def played(s: Slices) -> dict[int, tuple[int, int, int]]:
    """(start, end, depth) of each slice as a reader sees them: an end closes what was opened last on its track."""
    stacks: dict[int, list[int]] = defaultdict(list)
    out: dict[int, tuple[int, int, int]] = {}
    assert (np.diff(events(s).time_ns) >= 0).all()
    for which, begins, time in zip(*(column.tolist() for column in events(s)), strict=True):
        stack = stacks[int(s.track[which])]
        if begins:
            stack.append(which)
            assert time == s.start_ns[which]
        else:
            top = stack.pop()
            out[top] = int(s.start_ns[top]), time, len(stack)
    assert not any(stacks.values())
    return out


@given(forests())
def test_what_nests_is_shown_as_it_is(s: Slices) -> None:
    seen = played(s)
    assert {i: (a, b) for i, (a, b, _) in seen.items()} == dict(
        enumerate(zip(s.start_ns.tolist(), s.end_ns.tolist(), strict=True))
    )
    parent = s.parent.tolist()
    for i, (start, end, depth) in seen.items():
        if start < end:  # one without length may be shown in a neighbour
            assert depth >= (0 if parent[i] == NOWHERE else 1)


@given(forests(cross=True))
def test_what_crosses_is_cut_and_nothing_is_lost(s: Slices) -> None:
    seen = played(s)
    assert set(seen) == set(range(len(s.track)))
    cut = nested(s)[0]
    for i, (_, end, _) in seen.items():
        assert end == cut[i] <= max(s.end_ns[i], s.start_ns[i])
    for a, b in itertools.combinations(range(len(cut)), 2):
        if s.track[a] == s.track[b]:
            first, second = sorted([(s.start_ns[a], -cut[a]), (s.start_ns[b], -cut[b])])
            assert second[0] >= -first[1] or -second[1] <= -first[1]


def test_cuts() -> None:
    crossing = slices(
        [(0, 0, 10, NOWHERE, 0), (0, 2, 12, 0, 0), (0, 4, 6, 1, 0), (0, 9, 20, NOWHERE, 0), (1, 5, 7, NOWHERE, 0)]
    )
    assert nested(crossing)[0].tolist() == [9, 9, 6, 20, 7]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9), st.integers(0, 2))))
def test_lanes_hold_no_two_at_a_time_and_are_as_few_as_can_be(rows: list[tuple[int, int, int]]) -> None:
    start, length, group = (np.array([r[k] for r in rows], np.int64) for k in range(3))
    lane = lanes(start, start + length, group)
    by_lane: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for i in range(len(rows)):
        by_lane[int(group[i]), int(lane[i])].append((int(start[i]), int(start[i] + length[i])))
    for spans in by_lane.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))
    for of in set(group.tolist()) if length.all() else ():
        most = max(
            sum(a <= t < b for a, b in zip(start[group == of], (start + length)[group == of], strict=True))
            for t in range(30)
        )
        assert len({k for k in by_lane if k[0] == of}) <= max(most, 1)


TEXTS = ("", "all_reduce", "\u00e9\u2603\U0001f600", "a\nb")


@st.composite
def traces(draw: st.DrawFn) -> PerfettoTrace:
    s = draw(forests())
    n = len(s.track)
    args = []
    for name in draw(st.lists(st.sampled_from(["node", "bytes", "call", "comm"]), unique=True)):
        which = np.array(sorted(draw(st.sets(st.integers(0, n - 1)))) if n else [], np.int64)
        text = name in ("call", "comm")
        some = (
            st.integers(0, len(TEXTS) - 1)
            if text
            else st.sampled_from([0, 1, -1, 127, 128, 1 << 40, -(1 << 63), (1 << 63) - 1])
        )
        args.append(Arg(name, which, np.array([draw(some) for _ in which], np.int64), TEXTS if text else None))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20)) if n else []
    source, target = (np.array([p[k] for p in pairs], np.int64) for k in range(2))
    kind = np.array([draw(st.integers(0, 7)) for _ in pairs], np.uint8)
    rank = draw(st.sampled_from([0, 1, 7, 300, 65_535, 65_536, 10**15]))
    return PerfettoTrace(
        rank=rank,
        epoch_ns=draw(st.sampled_from([0, 1, 1_700_000_000_000_000_000])),
        processes=(Process("rank"), Process("beside", "pid 1", 1)),
        tracks=(Track(0, "main", 77), Track(0, "stream"), Track(1, "x")),
        names=TEXTS,
        slices=s,
        args=tuple(args),
        arrows=perfetto.arrows(rank, source, target, kind),
    )


def plain(trace: PerfettoTrace) -> Iterator[Any]:
    """The packets of slices, built one by one."""
    s = trace.slices
    numbers = {name: i for i, name in enumerate(dict.fromkeys(a.name for a in trace.args), start=1)}
    own = trace.arrows
    last: dict[int, int] = {}
    for which, begins, time in zip(*(column.tolist() for column in events(s)), strict=True):
        track = int(s.track[which])
        packet = pb.TracePacket(sequence_flags=2, trusted_packet_sequence_id=perfetto.sequence(trace.rank, track))
        packet.timestamp = time + trace.epoch_ns - last.get(track, 0)
        last[track] = time + trace.epoch_ns
        event = packet.track_event
        event.type = event.TYPE_SLICE_BEGIN if begins else event.TYPE_SLICE_END
        if begins:
            event.name_iid = int(s.name[which]) + 1
            for arg in trace.args:
                for value in arg.value[arg.slice == which].tolist():
                    kind = {"string_value_iid": value + 1} if arg.words else {"int_value": value}
                    event.debug_annotations.add(name_iid=numbers[arg.name], **kind)
            event.flow_ids.extend(own.id[(own.slice == which) & ~own.ends].tolist())
            event.terminating_flow_ids.extend(own.id[(own.slice == which) & own.ends].tolist())
        yield packet


@given(traces())
def test_packets_are_what_the_message_classes_write(trace: PerfettoTrace) -> None:
    heads, *blocks = perfetto.encode(trace)
    assert b"".join(blocks) == b"".join(map(perfetto.framed, plain(trace)))
    assert len(pb.Trace.FromString(heads).packet) == len(trace.processes) + 3 * len(trace.tracks)


def test_blocks_of_packets_join_without_a_seam(monkeypatch: Any) -> None:
    n = 40
    s = slices([(0, 3 * i, 3 * i + 2, NOWHERE, i % 4) for i in range(n)])
    every = np.arange(n)
    arrows = perfetto.arrows(3, every[:-1], every[1:], every[1:] % 8)
    trace = PerfettoTrace(3, 5, (Process("p"),), (Track(0, "t"),), TEXTS, s, (Arg("node", every, every),), arrows)
    whole = b"".join(perfetto.encode(trace))
    monkeypatch.setattr(perfetto, "BLOCK", 7)
    assert b"".join(perfetto.encode(trace)) == whole


def test_ranks_share_no_ids() -> None:
    none, kind = np.zeros(3, np.int64), np.array([1, 3, 5], np.uint8)
    ranks = [0, 1, 2, 1000, perfetto.RANKS - 1]
    tracks = range(-1, 70)
    assert len({perfetto.sequence(r, t) for r in ranks for t in tracks}) == len(ranks) * len(tracks)
    assert max(perfetto.sequence(r, perfetto.SEQUENCES - 3) for r in ranks) < 1 << 31
    everything = [*range(70), *range(perfetto.SEQUENCES, perfetto.SEQUENCES + 2)]
    assert len({perfetto.uuid(r, t) for r in ranks for t in everything}) == len(ranks) * len(everything)
    ids = np.concatenate([perfetto.arrows(r, none, none, kind).id[:3] for r in ranks])
    assert len(set(ids.tolist())) == 3 * len(ranks)
    assert (ids // perfetto.KIND_OF_FLOW == np.tile(kind, len(ranks))).all()


def test_counters_are_rows_of_values() -> None:
    counters = tuple((name, np.array([5, 9]), np.array([0.5, -2.0])) for name in ("GPU 0 SM Active (%)", "Power"))
    none = slices([])
    trace = PerfettoTrace(3, 100, (Process("rank 3"),), (Track(0, "main"),), (), none, (), counters=counters)
    packets = pb.Trace.FromString(b"".join(perfetto.encode(trace))).packet
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.track_descriptor.HasField("counter")}
    assert [(one.name, one.parent_uuid) for one in tracks.values()] == [
        (name, perfetto.uuid(3, perfetto.SEQUENCES)) for name, *_ in counters
    ]
    values = [p for p in packets if p.track_event.type == pb.TrackEvent.TYPE_COUNTER]
    assert [(p.timestamp, p.track_event.double_counter_value) for p in values] == [(105, 0.5), (109, -2.0)] * 2
    assert [tracks[p.track_event.track_uuid].name for p in values[::2]] == [name for name, *_ in counters]
