from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from graphlink.cli.critical import report
from graphlink.cli.out import rendered
from graphlink.graph.critical import ShareNs
from graphlink.graph.families import family_of
from graphlink.graph.fold import NAMES
from graphlink.graph.path_file import load
from graphlink.graph.read_et import read_et
from graphlink.records import path_words, share_word, shortened
from graphlink.replay.path_words import sentences, share_rows
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
MEGATRON = Path(__file__).parents[2] / "../shared/traces/megatron-tp2-v100"


@pytest.fixture(scope="module")
def folded(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from graphlink.cli import main

    folder = tmp_path_factory.mktemp("folded") / "out"
    assert main([str(traces), "--host", "launches", "--out", str(folder), "--jobs", "1", "--no-timeline", "-q"]) == 0
    return folder


@pytest.fixture(scope="module")
def out(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from graphlink.cli import main

    folder = tmp_path_factory.mktemp("critical") / "out"
    assert main([str(traces), "--out", str(folder), "--jobs", "1", "-q"]) == 0
    return folder


def test_the_report_names_what_the_file_holds(graphlink: Run, out: Path) -> None:
    ran = graphlink("critical-path", out, "--rank", "1", "--top", "3")
    assert (ran.status, ran.err) == (0, "")
    file = json.loads((out / "critical_path.1.json").read_text())
    assert f"rank 1: critical path {file['length_ns'] / 1e6:,.3f} ms" in ran.out
    for name, ns in file["share_ns"].items():
        assert any(line.split()[:2] == [share_word(name), f"{ns / 1e6:,.3f}"] for line in ran.out.splitlines())
    families = "families (nodes of one name, ops with their parts; counted are those with work)"
    for sort, heading in (("ops", "ops"), ("families", families), ("sync_points", "sync points")):
        lines = ran.out[ran.out.index(f"\n{heading}") :].strip().split("\n\n")[0].splitlines()[2:]
        gains = [f"{g['gain_ns'] / 1e6:,.3f}" for g in file["gains"][sort]]
        assert [line.split()[0] for line in lines[:-1]] == gains[:3]
        assert (gains[3:4] or ["no other gains anything"])[0] in lines[-1]
    others = graphlink("critical-path", out)
    assert "; --rank chooses" in others.out


def test_the_unexplained_share_has_two_parts(graphlink: Run, out: Path) -> None:
    ranks = json.loads((out / "summary.json").read_text())["ranks"]
    for rank, words in ((0, ()), (1, ()), (None, ("--across",))):
        text = graphlink("critical-path", out, *(words or ("--rank", rank))).out
        rows = {
            line[: line.index("   ")].strip(): line[line.index("   ") :].split()
            for line in text.splitlines()
            if " ms " in line and "   " in line
        }
        whole, gpu, host = (
            rows[name] for name in ("unexplained", "idle GPU stream (device delays)", "idle host thread (host gaps)")
        )
        assert float(gpu[0]) + float(host[0]) == pytest.approx(float(whole[0]), abs=0.0015)
        if rank is not None:
            shares = [100 * ranks[rank]["replay"][name] for name in ("delay_share", "gap_share")]
            assert [gpu[2], host[2]] == [f"{share:.1f}" for share in shares]
            both = {"idle GPU stream": gpu[2], "idle host thread": host[2]}
            said = ", ".join(f"{name} {share} %" for name, share in both.items() if share != "0.0")
            assert f"({said})" in " ".join(graphlink("show", out).out.split())


def test_gains_say_what_replay_says_when_asked(graphlink: Run, out: Path) -> None:
    """Two programs for one question: a share or sync point gone, recomputed here, replayed there."""
    file = load(out / "critical_path.0.json")
    sync = file.gains.sync_points[0]
    asked = {
        file.gains.shares.host: ("--scale", "host=0"),
        file.gains.shares.compute: ("--scale", "kernel=0"),
        file.gains.shares.communication: ("--scale", "comm=0"),
        file.gains.shares.idle: ("--scale", "gap=0", "--scale", "delay=0"),
        sync.gain_ns: ("--remove-sync", str(sync.id)),
    }
    for gain, options in asked.items():
        ran = graphlink("replay", out, "--rank", "0", *options)
        assert ran.status == 0, ran.err
        assert f" {gain / 1e6:,.3f} ms " in ran.out[ran.out.index("what if") :], options


def test_of_many_ranks_it_opens_with_the_one_that_has_most_of_the_path_over_all(
    graphlink: Run, out: Path, tmp_path: Path
) -> None:
    """Not with the one whose own path is longest, which may do nothing but wait."""
    shutil.copytree(out, tmp_path / "out")
    summary = json.loads((out / "summary.json").read_text())
    for rank, other in ((0, 1), (1, 0)):
        summary["run"]["replay"]["path_rank_ns"] = {str(rank): 30, str(other): 10}
        (tmp_path / "out" / "summary.json").write_text(json.dumps(summary))
        ran = graphlink("critical-path", tmp_path / "out", "--top", "1")
        first, _, head, *_ = ran.out.splitlines()
        words = "decides most when the run ends: it has 75.0 % of the path over all ranks."
        assert first == f"Rank {rank} {words}"
        assert head.startswith(f"rank {rank}: critical path ")
    (tmp_path / "out" / "summary.json").unlink()
    lengths = {rank: load(out / f"critical_path.{rank}.json").length_ns for rank in (0, 1)}
    longest = max(lengths, key=lambda rank: lengths[rank])
    assert graphlink("critical-path", tmp_path / "out").out.startswith(f"rank {longest}: critical path ")


def test_without_work_of_a_gpu_no_line_is_about_one() -> None:
    none = {"host": 60, "compute": 0, "communication": 20, "copy": 0, "idle": 20}
    names = [row[0] for row in share_rows(none, 100, 5, none)]
    assert names == [
        "host",
        "communication",
        "unexplained",
        "  late communication (start delays)",
        "  idle host thread (host gaps)",
    ]
    names = [row[0] for row in share_rows(none, 100, 20, none)]
    assert names[-2:] == ["unexplained", "  idle host thread (host gaps)"]
    assert "compute" in [row[0] for row in share_rows(none, 100, 5, {**none, "compute": 1})], "it gains something"
    assert path_words({"host": 80, "unexplained": 20}, 100, 0.05, 0.15).endswith(
        "(late communication 15.0 %, idle host thread 5.0 %)"
    )


def test_what_it_says_of_paths_that_gain_little_or_much(out: Path) -> None:
    file = load(out / "critical_path.0.json")
    shares = ShareNs(host=600, compute=300, communication=0, copy=0, idle=100)

    def said(host: int, compute: int) -> str:
        gains = msgspec.structs.replace(
            file.gains, shares=ShareNs(host=host, compute=compute, communication=0, copy=0, idle=0)
        )
        return "\n".join(sentences(msgspec.structs.replace(file, length_ns=1000, share_ns=shares, gains=gains)))

    assert "Most of the path is host (60.0 %); if that took no time, this would save 50.0 %." in said(500, 100)
    assert "host (60.0 %), but if that took no time, this would save only 10.0 %" in said(100, 200)
    assert "gains most is compute: 20.0 %, at 30.0 % of the path" in said(100, 200)


def test_an_empty_path_is_said_to_be_empty(out: Path) -> None:
    file = load(out / "critical_path.0.json")
    none = ShareNs(host=0, compute=0, communication=0, copy=0, idle=0)
    nodes = type(file.nodes)(id=[], name=[], share=[], held_by=[], start_ns=[], cost_ns=[], start_delay_ns=[])
    gains = msgspec.structs.replace(file.gains, shares=none, ops=[], families=[], sync_points=[])
    assert "none gains anything" in rendered(
        report(msgspec.structs.replace(file, length_ns=0, share_ns=none, nodes=nodes, gains=gains), 5)
    )


@pytest.mark.parametrize("top", ["0", "-1"])
def test_wrong_usage(graphlink: Run, out: Path, top: str) -> None:
    assert graphlink("critical-path", out, "--top", top).status == 2


def test_what_is_no_folder_of_a_run(graphlink: Run, out: Path, tmp_path: Path) -> None:
    for where, what in (
        (tmp_path / "none", "no such folder"),
        (out / "summary.json", "no folder"),
        (tmp_path, "holds no critical_path"),
    ):
        ran = graphlink("critical-path", where)
        assert (ran.status, what in ran.err) == (1, True)
    missing = graphlink("critical-path", out, "--rank", "7")
    assert (missing.status, "0, 1" in missing.err) == (1, True)
    shutil.copy(out / "critical_path.0.json", tmp_path / "critical_path.0.json")
    (tmp_path / "critical_path.0.json").write_bytes((out / "critical_path.0.json").read_bytes()[:-20])
    ran = graphlink("critical-path", tmp_path)
    assert (ran.status, "is no critical path of this version" in ran.err) == (1, True)


def test_megatron_waits_for_its_other_rank(graphlink: Run, tmp_path: Path) -> None:
    """docs/critical-path.md reads this report aloud."""
    if not MEGATRON.exists():
        pytest.skip("needs the public traces in ../shared/traces")
    for rank in (0, 1):
        pair = ("--et", MEGATRON / f"et_{rank}.json.gz", "--kineto", MEGATRON / f"kineto_{rank}.json.gz")
        assert graphlink(*pair, "--out", tmp_path / str(rank), "-q").status == 0
    first, second = (load(tmp_path / str(r) / f"critical_path.{r}.json") for r in (0, 1))
    assert first.share_ns.communication == 0
    assert second.share_ns.communication > 0.8 * second.length_ns
    assert second.gains.shares.communication < 0.2 * second.length_ns
    assert np.argmax(msgspec.structs.astuple(first.gains.shares)) == first.shares.index("idle")


def test_a_folded_graph_says_what_its_names_stand_for(graphlink: Run, out: Path, folded: Path) -> None:
    """Folding moves time from op to op, so a host op's name gains what others did; sums, devices and waits stay."""
    assert [read_et(d / "trace.0.et").metadata.host for d in (out, folded)] == [None, "launches"]
    full, fewer = (load(d / "critical_path.0.json") for d in (out, folded))
    assert (full.notes, fewer.notes) == ([], [NAMES])
    assert (full.share_ns, full.gains.shares) == (fewer.share_ns, fewer.gains.shares)
    assert [NAMES in graphlink("critical-path", d).out for d in (out, folded)] == [False, True]
    for change, told in (("host:^aten=0.5", True), ("host=0.5", False), ("kernel:.=0.5", False)):
        texts = [graphlink("replay", d, "--machine", "ideal", "--scale", change).out for d in (out, folded)]
        assert [NAMES in t[t.index("not answered") :] for t in texts] == [False, told], change


def test_a_stretch_is_named_after_a_node_of_its_own(out: Path) -> None:
    """Also where none of its nodes takes time."""
    file = load(out / "critical_path.1.json")
    nodes = file.nodes
    free = msgspec.structs.replace(file, nodes=msgspec.structs.replace(nodes, cost_ns=[0] * len(nodes.id)))
    lines = rendered(report(free, 1)).split("longest stretches")[1].splitlines()[1:]
    assert lines
    for line in lines:
        found = re.search(r"nodes? (\d+)(?: to (\d+) \(.*?\))?, most (.*?)(?: before .*)? 0\.000$", line)
        assert found is not None
        low, high = nodes.id.index(int(found[1])), nodes.id.index(int(found[2] or found[1]))
        assert found[3] in {shortened(family_of(file.names[code])) for code in nodes.name[low : high + 1]}
