"""The installed command on real exports of nsys."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.conftest import ROOT, Done
from tests.e2e.test_pairs import check_graph, check_identities

FOLDER = ROOT.parent / "shared" / "traces" / "nsys"
Run = Callable[..., Done]
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"public traces are not at {FOLDER}")


@pytest.mark.parametrize(("name", "device_ops"), [("h100_2gpu_1s", [2184, 2184]), ("no_nvtx_table", [3])])
def test_public_export(name: str, device_ops: list[int], graphlink: Run) -> None:
    """2184 = 1721 kernels, 452 copies and 11 memsets on each device."""
    done = graphlink("--nsys", FOLDER / f"{name}.sqlite")
    assert (done.status, done.err) == (0, "")
    ranks = done.summary["ranks"]
    assert [rank["device"]["ops"] for rank in ranks] == device_ops
    for rank in ranks:
        check_identities(rank)
        check_graph(rank, done.folder / f"trace.{rank['rank']}.et")
        assert rank["host"]["method"] == "nsys"
        assert abs(rank["replay"]["error_pct"]) < 0.01
        assert rank["replay"]["delay_share"] < 0.01
    assert sorted(path.name for path in done.folder.iterdir()) == sorted(done.summary["files"])
