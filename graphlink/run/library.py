"""graphlink as a library: a run is linked or opened, and asked for its graphs, paths, what-ifs and tables."""

from __future__ import annotations

import contextlib
import functools
import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from graphlink import output_names
from graphlink.choices import MACHINES
from graphlink.engine.engines import RunsOn
from graphlink.engine.files import is_url
from graphlink.errors import UsageError, bad_value
from graphlink.graph import path_file as path
from graphlink.graph.et_nodes import Forms
from graphlink.graph.read_et import read_et
from graphlink.graph_model import Graph
from graphlink.publish import settle
from graphlink.records import first_few, html_table
from graphlink.replay.across import across as across_all
from graphlink.replay.changes import Changes, changes_of, graphs_of
from graphlink.replay.changes_file import load_changes
from graphlink.replay.folder import load, load_groups
from graphlink.replay.records import Report
from graphlink.replay.report import Known, kept, report
from graphlink.report import summary
from graphlink.run import tables
from graphlink.run.link import linked
from graphlink.run.options import Options, Recordings
from graphlink.wings import RowTable, provided

if TYPE_CHECKING:
    import pandas as pd

    from graphlink.advice.records import AdviceReport
    from graphlink.diff.records import DiffReport
    from graphlink.page.parts import Page

_KEPT: Final = 4  # graphs that stay in memory
_SHOWN: Final = 16  # ranks of a table for a notebook

logging.getLogger("graphlink").addHandler(logging.NullHandler())  # a library does not print


def open(folder: str | Path) -> Run:
    """Open an output folder of graphlink.

    Raises:
        InputError: it holds no ``summary.json`` of this version of graphlink.
        OutputError: files of a run that was killed while it published cannot be put back.
        UsageError: it is behind a URL.
    """
    if is_url(str(folder)):
        raise UsageError("is read from folders of this machine only", path=folder, todo="copy it here first")
    settle(Path(folder))
    return Run(Path(folder))


def link(
    *recordings: str | Path | Recordings,
    options: Options | None = None,
    out: str | Path | None = None,
    force: bool = False,
    resume: bool = False,
    partial: bool = False,
    runs_on: RunsOn | None = None,
) -> Run:
    """Link the recordings of a run, as ``graphlink link`` does, and open what was written.

    Args:
        recordings: Folders, files, or patterns of them, recognised by content and paired by rank; or one
            ``Recordings``, which names each kind.
        options: What shapes graphs and files.
        out: The output folder; without one a temporary folder, which goes when the run object does.
        force: Replace the files that the summary of an earlier run in ``out`` lists, and no others.
        resume: Go on with what an earlier run that failed or was killed left in ``out``.
        partial: Publish the ranks that did not fail.
        runs_on: How many ranks at a time, and on which engine.

    Raises:
        InputError: a recording cannot be read, or belongs to another run or rank than its name says.
        SomeRanksFailed: some ranks of several failed, and ``partial`` is not set.
        OutputError: ``out`` holds outputs and ``force`` is not set, or cannot be written.
        UsageError: what is named does not go together.
    """
    if out is not None and is_url(str(out)):
        raise UsageError(
            "what is written behind a URL cannot be opened",
            path=out,
            todo="use the command graphlink, or a folder of this machine",
        )
    if len(recordings) == 1 and isinstance(recordings[0], Recordings):
        named = recordings[0]
    elif any(isinstance(one, Recordings) for one in recordings):
        raise UsageError("a Recordings stands alone: it names all files", todo="give one Recordings, or names only")
    else:
        named = Recordings(folders=tuple(map(str, recordings)))
    folder = Path(tempfile.mkdtemp(prefix="graphlink-") if out is None else out)
    with contextlib.ExitStack() as left:
        if out is None:
            left.callback(shutil.rmtree, folder, ignore_errors=True)
        with linked(
            named, options or Options(), runs_on or RunsOn(), str(folder), force=force, resume=resume, partial=partial
        ):
            pass
        run = Run(folder)
        left.pop_all()
    if out is None:
        weakref.finalize(run, shutil.rmtree, folder, ignore_errors=True)
    return run


class Run:
    """Answer questions about a linked run from the files in its folder.

    Tables are pandas data frames, new ones at every call: of ``rank``, or without it of all ranks one after the other;
    their first column is ``rank``. Units are in the names of columns; times are int64 ns since the first node of the
    rank, where nothing else is stated.

    Attributes:
        folder: Where the files are.
        summary: ``summary.json``: counts, provenance, replay error, warnings.
        ranks: The ranks that have a graph, ascending.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary: summary.Summary = summary.load(folder / output_names.SUMMARY)
        self.ranks: tuple[int, ...] = tuple(sorted(one.rank for one in self.summary.ranks))
        self._read = functools.lru_cache(maxsize=_KEPT)(functools.partial(read_et, forms=Forms()))
        self._path_file = functools.lru_cache(maxsize=1)(path.load)
        self._before = kept(_KEPT)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)[-200:]!r}, {len(self.ranks):,} rank{'s' * (len(self.ranks) != 1)})"

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{one.rank}",
                f"{one.graph_nodes:,}",
                f"{sum(one.edges.values()):,}",
                f"{one.device.ops:,}",
                f"{one.replay.measured_ns / 1e6:,.3f}",
                f"{one.replay.error_pct:+.3f}",
                f"{one.critical_path.length_ns / 1e6:,.3f}",
            )
            for one in self.summary.ranks[:_SHOWN]
        ]
        head = ("rank", "nodes", "edges", "device ops", "recorded ms", "replay error %", "critical path ms")
        more = f", the first {_SHOWN}" if len(self.ranks) > _SHOWN else ""
        return html_table(f"{self!r}{more}", head, rows)

    def graph(self, rank: int | None = None) -> Graph:
        """Return the graph of a rank (of the only one without ``rank``): numpy columns with one entry per node,
        dependencies as CSR.

        Raises:
            InputError: its file cannot be read.
            UsageError: there is no such rank, or there are several and none is named.
        """
        if rank is None and len(self.ranks) != 1:
            raise bad_value("rank", rank, self._allowed())
        return self._read(self._graph_files(rank)[self._chosen(rank)[0]])

    def nodes(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row per node: id, name, work, type, thread or stream, and its times in ns."""
        return self._of_graphs(rank, tables.nodes)

    def edges(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row per dependency: the ids ``source`` and ``target``, and its ``kind``."""
        return self._of_graphs(rank, tables.edges)

    def ops(self, rank: int | None = None, *, by_path: bool = False) -> pd.DataFrame:
        """Return one row per host op (and part of one): times in ns, its caller and how many device ops it launches.

        ``by_path``: the same as ``operations``.
        """
        return self.operations(rank) if by_path else self._of_graphs(rank, tables.ops)

    def operations(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row per operation, as ``graphlink ops`` prints them (docs/operations.md): all calls from one path,
        forward and backward together, most device time first.
        """
        return self._table("operations", rank)

    def kernels(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row per device op (kernel, communication, copy): device, stream, times in ns, and the op that
        launched it.
        """
        return self._of_graphs(rank, tables.kernels)

    def syncs(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row a ``sync`` edge: the device op that was waited for, the host node behind the wait, and the
        call.
        """
        return self._of_graphs(rank, tables.syncs)

    def collectives(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row per collective, send or receive: bytes, group, times in ns, and the bandwidth of its group and
        type in bytes/s.
        """
        groups = load_groups(self.folder)
        return self._of_graphs(rank, lambda file: tables.collectives(file, groups, self.summary))

    def waits(self) -> pd.DataFrame:
        """Return one row per rank: how long it waited in communication until the last rank came, in ns, what transfers
        took, and how often it came last itself. No row where ranks were not linked together.
        """
        return tables.waits(self.summary)

    def idle(self, rank: int | None = None) -> pd.DataFrame:
        """Return one row per interval in which a GPU was idle, as ``graphlink idle`` shows: cause, evidence, and the op
        that ended it.

        Times are in ns, on the GPU's own clock (docs/idle.md).
        """
        return self._table("idle", rank)

    def gpu(self, rank: int | None = None, *, by_step: bool = False) -> pd.DataFrame:
        """Return one row per GPU of a rank, or with ``by_step`` one in each step: computation, communication and copies
        that nothing hides, and idle time in ns; they add up to ``to_ns`` - ``from_ns`` (docs/idle.md).

        Raises:
            UsageError: there is no such rank.
        """
        chosen = set(self._chosen(rank))
        ranks = [one for one in self.summary.ranks if one.rank in chosen]
        return tables.frame(provided("answers", "gpu")(ranks, by_step=by_step))

    def bubbles(self) -> pd.DataFrame:
        """Return one row per idle interval of a pipeline, on the run's clock in ns, with its cause; no row where no
        pipeline was found.
        """
        return self._table("bubbles")

    def ranges(self) -> pd.DataFrame:
        """Return one row per range of a pipeline: a phase (``F``, ``B``, ``I``, ``W``, ``OPT``) of a microbatch on a
        stage.

        Times are in ns on the run's clock; ``busy_ns`` is how long work ran in it. No row where no pipeline was found.
        """
        return self._table("ranges")

    def critical_path(self, rank: int | None = None, *, across: bool = False) -> pd.DataFrame:
        """Return one row per node of the critical path of each rank, first node first: its share, what delayed it, what
        it costs in ns.

        ``across``: the one path over all ranks, which waited for each other; ``rank`` is that of each node then.

        Raises:
            UsageError: there is no such rank, or ``rank`` and ``across`` are both given.
        """
        if across:
            if rank is not None:
                raise UsageError("across=True is over all ranks: leave rank out")
            return tables.critical_across(across_all(load(self._graph_files(None)), load_groups(self.folder)))
        return tables.of_ranks({one: tables.critical_path(self._path(one)) for one in self._chosen(rank)})

    def gains(self, rank: int | None = None, *, of: str = "families") -> pd.DataFrame:
        """Return how much earlier a rank would end if a thing took no time, in ns, largest first: each recomputed,
        never to be added up.

        ``of``: ``families`` (all nodes of one name), ``ops``, ``sync_points`` (as if the call did not wait) or
        ``shares``.

        Raises:
            UsageError: there is no such rank or sort.
        """
        return tables.of_ranks({one: tables.gains(self._path(one), of) for one in self._chosen(rank)})

    def replay(
        self,
        *,
        scale: str | Sequence[str] = (),
        remove_sync: str | int | Sequence[str | int] = (),
        gb_per_s: float | None = None,
        launch_us: float | None = None,
        cuda_graph: str | Sequence[str] = (),
        what_if: str | Path | Mapping[str, Any] | None = None,
        machine: str | None = None,
        rank: int | None = None,
        runs: Sequence[str | Path] = (),
    ) -> Report:
        """Replay the graphs, and with changes once more, as ``graphlink replay`` does (docs/replay.md).

        ``runs[i].ranks[j].replayed_ns`` is what the replay took, ``what_if[i].gain_pct`` what the changes gain in per
        cent.

        Args:
            scale: ``SORT[:REGEX]=FACTOR``, one or several: other durations, as ``"kernel:gemm=0.5"``. SORT is kernel,
                comm, copy, host, gap or delay; ``REGEX=FACTOR`` is of each sort.
            remove_sync: Waits of the host to take away, one or several: ``"all"``, ids of nodes, names of ops or of
                calls.
            gb_per_s: Communication at this bandwidth, in 1e9 bytes a second.
            launch_us: Every launch takes this many us more.
            cuda_graph: ``"auto"``, each step or its parts between waits as CUDA graphs; or regular expressions, the ops
                and ranges of these names.
            what_if: A file of changes (docs/replay.md), or its tables, as ``{"dataloader": [{"workers": 4}]}``; the
                others add to them.
            machine: ``ideal``, ``astra-sim``, ``ranks`` or ``coupled``; without one, ``coupled`` for several ranks, and
                ``ideal`` for one and where several would wait for each other for ever.
            rank: Only this rank.
            runs: Output folders of more runs of the same program: the band knows how much runs differ.

        Raises:
            InputError: a graph cannot be read.
            UsageError: a change names nothing, a value is out of range, there is no such machine or rank.
        """
        files = self._graph_files(rank)
        for name, value, fits, allowed in (
            ("machine", machine, machine in (None, *MACHINES), f"one of {', '.join(MACHINES)}"),
            ("gb_per_s", gb_per_s, gb_per_s is None or 0 < gb_per_s < 1e9, "a bandwidth in GB/s above 0"),
            ("launch_us", launch_us, launch_us is None or -1e9 < launch_us < 1e9, "a time in us"),
        ):
            if not fits:
                raise bad_value(name, value, allowed)
        given = Changes() if what_if is None else load_changes(Path(what_if) if isinstance(what_if, str) else what_if)
        given = given.joined(changes_of(_several(scale), _several(remove_sync), gb_per_s, launch_us))
        changes = given.joined(graphs_of(_several(cuda_graph)))
        others = {str(run): summary.ranks_of(Path(run)) for run in runs}
        known = Known.of(self.folder, files, changes, self.summary.ranks, others)
        return report(files, machine, known, changes, before=self._before)

    def _of_graphs(self, rank: int | None, table: Callable[[Graph], pd.DataFrame]) -> pd.DataFrame:
        return tables.of_ranks({one: table(self._read(file)) for one, file in self._graph_files(rank).items()})

    def _graph_files(self, rank: int | None) -> dict[int, Path]:
        return {one: self.folder / output_names.graph(self.summary.options.name, one) for one in self._chosen(rank)}

    def advice(self, rank: int | None = None) -> AdviceReport:
        """Return what would make the run end earlier, the largest gain first, each with its evidence and the command
        behind the gain.

        Gains, in ns and per cent, are of one change alone, and are not to be added up (docs/advice.md).

        Raises:
            InputError: a file of the run cannot be read.
            UsageError: there is no such rank.
        """
        return cast("AdviceReport", provided("answers", "advice")(self, self._graph_files(rank)))

    def diff(self, after: Run, *, anyway: bool = False) -> DiffReport:
        """Return how a run that came ``after`` this one differs from it, as ``graphlink diff`` prints it
        (docs/diff.md).

        ``verdict`` says whether that one is better, ``changes`` what was changed, causes first; times are in ns a step.

        Raises:
            InputError: the runs do not compare and ``anyway`` is not set, or a file of one cannot be read.
        """
        return cast("DiffReport", provided("answers", "diff")(self.folder, after.folder, anyway=anyway))

    def page(self) -> Page:
        """Return the content of the page that ``report`` returns: sections of sentences, tables and charts, with times
        in ns.

        Raises:
            InputError: a file of the run cannot be read.
        """
        return cast("Page", provided("answers", "page")(self.folder, self.summary))

    def report(self) -> str:
        """Return the run as a page for the browser: the text of one HTML file that loads nothing (docs/report.md). Its
        times have three digits; the ns stand in attributes.

        Raises:
            InputError: a file of the run cannot be read.
        """
        return str(provided("answers", "report")(self.page()))

    def _table(self, name: str, rank: int | None = None) -> pd.DataFrame:
        made: RowTable = provided("tables", name)
        if made.of_run:
            return tables.of_rows(made, made.rows(self.folder, 0))
        found = {number: made.rows(self.folder, number) for number in self._chosen(rank)}
        return tables.of_ranks({number: tables.of_rows(made, rows) for number, rows in found.items()})

    def _path(self, rank: int) -> path.PathFile:
        return self._path_file(self.folder / output_names.critical_path(rank))

    def _chosen(self, rank: int | None) -> tuple[int, ...]:
        if (rank is None and not self.ranks) or (rank is not None and rank not in self.ranks):
            raise bad_value("rank", rank, self._allowed())
        return self.ranks if rank is None else (rank,)

    def _allowed(self) -> str:
        some = first_few(self.ranks, 8)
        return (
            f"one of {some}"
            if self.ranks
            else "a rank that has a graph, and none has: logs of Paddle hold bubbles only"
        )


def _several(given: str | int | Sequence[str | int]) -> tuple[str, ...]:
    return (str(given),) if isinstance(given, str) or not hasattr(given, "__iter__") else tuple(map(str, given))
