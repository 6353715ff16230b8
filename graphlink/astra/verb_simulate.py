"""``graphlink simulate``: a run in an ASTRA-sim that is there, judged, beside its recorded and replayed times; on
several networks too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from graphlink.astra import READERS, TOPOLOGIES
from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import WHOLE_RUN_DIR, at_least_one, between, flag, gigabytes_per_s, latency_ns
from graphlink.cli.out import refuse_overwriting, tell, write_file
from graphlink.errors import UsageError
from graphlink.records import Lines, Table, counted, ms

if TYPE_CHECKING:
    from graphlink.astra.files import Network
    from graphlink.astra.simulate import RankTimes, Simulated, SimulatedRank, SimulatorRun
    from graphlink.page.parts import Heat

SWEPT: Final = ("topology", "bandwidth", "latency")
RANKS: Final = "ranks"
MOST_RANKS: Final = 16
_NONE: Final = "-"
_NUMBERS: Final = {"bandwidth": gigabytes_per_s, "latency": latency_ns}
_EPILOG: Final = """exit status: 0 all simulations went well, 1 one did not, or the input is at fault
--sweep takes bandwidth=GB/S,..., latency=NS,..., topology=NAME,... and ranks=N,...; of several, each value is combined with each.
Of other numbers of ranks than recorded graphs are made as graphlink scale does. docs/simulate.md"""  # noqa: E501


def _swept(text: str) -> tuple[str, tuple[str | float, ...]]:
    """Parse ``WHAT=A,B,...`` of ``--sweep``."""
    what, _, values = text.partition("=")
    if what not in (*SWEPT, RANKS) or not values:
        raise argparse.ArgumentTypeError(
            f"{text!r}: is none of {', '.join(f'{one}=A,B,...' for one in (*SWEPT, RANKS))}"
        )
    if what == RANKS:
        return what, tuple(dict.fromkeys(at_least_one(one) for one in values.split(",")))
    return what, tuple(
        dict.fromkeys(_topology(one) if what == "topology" else _NUMBERS[what](one) for one in values.split(","))
    )


def _topology(text: str) -> str:
    """Return the option that a topology has, also where it is written as ASTRA-sim does: ``FullyConnected``."""
    found = next((one for one in TOPOLOGIES if one.replace("-", "") == text.lower().replace("-", "")), None)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(TOPOLOGIES)}")
    return found


SIMULATE_OPTIONS: Final = VerbOptions(
    (
        WHOLE_RUN_DIR,
        Option(
            "--astra-sim", metavar="FILE", help="the binary (default: that named by the environment variable ASTRA_SIM)"
        ),
        Option("--reader", choices=READERS, help="its version: 2026 or 2024 (default: as the binary shows, else head)"),
        Option("--topology", choices=TOPOLOGIES, help="as in graphlink astra, like the next two"),
        Option(
            "--bandwidth",
            type=_NUMBERS["bandwidth"],
            metavar="GB/S",
            help="instead of the measured one (1 GB = 1e9 bytes)",
        ),
        Option("--latency", type=_NUMBERS["latency"], metavar="NS", help="of a step, instead of the measured one"),
        Option(
            "--sweep",
            type=_swept,
            action="append",
            default=[],
            metavar="WHAT=A,B,...",
            help="several networks or numbers of ranks, repeatable",
        ),
        Option(
            "--timeout",
            type=between(0.001, 1e7, "time in s"),
            default=600.0,
            metavar="S",
            help="end a simulation after this time (default 600)",
        ),
        Option(
            "--jobs", type=at_least_one, metavar="N", help="simulations at a time (default: as cores and memory allow)"
        ),
        Option("--svg", metavar="FILE", help="also draw the times of a sweep"),
        flag("-v", "--verbose", help="all ranks, and kinds of work of each"),
    ),
    epilog=_EPILOG,
)


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate, judge, compare and print; 0, or 1 if a simulation did not go well.

    Raises:
        InputError: no ASTRA-sim is there or it does not start; the graphs are not there or stop it.
        OutputError: the picture cannot be written.
        UsageError: something is given twice, or a picture without a sweep.
    """
    networks, ranks = _networks(arguments)
    if arguments.svg is not None:
        if not arguments.sweep:
            raise UsageError("--svg draws a sweep", todo="add --sweep bandwidth=25,50,100, say")
        refuse_overwriting(arguments, "svg")
    from graphlink.astra.simulate import Simulator, find_simulator, reader_of
    from graphlink.astra.sweep import simulate_run
    from graphlink.engine.engines import RunsOn

    binary = find_simulator(arguments.astra_sim or os.environ.get("ASTRA_SIM"))
    simulator = Simulator(binary, arguments.reader or reader_of(binary), arguments.timeout)
    found = simulate_run(Path(arguments.dir), simulator, networks, RunsOn(arguments.jobs), ranks)
    if arguments.svg is not None:
        from graphlink.page.charts import svg

        write_file(Path(arguments.svg), svg(picture(found), alone=True).encode(), "--svg")
    tell(arguments.json, found, lambda: text(found, swept=bool(arguments.sweep), verbose=arguments.verbose))
    return int(not all(run.ok for run in found.runs))


def _networks(arguments: argparse.Namespace) -> tuple[list[Network], Sequence[int]]:
    """Return the networks to simulate, all combinations of what is swept with what is given once, and the numbers of
    ranks. Raises UsageError."""
    from graphlink.astra.files import Network

    values: dict[str, Sequence[Any]] = {RANKS: (None,), **{name: (getattr(arguments, name),) for name in SWEPT}}
    for what, swept in arguments.sweep:
        if values[what] != (None,):
            raise UsageError(f"{what} is given twice", todo="name all its values in one --sweep")
        values[what] = swept
    networks = [Network(*one) for one in product(*(values[name] for name in SWEPT))]
    return networks, () if values[RANKS] == (None,) else values[RANKS]


def text(found: Simulated, *, swept: bool, verbose: bool = False) -> Lines:
    """Return the report for people: how it went and how long it took, the times beside each other, why they differ."""
    body = _sweep(found) if swept else _one(found, found.runs[0], verbose=verbose)
    failed = [line for run in found.runs if not run.ok for line in _failure(run, swept=swept)]
    failed += [f"it ran, though {line}" for run in found.runs if run.ok for line in run.failed]
    return [*body, *failed, *(f"warning: {one}" for one in found.warnings)]


def _one(found: Simulated, run: SimulatorRun, *, verbose: bool) -> Lines:
    from graphlink.astra.simulate import last_ns, text_of_network

    by = f"{found.folder} in {Path(found.simulator).name} ({found.reader})"
    network = f"  network: {text_of_network(run.network)}"
    if run.total_ns is None:
        return [f"{by}: the simulation failed", network]
    longest = _longest(found)
    last = last_ns(found.ranks)
    nodes = (
        "nodes not counted: more than the log keeps" if run.executed is None else f"all {run.executed:,} nodes executed"
    )
    pairs = list(zip(found.ranks, run.ranks, strict=True))
    shown = pairs if verbose else sorted(pairs, key=lambda pair: -(pair[1].simulated_ns or 0))[:MOST_RANKS]
    more = len(pairs) - len(shown)
    rows = [
        _row(f"{a.rank}", (a.recorded_ns, a.replayed_ns, b.simulated_ns))
        for a, b in sorted(shown, key=lambda pair: pair[0].rank)
    ]
    head = ("recorded ms", "replayed ms", "simulated ms", "to recorded", "to replayed")
    by_rank: Lines = []
    if verbose:
        works = [(f"{pair[0].rank}", *row) for pair in pairs for row in _works([pair])]
        by_rank = ["", "the same by rank", Table(works, ("rank", "work", *head), "<<>>>>>")]
    return [
        f"{by}: {ms(run.total_ns)} ms{_than(run.total_ns, longest, 'recorded')}{_than(run.total_ns, last, 'replayed')}",
        f"  {counted(run.finished, 'rank')} finished, {nodes}",
        network,
        "",
        "time of each rank",
        Table(rows, ("rank", *head), "<>>>>>"),
        *([f"  ... and {more:,} ranks that end earlier: -v shows all"] if more else []),
        "",
        "time by kind of work, of all nodes added up (communication: with waiting for other ranks)",
        Table(_works(pairs), ("work", *head), "<>>>>>"),
        *by_rank,
        "",
        *_why(found, run, last),
    ]


def _longest(found: Simulated) -> int | None:
    """Return the recorded time of the rank that took longest; None where nothing was recorded."""
    return max((rank.recorded_ns for rank in found.ranks if rank.recorded_ns is not None), default=None)


def _than(ns: int, other_ns: int | None, what: str) -> str:
    return "" if other_ns is None else f", {what} {ms(other_ns)} ms ({_pct(ns, other_ns)})"


def _pct(ns: int | None, of_ns: int | None) -> str:
    return _NONE if ns is None or not of_ns else f"{100 * (ns / of_ns - 1):+.1f} %".replace("-0.0 %", "+0.0 %")


def _ms(ns: int | None) -> str:
    return _NONE if ns is None else ms(ns)


def _row(name: str, times: tuple[int | None, int | None, int | None]) -> tuple[str, ...]:
    recorded, replayed, simulated = times
    return name, *map(_ms, times), _pct(simulated, recorded), _pct(simulated, replayed)


def _works(pairs: Sequence[tuple[RankTimes, SimulatedRank]]) -> list[tuple[str, ...]]:
    """Return the rows of kinds of work of some ranks, added up."""
    from graphlink.astra.simulate import WORDS

    parts = [
        _added([recorded.recorded_work_ns for recorded, _ in pairs]),
        _added([recorded.replayed_work_ns for recorded, _ in pairs]),
        _added([simulated.work_ns for _, simulated in pairs]),
    ]
    times = {word: [None if part is None else part[word] for part in parts] for word in WORDS}
    return [_row(word, (a, b, c)) for word, (a, b, c) in times.items() if a or b or c]


def _added(works: Sequence[Mapping[str, int] | None]) -> dict[str, int] | None:
    known = [one for one in works if one is not None]
    if len(known) < len(works) or not known:
        return None
    return {word: sum(one[word] for one in known) for word in known[0]}


def _why(found: Simulated, run: SimulatorRun, last: int | None) -> list[str]:
    """Explain why recorded, replayed and simulated time differ, with what shows it."""
    lines = ["why they differ"]
    if last is None:
        return [*lines, "  The replay does not finish: graphlink replay DIR --machine ranks says where."]
    slots = (
        f"nodes waited {ms(found.slot_wait_ns)} ms for a slot, added up"
        if found.slot_wait_ns
        else "no node waited for a slot"
    )
    made = all(one.recorded_work_ns is None for one in found.ranks)
    recorded, replayed, simulated = (
        0 if one is None else one["communication"]
        for one in (
            _added([one.recorded_work_ns for one in found.ranks]),
            _added([one.replayed_work_ns for one in found.ranks]),
            _added([one.work_ns for one in run.ranks]),
        )
    )
    if made:
        lines.append(f"  Replayed: {slots}. Nothing was recorded of these graphs: they were made.")
    else:
        took = f"communication takes {ms(replayed)} ms instead of {ms(recorded)} ms, with waiting"
        lines.append(
            "  Replayed and recorded: ASTRA-sim runs one CPU node, one GPU computation and one communication at a time "
            "on a rank, "
            f"and begins all ranks at once. In the replay {slots}, and {took}."
        )
    if not simulated and not replayed:
        lines.append("  Simulated and replayed: nothing communicates, or the node log does not tell how long it took.")
    else:
        lines.append(
            "  Simulated and replayed: the slots are the same, but communication takes what the network model says, "
            "not what is in "
            f"the graphs: {ms(simulated)} ms instead of {ms(replayed)} ms, with waiting."
        )
    return lines


def _failure(run: SimulatorRun, *, swept: bool) -> list[str]:
    from graphlink.astra.simulate import text_of_network

    where = f" on {text_of_network(run.network)}" if swept else ""
    reasons = [f"  graphlink check: {one}" for one in run.reasons] or ["  graphlink check finds nothing that stops it"]
    said = [f"  its last line: {run.said}"] if run.said else []
    return ["", f"failed{where}: {'; '.join(run.failed)}", *reasons, *said]


def _sweep(found: Simulated) -> Lines:
    longest = _longest(found)
    by_ranks = any(run.replayed_ns is not None for run in found.runs)
    rows = []
    for run in found.runs:
        communication = _added([rank.work_ns for rank in run.ranks])
        topology, bandwidth, latency = _of_network(run)
        cells = {
            "ranks": f"{len(run.ranks):,}",
            "topology": topology,
            "GB/s": bandwidth,
            "ns a step": latency,
            "simulated ms": _ms(run.total_ns),
            "to the first": _pct(run.total_ns, found.runs[0].total_ns),
            "to recorded": _pct(run.total_ns, longest),
            "replayed ms": _ms(run.replayed_ns),
            "communication ms": _ms(None if communication is None else communication["communication"]),
            "": "ok" if run.ok else "failed",
        }
        rows.append({head: cell for head, cell in cells.items() if by_ranks or head not in ("ranks", "replayed ms")})
    best = min((run for run in found.runs if run.total_ns is not None), key=lambda run: run.total_ns or 0, default=None)
    answer = "no simulation went well"
    if best is not None:
        answer = f"quickest {_ms(best.total_ns)} ms, {', '.join(_of_network(best))}"
    went = f"{sum(run.ok for run in found.runs)} of {counted(len(found.runs), 'simulation')} went well"
    left = (
        [f"  {found.left_out:,} more combinations were not run: at most {len(found.runs)} are"]
        if found.left_out
        else []
    )
    made = (
        ["  other numbers of ranks than recorded: graphs as graphlink scale makes them, data parallel"]
        if by_ranks
        else []
    )
    return [
        f"{found.folder} in {Path(found.simulator).name} ({found.reader}): {answer}; {went}",
        *([] if longest is None else [f"  recorded {ms(longest)} ms, the longest rank"]),
        *made,
        Table(
            [tuple(row.values()) for row in rows],
            tuple(rows[0]),
            "".join("<" if head in ("topology", "") else ">" for head in rows[0]),
            spare=("communication ms", "to recorded"),
        ),
        *left,
    ]


def _of_network(run: SimulatorRun) -> tuple[str, str, str]:
    """Return topology, GB/s (1e9 bytes) and ns a step of a network, of its dimensions joined."""
    topology, bandwidth, latency = zip(
        *((d.topology, f"{d.bytes_per_s / 1e9:.4g}", f"{d.step_ns:g}") for d in run.network), strict=True
    )
    return " x ".join(topology), " x ".join(bandwidth), " x ".join(latency)


def picture(found: Simulated) -> Heat:
    """Return the chart of a sweep: a row for each number of ranks, topology and latency, a column for each bandwidth;
    what failed is empty."""
    from graphlink.page.parts import Heat

    by_ranks = any(run.replayed_ns is not None for run in found.runs)
    places = {}
    for run in found.runs:
        topology, bandwidth, latency = _of_network(run)
        many = f"{counted(len(run.ranks), 'rank')}, " if by_ranks else ""
        places[f"{many}{topology}, {latency} ns", bandwidth] = run
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    values: list[list[int | float | None]] = [
        [places[row, column].total_ns if (row, column) in places else None for column in columns] for row in rows
    ]
    title = f"Time in ASTRA-sim ({found.reader})" + ("" if by_ranks else f", {counted(len(found.ranks), 'rank')}")
    return Heat("simulate", title, f"{title}, by network: darker is longer.", rows, columns, "GB/s", values)
