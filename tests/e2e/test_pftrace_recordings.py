"""What PyTorch writes of one window as JSON and as ``.pftrace`` (``fixtures/real/gpu/cuspy``) gives the same graph, byte
for byte, but for what the ``.pftrace`` does not hold: which memory copies are between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import graphlink
from tests.capture.gpu_truths import unpack
from tests.e2e.conftest import ROOT

ARCHIVES = sorted((ROOT / "fixtures" / "real" / "gpu" / "cuspy").glob("*.tar.xz"))
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
