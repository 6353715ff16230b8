"""Binary traces of PyTorch (``.pftrace``): of both layouts of GPU rows, cut, damaged, of other programs."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from graphlink.errors import InputError
from graphlink.model import DeviceKind, SyncKind, Trace
from graphlink.read import pftrace
from graphlink.read.heads import looks_like, read_head
from graphlink.read.kineto import read_kineto
from graphlink.read.stream import open_array

BASE = 1_790_857_026_000_000_000
CATEGORIES = ("cpu_op", "user_annotation", "cuda_runtime")
NAMES = ("aten::mm", "cudaLaunchKernel", "gemm", "outer", "inner", "Event Sync", "Memcpy HtoD (Pageable -> Device)")
STAGES = {1: "Kernel", 2: "Memcpy", 3: "Memset", 5: "EventRecord", 6: "HostNode"}
LANES = {100: "[000007] stream 7", 101: "[100001] layer 0"}
MAIN, GPU_STREAM = 2, 4


class Recording:
    """Packets as PyTorch writes them."""

    def __init__(self) -> None:
        self.trace = pb.Trace()
        clocks = self.packet().clock_snapshot.clocks
        clocks.add(clock_id=6, timestamp=BASE)
        clocks.add(clock_id=1, timestamp=BASE)
        for uuid, pid, name in ((1, 77, "python3"), (3, 0, "GPU 0")):
            track = self.packet().track_descriptor
            track.uuid, track.process.pid, track.process.process_name = uuid, pid, name
        for uuid, pid, tid, name in ((MAIN, 77, 78, "thread 78"), (GPU_STREAM, 0, 7, "stream 7")):
            track = self.packet().track_descriptor
            track.uuid, track.thread.pid, track.thread.tid, track.thread.thread_name = uuid, pid, tid, name
        words = self.packet().interned_data
        for iid, name in enumerate(CATEGORIES, 1):
            words.event_categories.add(iid=iid, name=name)
        for iid, name in enumerate(NAMES, 1):
            words.event_names.add(iid=iid, name=name)
        for iid, name in (STAGES | LANES).items():
            words.gpu_specifications.add(iid=iid, name=name)

    def packet(self, ns: int | None = None) -> Any:
        packet = self.trace.packet.add()
        if ns is not None:
            packet.timestamp = BASE + ns
        return packet

    def begin(self, ns: int, name: str, category: str | None = None, track: int = MAIN, **args: Any) -> None:
        event = self.packet(ns).track_event
        event.type, event.track_uuid, event.name_iid = event.TYPE_SLICE_BEGIN, track, NAMES.index(name) + 1
        if category is not None:
            event.category_iids.append(CATEGORIES.index(category) + 1)
        for key, value in args.items():
            argument(event.debug_annotations.add(name=key), value)

    def end(self, ns: int, track: int = MAIN) -> None:
        event = self.packet(ns).track_event
        event.type, event.track_uuid = event.TYPE_SLICE_END, track

    def stage(self, ident: int, ns: int, length: int, kind: str, queue: int = 100, **extra: Any) -> Any:
        stage = self.packet(ns).gpu_render_stage_event
        stage.event_id, stage.duration, stage.gpu_id, stage.hw_queue_iid = ident, length, 0, queue
        stage.stage_iid = next(iid for iid, name in STAGES.items() if name == kind)
        for key, value in {"stream id": 7, **extra}.items():
            stage.extra_data.add(name=key.replace("_", " "), value=str(value))
        return stage

    def read(self, folder: Path, pack: Callable[[bytes], bytes] = bytes) -> Trace:
        return read_kineto(self.written(folder, pack))

    def written(self, folder: Path, pack: Callable[[bytes], bytes] = bytes) -> Path:
        path = folder / "kineto_0.pftrace"
        path.write_bytes(pack(self.trace.SerializeToString()))
        return path


def argument(annotation: Any, value: Any) -> None:
    if isinstance(value, list):
        for entry in value:
            argument(annotation.array_values.add(), entry)
    elif isinstance(value, str):
        annotation.string_value = value
    elif isinstance(value, float):
        annotation.double_value = value
    else:
        annotation.int_value = value


def events(path: Path) -> list[Any]:
    with open_array(path, ("traceEvents",)) as array:
        return [row for block in array.blocks(dict) for row in block.rows if row["ph"] != "M"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.compress])
def test_render_stages(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    recording = Recording()
    recording.begin(
        1_000, "aten::mm", "cpu_op", **{"External id": 5, "Input Dims": [[2, 3], [], [[4]]], "Ev Idx": 70_000}
    )
    recording.begin(1_500, "cudaLaunchKernel", "cuda_runtime", cbid=211, correlation=9)
    recording.end(9_000)
    recording.end(2_500)
    kernel = recording.stage(1, 3_001, 500, "Kernel", correlation=9, context_id=1)
    kernel.name_iid = NAMES.index("gemm") + 1
    kernel.launch.grid_size.x, kernel.launch.grid_size.y, kernel.launch.grid_size.z = 4, 2, 1
    recording.stage(2, 4_000, 10, "Memset", queue=101, correlation=9, bytes=64, graph_id=3, graph_node_id=1)
    host = recording.stage(3, 5_000, 70, "HostNode", correlation=9, graph_id=3, graph_node_id=2, host_fn="usleep")
    host.event_wait_ids.extend([2, 99])
    recording.stage(4, 6_000, 0, "EventRecord", correlation=9, graph_id=3, graph_node_id=3)
    trace = recording.read(tmp_path, pack)
    names = trace.strings
    assert trace.resolution_ns == 1
    assert (trace.host.start_ns - BASE, trace.host.end_ns - BASE) == ([1_000], [9_000])
    assert (names[trace.host.name[0]], names[trace.host.input_shapes[0]]) == ("aten::mm", "[[2,3],[],[[4]]]")
    assert (trace.calls.correlation, trace.calls.tid, trace.calls.end_ns - BASE) == ([9], [78], [2_500])
    assert [names[k] for k in trace.device.name] == ["gemm", "Memset (Unknown)", "HostNode: usleep"]
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL, DeviceKind.MEMSET, DeviceKind.HOST]
    assert trace.device.stream.tolist() == [7, 7, 7]
    assert (trace.device.end_ns - BASE).tolist() == [3_501, 4_010, 5_070]
    rows = events(recording.written(tmp_path, pack))
    [memset] = [row for row in rows if row["name"] == "Memset"]
    assert (memset["tid"], memset["args"]["stream"], memset["args"]["original_stream"]) == (100_001, 100_001, 7)
    [kernel] = [row for row in rows if row["name"] == "gemm"]
    assert kernel["args"] == {"correlation": 9, "context": 1, "stream": 7, "grid": [4, 2, 1], "device": 0}
    flows = [row for row in rows if row["ph"] in "sf"]
    assert [(row["ph"], row["id"], row["tid"], row["ts"]) for row in flows] == [
        ("f", 9, 100_001, 4.0),  # the root hangs on the launch
        ("f", 9, 7, 6.0),
        ("s", 1 << 40, 100_001, 4.01),
        ("f", 1 << 40, 7, 5.0),
    ]


def test_gpu_rows_as_slices_on_tracks(tmp_path: Path) -> None:
    """Earlier builds: args are those of the JSON."""
    recording = Recording()
    recording.begin(1_500, "cudaLaunchKernel", "cuda_runtime", correlation=9)
    recording.end(2_500)
    recording.begin(3_001, "gemm", track=GPU_STREAM, device=0, stream=7, correlation=9, grid=[4, 1, 1])
    recording.begin(4_000, NAMES[-1], track=GPU_STREAM, device=0, stream=7, correlation=8, bytes=3)
    recording.begin(4_000, "outer", track=GPU_STREAM, **{"External id": 5})
    recording.end(3_501, GPU_STREAM)
    recording.end(4_001, GPU_STREAM)
    recording.end(9_001, GPU_STREAM)
    recording.begin(
        5_000, "Event Sync", track=GPU_STREAM, cuda_sync_kind="Event Sync", stream=-1, correlation=8,
        wait_on_cuda_event_record_corr_id=6, device=0,
    )  # fmt: skip
    recording.end(5_100, GPU_STREAM)
    trace = recording.read(tmp_path)
    assert [trace.strings[k] for k in trace.device.name] == ["gemm", NAMES[-1]]
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL, DeviceKind.MEMCPY]
    assert (trace.device.end_ns - BASE).tolist() == [3_501, 4_001]
    assert trace.device.bytes.tolist() == [0, 3]
    syncs = trace.syncs
    assert (syncs.kind, syncs.record, syncs.record_known) == ([SyncKind.EVENT], [6], [True])
    assert trace.left_out["gpu_user_annotation"] == 1
    assert not trace.warnings


def test_rows_may_cross_where_ends_are_in_the_order_of_begins(tmp_path: Path) -> None:
    recording = Recording()
    recording.begin(1_000, "outer", "cpu_op")
    recording.begin(2_000, "inner", "cpu_op")
    recording.begin(500, "aten::mm", "cpu_op")
    for ns in (3_000, 4_000, 600):
        recording.end(ns)
    assert lengths(recording.read(tmp_path)) == {"outer": 2_000, "inner": 2_000, "aten::mm": 100}


def test_rows_of_a_stream_of_packets_are_nested(tmp_path: Path) -> None:
    """As other writers order them; what has no end is left out, and counted."""
    recording = Recording()
    recording.end(5)
    recording.begin(10, "aten::mm", "cpu_op")
    recording.begin(1_000, "outer", "cpu_op")
    recording.begin(2_000, "inner", "cpu_op")
    recording.begin(2_000, "outer", "cuda_runtime", track=GPU_STREAM)
    recording.end(3_000)
    recording.end(4_000)
    recording.end(9_000, GPU_STREAM)
    trace = recording.read(tmp_path)
    assert lengths(trace) == {"inner": 1_000, "outer": 3_000}
    assert trace.left_out["not a span (ph is not X)"] == 1
    assert trace.left_out["no category, ph E"] == 1


def test_each_sequence_of_packets_has_its_own_numbers(tmp_path: Path) -> None:
    recording = Recording()
    recording.begin(1_000, "outer", "cpu_op")
    words = recording.packet()
    words.trusted_packet_sequence_id = 1 << 31
    words.interned_data.event_names.add(iid=NAMES.index("outer") + 1, name="gemm of another")
    words.interned_data.event_names.add(iid=NAMES.index("gemm") + 1, name="gemm of another")
    words.interned_data.debug_annotation_names.add(iid=1, name="correlation")
    for iid, name in {1: "Memset", 2: "Kernel", 100: "[9] stream 9"}.items():
        words.interned_data.gpu_specifications.add(iid=iid, name=name)
    recording.begin(2_000, "inner", "cpu_op")
    recording.end(9_000)
    recording.end(3_000)
    for sequence, kind, ident in ((0, "Kernel", 1), (1 << 31, "Memcpy", 2)):
        stage = recording.stage(ident, 5_000 * ident, 1_000, kind, correlation=5, graph_id=2, graph_node_id=ident)
        stage.name_iid = NAMES.index("gemm") + 1
        stage.extra_data[0].value = str(5 + 2 * ident)
        stage.event_wait_ids.extend([1] * (ident - 1))
        recording.trace.packet[-1].trusted_packet_sequence_id = sequence
    trace = recording.read(tmp_path)
    assert lengths(trace) == {"outer": 8_000, "inner": 1_000}
    assert [trace.strings[name] for name in trace.device.name] == ["gemm", "gemm of another"]
    assert trace.device.kind.tolist() == [DeviceKind.KERNEL] * 2
    assert trace.device.stream.tolist() == [7, 9]
    waits = [row["tid"] for row in events(tmp_path / "kineto_0.pftrace") if row.get("id") == 1 << 40]
    assert waits == [7, 9]


def test_tracks_may_stand_behind_what_uses_them(tmp_path: Path) -> None:
    recording = Recording()
    recording.begin(1_000, "outer", "cpu_op")
    recording.end(4_000)
    packets = [*recording.trace.packet]
    tracks = [packet for packet in packets if packet.HasField("track_descriptor")]
    rest = [packet for packet in packets if not packet.HasField("track_descriptor")]
    recording.trace = pb.Trace(packet=[*rest, *reversed(tracks)])
    trace = recording.read(tmp_path)
    assert (lengths(trace), trace.host.tid.tolist()) == ({"outer": 3_000}, [78])


def lengths(trace: Trace) -> dict[str, int]:
    ns = trace.host.end_ns - trace.host.start_ns
    return {trace.strings[name]: int(length) for name, length in zip(trace.host.name, ns, strict=True)}


def test_a_thread_without_its_sign(tmp_path: Path) -> None:
    recording = Recording()
    track = recording.packet().track_descriptor
    track.uuid, track.thread.pid, track.thread.tid = 9, 77, (1 << 31) - 5
    track.thread.thread_name = "thread -5"
    recording.begin(1, "outer", "cuda_runtime", track=9)
    recording.end(2, 9)
    assert recording.read(tmp_path).calls.tid.tolist() == [5]


def test_values_of_every_type(tmp_path: Path) -> None:
    recording = Recording()
    recording.begin(0, "outer", "user_annotation", big=-(1 << 40), zero=0, text='a"\n', real=1.5, none=float("nan"))
    event = recording.trace.packet[-1].track_event
    event.debug_annotations.add(name="flag").bool_value = True
    event.debug_annotations.add(name="uint").uint_value = 1 << 63
    entry = event.debug_annotations.add(name="map").dict_entries.add(name="k")
    entry.int_value = 3
    recording.packet().interned_data.debug_annotation_names.add(iid=4, name="named")
    recording.end(1)
    recording.begin(2, "inner", "cpu_op")
    recording.trace.packet[-1].track_event.debug_annotations.add(name_iid=4).int_value = 300
    recording.end(3)
    first, second = events(recording.written(tmp_path))
    assert first["args"] == {
        "big": -(1 << 40), "zero": 0, "text": 'a"\n', "real": 1.5, "none": None, "flag": True, "uint": 1 << 63,
        "map": {"k": 3},
    }  # fmt: skip
    assert second["args"] == {"named": 300}


def test_counters_are_kept(tmp_path: Path) -> None:
    recording = Recording()
    counters = recording.packet().interned_data.gpu_counter_descriptors.add(iid=1, gpu_id=0)
    counters.counter_descriptor.specs.add(counter_id=3, name="DRAM BW (%)")
    event = recording.packet(2_000).gpu_counter_event
    event.counter_descriptor_iid = 1
    event.counters.add(counter_id=3).double_value = 81.5
    [row] = events(recording.written(tmp_path))
    assert row == {"ph": "C", "name": "DRAM BW (%)", "pid": "GPU 0 Counters", "ts": 2.0, "args": {"": 81.5}}


def small() -> Recording:
    recording = Recording()
    for k in range(40):
        recording.begin(1_000 + 10 * k, "aten::mm", "cpu_op", **{"External id": k, "Record function id": k * 1_000})
    for k in range(40):
        recording.end(1_009 + 10 * k)
    return recording


def test_the_head_says_process_and_time(tmp_path: Path) -> None:
    path = small().written(tmp_path)
    for data in (path.read_bytes(), path.read_bytes()[:-7]):
        path.write_bytes(data)
        head = read_head(path)
        assert (head.kind, head.pid, head.start_ns, head.binary) == ("kineto", 77, BASE + 1_000, True)
        assert looks_like(path) == "kineto"


def test_batches_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = small().read(tmp_path)
    monkeypatch.setattr(pftrace, "_BATCH_BYTES", 50)
    monkeypatch.setattr(pftrace, "_FLOWS", 3)
    pieces = small().read(tmp_path)
    assert np.array_equal(whole.host.end_ns, pieces.host.end_ns)
    assert np.array_equal(whole.host.rf_id, pieces.host.rf_id)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    data = small().written(tmp_path).read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(data,))
    writer.start()
    trace = read_kineto(pipe)
    writer.join()
    assert len(trace.host.start_ns) == 40


def test_what_is_cut_or_damaged_names_the_place(tmp_path: Path) -> None:
    path = small().written(tmp_path)
    data = path.read_bytes()
    first = data.index(b"External id")  # inside the first packet of a slice
    for changed, what in (
        (data[:-3], "ends inside a packet"),
        (data + b"\x12\x00", "no packet begins"),
        (data + b"\x0a\xff\xff\xff\xff\x0f", "more than 64 MB"),
        (data[: first - 2] + b"\x07" + data[first - 1 :], "cannot be decoded"),
    ):
        path.write_bytes(changed)
        with pytest.raises(InputError, match=what) as error:
            read_kineto(path)
        assert str(path) in str(error.value)
        assert "at: byte" in str(error.value)
        assert "do: " in str(error.value)


def test_another_clock_is_refused(tmp_path: Path) -> None:
    recording = small()
    recording.trace.packet[-1].timestamp_clock_id = 64
    with pytest.raises(InputError, match="another clock"):
        recording.read(tmp_path)


def test_traces_of_other_programs_keep_their_error(tmp_path: Path) -> None:
    recording = Recording()
    for category in recording.trace.packet[5].interned_data.event_categories:
        category.name = "gfx"
    path = recording.written(tmp_path)
    assert looks_like(path) == "perfetto"
    with pytest.raises(InputError, match="is a binary Perfetto trace"):
        read_kineto(path)
