"""What PyTorch writes of one window as JSON and as ``.pftrace`` (``fixtures/real/gpu/cuspy``) gives the same graph, byte
for byte, but for what the ``.pftrace`` does not hold: which memory copies are between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

import graphlink
from graphlink.read.stream import open_array
from tests.capture.gpu_truths import unpack
from tests.e2e.conftest import ROOT

CUSPY = ROOT / "fixtures" / "real" / "gpu" / "cuspy"
ARCHIVES = sorted(CUSPY.glob("*.tar.xz"))
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
OPTIONS = graphlink.Options(timeline="none")
QUICK = ("dag", "graphs", "host-node", "lanes", "streams", "train")
NOT_HELD = ("copy kind", "src kind", "dst kind")


def summary(run: graphlink.Run) -> Any:
    return json.loads((run.folder / "summary.json").read_text())


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(path, id=name, marks=() if name in QUICK else pytest.mark.long)
        for path in ARCHIVES
        for name in [path.name.removesuffix(".tar.xz")]
    ],
)
def test_the_same_graph_from_either(archive: Path, tmp_path: Path) -> None:
    recordings = [folder for folder in unpack(archive, tmp_path) if (folder / "kineto_0.pftrace").exists()]
    assert recordings
    for folder in recordings:
        trace = json.loads((folder / "kineto_0.json").read_bytes())
        copies = [row["args"] for row in trace["traceEvents"] if row.get("cat") == "gpu_memcpy"]
        for args in copies:
            for key in NOT_HELD:
                del args[key]
        (folder / "without.json").write_text(json.dumps(trace, separators=(",", ":")))
        graphs = []
        for name in ("kineto_0.pftrace", "without.json" if copies else "kineto_0.json"):
            run = graphlink.link(folder / name, folder / "et_0.json", options=OPTIONS, out=tmp_path / "out", force=True)
            graphs.append((run.folder / "trace.0.et").read_bytes())
            warned = any(".pftrace" in text for text in summary(run)["ranks"][0]["warnings"])
            assert warned == bool(copies)
        assert graphs[0] == graphs[1]


def test_a_folder_with_both_takes_the_json(tmp_path: Path) -> None:
    (folder, *_) = unpack(next(path for path in ARCHIVES if path.name.startswith("default-stream")), tmp_path / "in")
    run = graphlink.link(folder, options=OPTIONS, out=tmp_path / "out")
    warnings = " ".join(summary(run)["warnings"])
    assert f"{folder / 'kineto_0.pftrace'} is left aside: {folder / 'kineto_0.json'} is the same" in warnings
    (folder / "kineto_0.json").unlink()
    alone = graphlink.link(folder, options=OPTIONS, out=tmp_path / "alone")
    assert (run.folder / "trace.0.et").read_bytes() == (alone.folder / "trace.0.et").read_bytes()


def _in_slices(path: Path, out: Path) -> None:
    """Write a binary trace as earlier builds did: rows of GPUs are slices on tracks of their streams, with the args of
    the JSON."""
    with open_array(path, ("traceEvents",)) as array:
        rows = [row for block in array.blocks(dict) for row in block.rows if row.get("cat") in ON_GPU]
    trace = pb.Trace.FromString(path.read_bytes())
    kept = [packet for packet in trace.packet if not packet.HasField("gpu_render_stage_event")]
    stages = [packet for packet in trace.packet if packet.HasField("gpu_render_stage_event")]
    made = pb.Trace(packet=kept)
    device = made.packet.add().track_descriptor
    device.uuid, device.process.pid, device.process.process_name = 1, 0, "GPU 0"
    for stream in {row["args"]["stream"] for row in rows}:
        track = made.packet.add().track_descriptor
        track.uuid, track.thread.pid, track.thread.tid = 10 + stream, 0, stream
    for begins in (True, False):
        for row, stage in zip(rows, stages, strict=True):
            length = 0 if begins else stage.gpu_render_stage_event.duration
            packet = made.packet.add(timestamp=stage.timestamp + length)
            event = packet.track_event
            event.type = event.TYPE_SLICE_BEGIN if begins else event.TYPE_SLICE_END
            event.track_uuid = 10 + row["args"]["stream"]
            for name, value in row["args"].items() if begins else ():
                if isinstance(value, list):
                    annotation = event.debug_annotations.add(name=name)
                    for part in value:
                        annotation.array_values.add(int_value=part)
                else:
                    kind = "int_value" if isinstance(value, int) else "string_value"
                    event.debug_annotations.add(name=name, **{kind: value})
            event.name = row["name"] if begins else ""
    out.write_bytes(made.SerializeToString())


@pytest.mark.parametrize("name", ["streams", pytest.param("train", marks=pytest.mark.long)])
def test_rows_of_gpus_as_slices_give_the_same_graph(name: str, tmp_path: Path) -> None:
    folder = next(one for one in unpack(CUSPY / f"{name}.tar.xz", tmp_path) if (one / "kineto_0.pftrace").exists())
    _in_slices(folder / "kineto_0.pftrace", folder / "slices.pftrace")
    graphs = []
    for file in ("kineto_0.pftrace", "slices.pftrace"):
        run = graphlink.link(folder / file, folder / "et_0.json", options=OPTIONS, out=tmp_path / "out", force=True)
        graphs.append((run.folder / "trace.0.et").read_bytes())
    assert graphs[0] == graphs[1]
