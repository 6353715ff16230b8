"""Holds a recording of ``fixtures/capture/gpu.py`` to its own ranges: what each call waited for (``truth: CALL for
STREAMS``), and on which stream work was launched (``on STREAM``)."""

from __future__ import annotations

import json
import tarfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import graphlink

SLACK_US = 2.0  # work that ends so soon need not be waited for
FIRST_CALLS = ("cuda_runtime", "cuda_driver")


def unpack(archive: Path, into: Path) -> list[Path]:
    """Unpack the recordings of a program; returns their folders."""
    with tarfile.open(archive) as packed:
        packed.extractall(into, filter="data")
    return sorted({path.parent for path in into.rglob("kineto_0.json")})


@dataclass(frozen=True)
class Wrong:
    """A call whose edges are not its truth. ``missing``: streams whose last work it waited for, and does not depend on;
    ``false``: streams that it depends on and did not wait for."""

    call: str
    missing: tuple[str, ...]
    false: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    calls: int
    wrong: tuple[Wrong, ...]


class _Recorded:
    """The rows of a recording beside the nodes of its graph. Times in us of the recording's clock."""

    def __init__(self, folder: Path, run: graphlink.Run):
        events = json.loads((folder / "kineto_0.json").read_text())["traceEvents"]
        rows = [row for row in events if row.get("ph") == "X"]
        ranges = [row for row in rows if row.get("cat") == "user_annotation"]
        self.truths = sorted((row for row in ranges if row["name"].startswith("truth: ")), key=lambda row: row["ts"])
        step = min((row for row in ranges if row["name"].startswith("ProfilerStep")), key=lambda row: row["ts"])
        nodes, edges = run.nodes().set_index("id"), run.edges()
        mark = nodes[nodes["name"] == step["name"]].iloc[0]
        zero_us = step["ts"] - mark["start_ns"] / 1e3
        self.end_us = (zero_us + nodes["end_ns"] / 1e3).to_dict()
        host = nodes[nodes["tid"].notna()]
        self.host = [
            (thread, zero_us + start / 1e3, node)
            for node, thread, start in zip(host.index, host["tid"], host["start_ns"], strict=True)
        ]
        self.sources = edges.groupby("target")["source"].apply(list).to_dict()
        self.waited = edges[edges["kind"] == "sync"].groupby("target")["source"].apply(list).to_dict()
        self.stream, self.launched_us = self._streams(rows, ranges, nodes)

    @staticmethod
    def _streams(rows: list[Any], ranges: list[Any], nodes: Any) -> tuple[dict[int, str], dict[int, float]]:
        """Return the name of the stream of each device node, and when it was launched."""
        launching = [row for row in ranges if row["name"].startswith("on ")]
        calls = {row["args"]["correlation"]: row for row in rows if row.get("cat") in FIRST_CALLS}
        stream, launched_us = {}, {}
        for node, correlation in nodes["correlation"].dropna().items():
            call = calls.get(int(correlation))
            around = [
                row
                for row in launching
                if call and row["tid"] == call["tid"] and row["ts"] <= call["ts"] <= row["ts"] + row["dur"]
            ]
            if call and around:
                stream[node] = min(around, key=lambda row: row["dur"])["name"].removeprefix("on ")
                launched_us[node] = call["ts"]
        return stream, launched_us


def judge(folder: Path, run: graphlink.Run) -> Judged:
    """Compare the graph of a recording with what its program knows.

    A call has to depend on the last work of each stream that it waits for, itself or through other work; and it may
    depend on no other work that was still running when it began. The next operator has its edges where it did not
    block: that is the range of the next call.
    """
    recorded = _Recorded(folder, run)
    wrong = []
    for truth in recorded.truths:
        call, _, names = truth["name"].removeprefix("truth: ").rpartition(" for ")
        streams = set(names.split()) - {"nothing"}
        begun_us, over_us = truth["ts"], truth["ts"] + truth["dur"]
        following = [row["ts"] for row in recorded.truths if row["tid"] == truth["tid"] and row["ts"] > begun_us]
        until_us = min(following, default=float("inf"))
        waited = [
            source
            for thread, start_us, node in recorded.host
            if thread == truth["tid"] and begun_us - 0.01 <= start_us <= until_us + 0.01
            for source in recorded.waited.get(node, [])
            if source in recorded.stream
        ]
        last: dict[str, list[int]] = defaultdict(list)
        for node, stream in recorded.stream.items():
            if stream in streams and recorded.launched_us[node] <= begun_us:
                last[stream].append(node)
        needed = {
            stream: node
            for stream, nodes in last.items()
            if recorded.end_us[node := max(nodes, key=recorded.launched_us.__getitem__)] > begun_us + SLACK_US
        }
        reached = _before(waited, recorded.sources)
        missing = sorted(stream for stream, node in needed.items() if node not in reached)
        false = sorted(
            recorded.stream[node]
            for node in waited
            if recorded.stream[node] not in streams
            and recorded.end_us[node] > begun_us + SLACK_US
            and not ("in the middle" in call and recorded.end_us[node] < over_us)
        )
        if missing or false:
            wrong.append(Wrong(call, tuple(missing), tuple(false)))
    return Judged(len(recorded.truths), tuple(wrong))


def _before(nodes: list[int], sources: dict[int, list[int]]) -> set[int]:
    reached: set[int] = set()
    while nodes:
        node = nodes.pop()
        if node not in reached:
            reached.add(node)
            nodes = nodes + sources.get(node, [])
    return reached
