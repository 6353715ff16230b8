"""Recordings changed so that their meaning stays: whether graphs and what-ifs stay, too.

    python benchmarks/metamorphic.py [--traces FOLDER] [--only TEXT ...] [--change NAME ...] [--json FILE]

Device rows moved by up to 2 ms, drifting by 100 ppm or set forward midway, the faults of ``tests/simulator/faults.py``,
merged with another rank, other numbers, other order, whole microseconds, the dialects of 2021 and 2023, a step cut out
by hand, ``cuda_sync`` rows taken away. ``lost`` and ``new``: kept waits (pairs of source and target) that only the
recording as it is has, or only the changed one, and the same of calls with what they waited for; gains in percent of
kernels, host and communication at half their time on the ideal machine; ``warned``: beyond the limits, and a warning
names the time. ``--only``: recordings whose name has TEXT in it. ``--change``: changes whose name begins with NAME.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from graphlink.errors import GraphlinkError, SeveralRanks
from graphlink.graph.critical import cost_ns, critical_path, shares
from graphlink.graph.target import written
from graphlink.graph_model import EdgeKind, NodeKind
from graphlink.linking.call_roles import WAITS, roles
from graphlink.model import NOWHERE
from graphlink.ranks.group_ids import assign
from graphlink.read.cuspy import NODE_FLOWS
from graphlink.read.kineto_rows import CALL, HOST, TABLE_OF
from graphlink.read.nsys.places import number
from graphlink.read.nsys.report import read_report
from graphlink.replay.changes import Changes, parse_scale
from graphlink.replay.machines import play_ideal, replay
from graphlink.replay.whatif import apply
from graphlink.replay.workload import Work, workload
from graphlink.run.discover.find import of_merged
from graphlink.run.job import Inputs, Options, PreparedRank, prepare

sys.path.insert(0, str(Path(__file__).parents[1]))  # the simulated machine lies beside the tests

from tests.simulator import changes
from tests.simulator.changes import Changed, Document, Numbers
from tests.simulator.faults import FAULTS, merged

TRACES: Final = Path(__file__).resolve().parents[2] / "shared" / "traces"
SHIFTS_US: Final = (-2_000, -400, -20, -10, -3, 3, 8, 20, 400, 2_000)
FORWARD_US: Final = 12
SORTS: Final = ("kernel", "host", "comm")
FEW_LAUNCHES: Final = 5  # on an idle stream: with fewer and no wait nothing says what the clocks do
IDLE_NS: Final = 50_000  # a stream is idle whatever the clocks do if this long nothing ran on it
_NAMED: Final = re.compile(r"waited [0-9.]+ us for something|how far the clock of a device is off")
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Recording:
    """A recording to change: a Kineto trace with or without its ET, or a place of an nsys export."""

    name: str
    kineto: Path | None = None
    et: Path | None = None
    nsys: Path | None = None
    place: int = 0


@dataclass(frozen=True)
class Measured:
    """What a graph says.

    ``waits``: kept ones as (source, target), ``calls``: (source, waiting call), both in the numbers of the
    recording as it is. ``edges``: all, by kind.
    """

    waits: frozenset[Key]
    calls: frozenset[Key]
    edges: frozenset[Key]
    gains: dict[str, float]
    gap_share: float
    exempt: tuple[bool, bool, bool]  # the whole, and its halves: clocks cannot be told
    named: frozenset[str]  # warnings that name a time that is not explained


@dataclass(frozen=True)
class Verdict:
    recording: str
    change: str
    waits: int
    lost: int
    new: int
    calls: int
    calls_lost: int
    calls_new: int
    gains: dict[str, tuple[float, float]]
    gap_share: tuple[float, float]
    said: str  # ok | EFFECT | exempt | warned (of the time) | error, in words


def recordings(folder: Path, only: Sequence[str] = ()) -> Iterator[Recording]:
    """All below a folder that have rows of a device or of host ops; of two runs in one folder and side files none."""
    for path in sorted((*folder.rglob("*.json.gz"), *folder.rglob("kineto_*.json"))):
        name = str(path.relative_to(folder)).removesuffix(".gz").removesuffix(".json")
        if path.name.startswith("et_") or "mismatched" in name or (only and not any(text in name for text in only)):
            continue
        et = path.with_name(path.name.replace("kineto_", "et_"))
        yield Recording(name, kineto=path, et=et if et != path and et.exists() else None)
    for path in sorted(folder.rglob("*.sqlite")):
        name = str(path.relative_to(folder)).removesuffix(".sqlite")
        if only and not any(text in name for text in only):
            continue
        for place in range(len(read_report(path)[1])):
            yield Recording(f"{name}:{place}", nsys=path, place=place)


# measuring


def measured(inputs: Inputs, numbers: Numbers = Numbers(), step: str = "all") -> Measured:  # noqa: B008
    """Make the graph of a recording and ask it all, in process."""
    try:
        prepared = prepare(inputs, Options(step=step))
    except SeveralRanks as problem:  # merged with itself
        with tempfile.TemporaryDirectory() as folder:
            prepared = prepare(of_merged(inputs, problem, Path(folder))[0], Options(step=step))
    graph = prepared.built.graph
    cost = cost_ns(graph)
    path = critical_path(graph, replay(graph, cost).end_ns, cost, shares(graph, prepared.linked, prepared.comm))
    every = frozenset(_edges(prepared, numbers))
    waits = frozenset((s, t) for kind, s, t in every if _is_wait(kind, s, t))
    return Measured(
        waits,
        frozenset(_calls(prepared, numbers)),
        every,
        _gains(prepared),
        path.gap_ns / max(1, path.length_ns),
        _exempt(prepared),
        frozenset(text for text in prepared.warnings if _NAMED.search(text)),
    )


def _is_wait(kind: str, source: Key, target: Key) -> bool:
    wanted = {"sync": ("op",), "event": ("device", "delay")}
    return kind in wanted and source[0] == "device" and target[0] in wanted[kind]


def _gains(prepared: PreparedRank) -> dict[str, float]:
    """Gain in percent of each sort at half its time on the ideal machine."""
    graph, ids = prepared.built.graph, assign({prepared.rank: prepared.plan.groups})[prepared.rank]
    work = workload(
        {prepared.rank: written(graph.of_rank(prepared.rank, prepared.world_size), prepared.comm, prepared.plan, ids)}
    )
    before = play_ideal(work).total_ns
    out_of = {}
    for sort in SORTS:
        scale = parse_scale(f"{sort}=0.5")
        there = bool(np.any(work.work == Work[sort.upper()]))
        after = play_ideal(apply(work, Changes((scale,)), {}).work).total_ns if there else before
        out_of[sort] = 100 * (1 - after / before) if before else 0.0
    return out_of


def _edges(prepared: PreparedRank, numbers: Numbers) -> Iterator[Key]:
    """All edges as (kind, source, target), nodes by what they are in the recording and not by number."""
    graph = prepared.built.graph
    names = _names(prepared, numbers)
    target = np.repeat(np.arange(len(graph.kind)), np.diff(graph.first))
    words = [kind.name.lower() for kind in EdgeKind]
    for s, t, kind in zip(graph.source.tolist(), target.tolist(), graph.edge_kind.tolist(), strict=True):
        yield words[kind], names[s], names[t]


def _calls(prepared: PreparedRank, numbers: Numbers) -> Iterator[Key]:
    """What each synchronisation call waited for: (device op, correlation of the call), and those before the end of the
    rank, too.
    """
    graph, told = prepared.built.graph, prepared.built.graph.sync_calls
    device, correlation = _device_keys(prepared, numbers), {new: old for old, new in numbers.correlation.items()}
    calls = prepared.linked.trace.calls.correlation[told.call].tolist()
    for row, call in zip(graph.row[told.source].tolist(), calls, strict=True):
        yield device[row], correlation.get(call, call)


def _names(prepared: PreparedRank, numbers: Numbers) -> list[Key]:
    graph, trace = prepared.built.graph, prepared.linked.trace
    device, host, call = (
        _device_keys(prepared, numbers),
        _host_keys(prepared, numbers),
        trace.calls.correlation.tolist(),
    )
    correlation = {new: old for old, new in numbers.correlation.items()}
    tid = {new: old for old, new in numbers.tid.items()}
    seen: Counter[Key] = Counter()
    out: list[Key] = []
    for kind, row, thread in zip(graph.kind.tolist(), graph.row.tolist(), graph.tid.tolist(), strict=True):
        key: Key
        if kind in (NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY):
            key = ("device" if kind == NodeKind.DEVICE_OP else "delay", *device[row])
        elif kind == NodeKind.HOST_CALL:
            key = ("call", correlation.get(call[row], call[row]))
        elif kind in (NodeKind.HOST_GAP, NodeKind.END):
            key = (NodeKind(kind).name, tid.get(thread, thread))
        else:
            key = ("op" if kind == NodeKind.HOST_OP else NodeKind(kind).name, *host[row])
        if kind not in (NodeKind.HOST_OP, NodeKind.DEVICE_OP, NodeKind.DEVICE_DELAY):
            seen[key] += 1
            key = (*key, seen[key])
        out.append(key)
    return out


def _device_keys(prepared: PreparedRank, numbers: Numbers) -> list[Key]:
    """Correlation, device and stream, and the how manieth of that it is; without a call the correlation tells nothing."""
    rows, called = prepared.linked.trace.device, prepared.linked.device_call != NOWHERE
    correlation = {new: old for old, new in numbers.correlation.items()}
    stream = {new: old for old, new in numbers.stream.items()}
    seen: Counter[Key] = Counter()
    out: list[Key] = []
    numbers = np.where(called, rows.correlation, 0).tolist()
    for c, d, s in zip(numbers, rows.device.tolist(), rows.stream.tolist(), strict=True):
        key = (correlation.get(c, c), d, stream.get(s, s))
        seen[key] += 1
        out.append((*key, seen[key]))
    return out


def _host_keys(prepared: PreparedRank, numbers: Numbers) -> list[Key]:
    """Thread and name, and the how manieth of that it is."""
    trace = prepared.linked.trace
    tid = {new: old for old, new in numbers.tid.items()}
    seen: Counter[Key] = Counter()
    out: list[Key] = []
    for t, name in zip(trace.host.tid.tolist(), trace.host.name.tolist(), strict=True):
        key = (tid.get(t, t), trace.strings[name])
        seen[key] += 1
        out.append((*key, seen[key]))
    return out


def _exempt(prepared: PreparedRank) -> tuple[bool, bool, bool]:
    """Whether the recording, and its halves, have fewer than 5 launches on an idle stream and no call that waited."""
    linked = prepared.linked
    device, calls = linked.trace.device, linked.trace.calls
    if not len(device.start_ns):
        return True, True, True
    order = np.lexsort((device.start_ns, device.stream, device.device))
    before = np.full(len(order), np.iinfo(np.int64).min)
    same = (device.stream[order][1:] == device.stream[order][:-1]) & (
        device.device[order][1:] == device.device[order][:-1]
    )
    before[order[1:][same]] = device.end_ns[order[:-1][same]]
    launched = linked.device_call != NOWHERE
    idle = np.zeros(len(order), np.bool_)
    idle[launched] = before[launched] < calls.start_ns[linked.device_call[launched]] - IDLE_NS
    role = roles(calls, linked.trace.strings)
    waits = np.isin(role, WAITS) & (calls.end_ns - calls.start_ns > IDLE_NS)
    waits |= np.isin(calls.correlation, linked.trace.syncs.correlation)
    middle = (int(device.start_ns.min()) + int(device.end_ns.max())) // 2

    def few(first: int, last: int) -> bool:
        launches = np.count_nonzero(idle & (device.start_ns >= first) & (device.start_ns < last))
        return bool(launches < FEW_LAUNCHES and not np.any(waits & (calls.start_ns >= first) & (calls.start_ns < last)))

    most = np.iinfo(np.int64).max
    return few(0, most), few(0, middle), few(middle, most)


# judging


def judge(name: str, change: str, before: Measured, after: Measured) -> Verdict:
    """Hold a changed recording against the one as it is, by what this change may do (CONTRACT.md, "Clocks")."""
    lost, new = len(before.waits - after.waits), len(after.waits - before.waits)
    calls_lost, calls_new = len(before.calls - after.calls), len(after.calls - before.calls)
    gains = {sort: (before.gains[sort], after.gains[sort]) for sort in SORTS}
    apart = max(abs(a - b) for a, b in gains.values())
    share = (100 * before.gap_share, 100 * after.gap_share)
    if change.startswith("dialect"):
        fine = abs(share[1] - share[0]) <= 5
    elif change == "step":
        fine = before.edges == after.edges
        lost, new = len(before.edges - after.edges), len(after.edges - before.edges)
    elif change == "no-sync-rows":
        fine = True
    elif change == "cuspy":
        fine = apart <= 1 and lost <= max(1, 0.1 * len(before.waits)) and new <= max(1, 0.05 * len(before.waits))
    else:
        share_off = 0.05 if change.endswith("rounded") else 0.02  # what is rounded to us may go to its neighbour
        fine = apart <= 1 and max(lost, new) <= max(1, share_off * len(before.waits))
        fine = fine and max(calls_lost, calls_new) <= max(1, share_off * (len(before.calls) + len(before.waits)))
    exempt = {"clock": before.exempt[0], "drift": before.exempt[0], "forward": any(before.exempt[1:])}.get(
        change.split("+")[0].split("-")[0], False
    )
    said = "ok" if fine else "exempt" if exempt else "warned" if after.named - before.named else "EFFECT"
    return Verdict(
        name, change, len(before.waits), lost, new, len(before.calls), calls_lost, calls_new, gains, share, said
    )


def kineto_changes(document: Document) -> Iterator[tuple[str, Callable[[Document], Changed]]]:
    """What can be changed in a recording, by name; without rows of a device no clock of one."""
    if any(row.get("cat") in changes.DEVICE_CLOCK for row in document["traceEvents"]):
        for shift in SHIFTS_US:
            yield f"clock{shift:+d}us", partial(changes.device_clock, shift_us=shift)
        flows = [row.get("id") for row in document["traceEvents"] if row.get("cat") == "ac2g"]
        inside = any(type(number) is int and number >= NODE_FLOWS for number in flows)  # graphs: no witnesses alone
        other = {"no-correlation": not flows, "no-flows": inside}
        whole = "-rounded" if changes.in_whole_us(document) else ""
        yield from ((name + whole * (name == "drift"), do) for name, do in FAULTS.items() if not other.get(name))
        yield (
            f"forward+{FORWARD_US}us",
            partial(changes.device_clock, shift_us=FORWARD_US, since_us=changes.middle_us(document)),
        )
    for name, marks in (("merged", False), ("merged-marks", True)):
        yield name, partial(with_another, marks=marks)
    yield "renumbered", changes.renumbered
    yield "shuffled", changes.shuffled
    if not changes.in_whole_us(document):
        yield "rounded", changes.rounded
    if changes.is_of_2022_or_later(document):
        yield "dialect-2021", changes.as_2021
        yield "dialect-2023", changes.as_2023
    if changes.is_of_cuda(document):
        yield "cuspy", changes.as_cuspy
    if changes.step_numbers(document):
        yield "step", partial(changes.only_step, step=_some_step(document))
    if any(row.get("cat") == "cuda_sync" for row in document["traceEvents"]):
        yield "no-sync-rows", changes.without_sync_rows


def with_another(document: Document, *, marks: bool) -> Changed:
    """Merge a recording behind a copy of it, of another process."""
    hosts = {row.get("pid") for row in document["traceEvents"] if TABLE_OF.get(row.get("cat") or "") in (HOST, CALL)}
    pids = {pid: f"{pid}0000" for pid in hosts}
    rows = [row | {"pid": pids.get(row.get("pid"), row.get("pid"))} for row in document["traceEvents"]]
    return Changed(merged([document | {"traceEvents": rows}, document], marks=marks))


def _some_step(document: Document) -> int:
    steps = changes.step_numbers(document)
    return steps[len(steps) // 2]


def read_document(path: Path) -> Document:
    """The document of a Kineto trace, packed or not."""
    data = path.read_bytes()
    document: Document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, strict=False)
    return document


def verdicts(recording: Recording, wanted: Sequence[str] = ()) -> Iterator[Verdict]:
    """Each change of a recording, judged."""
    with tempfile.TemporaryDirectory() as folder:
        each = (
            _of_nsys(recording, Path(folder), wanted) if recording.nsys else _of_kineto(recording, Path(folder), wanted)
        )
        yield from each


def _wanted(change: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(change.startswith(text) for text in wanted)


def _of_kineto(recording: Recording, folder: Path, wanted: Sequence[str]) -> Iterator[Verdict]:
    assert recording.kineto is not None
    document, path = read_document(recording.kineto), folder / "kineto_0.json"
    for name, change in kineto_changes(document):
        if not _wanted(name, wanted):
            continue
        et = None if name.startswith(("dialect", "step", "merged")) else recording.et
        try:
            before = as_it_is(recording.kineto, et, str(_some_step(document)) if name == "step" else "all")
            changed = change(document)
            path.write_bytes(msgspec.json.encode(changed.document))
            yield judge(
                recording.name, name, before, measured(Inputs(kineto=path, et=et, expected_rank=0), changed.numbers)
            )
        except GraphlinkError as problem:
            yield Verdict(recording.name, name, 0, 0, 0, 0, 0, 0, {}, (0, 0), f"error: {problem}")


@cache
def as_it_is(kineto: Path, et: Path | None = None, step: str = "all") -> Measured:
    """Measure a recording that was not changed, once."""
    return measured(Inputs(kineto=kineto, et=et, expected_rank=0), step=step)


@cache
def export_as_it_is(nsys: Path, place: int) -> Measured:
    return _measured_export(nsys, place, Numbers())


def _measured_export(nsys: Path, place: int, numbers: Numbers) -> Measured:
    numbering = number([read_report(nsys)[0]])[0]
    return measured(Inputs(nsys=nsys, place=place, numbering=numbering), numbers)


def _of_nsys(recording: Recording, folder: Path, wanted: Sequence[str]) -> Iterator[Verdict]:
    assert recording.nsys is not None
    given, path = recording.nsys, folder / "changed.sqlite"
    each: list[tuple[str, Callable[[], Numbers]]] = [
        (f"clock{us:+d}us", partial(changes.nsys_device_clock, given, path, us * 1000)) for us in SHIFTS_US
    ]
    middle = changes.nsys_middle_ns(given)
    each.append((f"forward+{FORWARD_US}us", partial(changes.nsys_device_clock, given, path, FORWARD_US * 1000, middle)))
    each.append(("renumbered", partial(changes.nsys_renumbered, given, path)))
    for name, change in each:
        if _wanted(name, wanted):
            numbers = change()
            yield judge(
                recording.name,
                name,
                export_as_it_is(given, recording.place),
                _measured_export(path, recording.place, numbers),
            )


# the table


HEAD: Final = "recording, change, waits lost new, calls lost new, gains of kernel, host, comm, gaps %, seconds, verdict"


def line(verdict: Verdict, seconds: float) -> str:
    v = verdict
    what = f"{v.recording:46}{v.change:14}"
    if not v.gains:
        return f"{what}{v.said}"
    waits = f"{v.waits:6}{v.lost:5}{v.new:5}{v.calls:6}{v.calls_lost:5}{v.calls_new:5}"
    gains = "".join(f"{a:8.2f}>{b:6.2f}" for a, b in (*v.gains.values(), v.gap_share))
    return f"{what}{waits}{gains}{seconds:6.1f}s  {v.said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--change", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(HEAD)
    every: list[Verdict] = []
    for recording in recordings(asked.traces, asked.only):
        start = time.perf_counter()
        for verdict in verdicts(recording, asked.change):
            print(line(verdict, time.perf_counter() - start), flush=True)
            every.append(verdict)
            start = time.perf_counter()
    effects = [v for v in every if v.said not in ("ok", "exempt", "warned")]
    print(f"{len(every)} changes of {len({v.recording for v in every})} recordings, {len(effects)} with effect")
    if asked.json:
        asked.json.write_text(json.dumps([asdict(v) for v in every], indent=1))


if __name__ == "__main__":
    main()
