"""The wings: features that are a folder and a line each. The core loops over them and names none.

``WINGS`` is the one place that knows which there are. The folder of a wing has a module ``wing`` whose ``Hooks`` say
what the wing adds, by overriding the hooks of ``Wing``; it imports the rest of its folder inside them. So nothing of a
wing is loaded before it is used, and a wing whose line and folder are gone is gone, and all else runs.
docs/architecture.md shows what each hook is asked for, and when.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from graphlink.choices import Option, VerbOptions
    from graphlink.depend.build import Built
    from graphlink.doctor.records import Finding
    from graphlink.graph_model import Column, Graph
    from graphlink.model import I32, Linked, ProcessGroup
    from graphlink.page.found import Reading
    from graphlink.perfetto.packets import Rows
    from graphlink.records import Table
    from graphlink.run.discover.pairing import Discovered
    from graphlink.run.options import Inputs, Options, Recordings
    from graphlink.run.records import Aligned, GraphedRank, Joined, PreparedRank, RankWork, RunResult

RecordT = TypeVar("RecordT")


class Parts(UserDict[str, Any]):
    """What wings made, by their names; a wing that has nothing has no entry. No ``dict``, so that msgspec asks
    ``run.codec`` how it is written.
    """

    def asked(self, hook: str, *given: Any) -> Parts:
        """Return what a hook of each wing makes of its part, and of what is given."""
        made = ((name, getattr(wing(name), hook)(part, *given)) for name, part in self.items())
        return Parts({name: part for name, part in made if part is not None})


class Made(NamedTuple):
    """What a wing made of its input, None where there is nothing for it, and what the user should know."""

    part: Any = None
    warnings: tuple[str, ...] = ()


class Field(NamedTuple):
    """A field that a wing adds to a record of ``summary.json``, behind its field ``after``."""

    after: str
    name: str
    type: Any
    default: Any = ...  # it is always there


class RowTable(NamedTuple):
    """A table of a run that is made of records: their type, the names of its figures, and the records of a rank, or,
    where it is ``of_run``, of the whole run.
    """

    record: type
    figures: tuple[str, ...]
    rows: Callable[[Path, int], Sequence[Any]]
    of_run: bool = False


class Shown(NamedTuple):
    """What a verb has to say: ``data`` for ``--json``, and the same in ``lines``."""

    data: Any
    lines: list[str | Table]


class SideFile(Protocol):
    """The head of a file that lies beside recordings."""

    @property
    def path(self) -> Path: ...


class Verb(NamedTuple):
    """``graphlink NAME TAKES``. ``place``: among all verbs; ``does``: a line of help; ``function``: ``module:name``
    below ``graphlink`` of what runs it and returns the exit status, beside which ``NAME_OPTIONS`` are its options.

    ``urls``: what it is given may lie on other file systems. ``tells``: the schemas of what its ``--json`` prints, of a
    verb that changes nothing where no option names a file: agents may ask it.
    """

    place: int
    name: str
    takes: str
    does: str
    function: str
    urls: bool = False
    tells: tuple[str, ...] = ()

    @property
    def options(self) -> VerbOptions:
        """Return the options of the verb."""
        module, _, name = self.function.partition(":")
        return cast("VerbOptions", imported(f"{module}:{name.upper()}_OPTIONS"))

    def run(self, arguments: Namespace) -> int:
        """Run the verb and return the exit status."""
        return cast("int", imported(self.function)(arguments))


class RankPart(NamedTuple):
    """What a wing adds to a rank whose graph is written: fields of its record, names of files, rows of the timeline."""

    fields: Mapping[str, Any] = {}
    files: tuple[str, ...] = ()
    rows: tuple[Rows, ...] = ()
    warnings: tuple[str, ...] = ()


class Blocks(NamedTuple):
    """Blocks of the printed summary, ahead of that of all ranks and behind it."""

    ahead: Sequence[str | Table] = ()
    behind: Sequence[str | Table] = ()


class Telling(NamedTuple):
    """Ranks that are told in detail, and why each: before the others, and behind them."""

    first: Mapping[int, str] = {}
    last: Mapping[int, str] = {}


class Columns(NamedTuple):
    """Columns of nodes that a wing adds, in front of the time that communication waited, and ``behind`` it."""

    front: Mapping[str, Column] = {}
    behind: Mapping[str, Column] = {}


class Wing:
    """What a feature adds to the core: each hook adds nothing unless it is overridden; None is nothing, too.

    What is declared by ``module:name``, below the folder of the wing, is imported when it is asked for.
    """

    verbs: Sequence[Verb] = ()  # of the command line
    input_options: Sequence[Option] = ()  # of the main job, that name inputs, each as its field of ``Recordings``
    graph_options: Sequence[Option] = ()  # and that shape the graph, each as its field of ``Options``
    stored: Sequence[str] = ()  # the types of parts that are kept between jobs
    tables: Mapping[str, str] = {}  # by name, each a ``RowTable``, as the library and ``graphlink export`` have them
    answers: Mapping[str, str] = {}  # what answers ``node_operations`` and methods of the library's ``Run``, by names
    schemas: Mapping[str, str] = {}  # the types of what this wing writes, by the names of their schemas
    fields: Mapping[str, str] = {}  # each ``Field``s that are added to a record of ``summary.json``, by its name
    sections: Mapping[int, str] = {}  # what makes ``Section | None`` of ``Found``, by its place on the page
    parts_of: Mapping[str, str] = {}  # what makes ``Part``s of ``Found``, by the section of the core that has them
    lead: Mapping[str, str] = {}  # what makes ``Words`` for the top of the page of ``Found``, by what they are about

    # what is asked for
    def check(self, options: Options) -> None:
        """Check the options that this wing reads.

        Raises:
            UsageError: a value is none.
        """

    # files that are found
    def may_be_side_file(self, name: str) -> bool:
        """Tell whether a file of that name in a folder is looked into as one that lies beside recordings."""
        return False

    def is_named_as_side_file(self, path: Path) -> bool:
        """Tell whether a file is named as one that lies beside recordings, so that it is strange if it is none."""
        return False

    def side_file(self, path: Path) -> SideFile | None:
        """Read the head of a file that lies beside recordings; None for another one.

        Raises:
            InputError: it cannot be read.
        """

    def paired(self, found: Discovered, named: Sequence[Path]) -> Discovered:
        """Return what was found with the side files of each rank: those among it and those that are ``named``."""
        return found

    def is_log(self, path: Path) -> bool:
        """Tell whether a file is named as a log that holds no recording of a rank."""
        return False

    # a rank, in the order that runs
    def beside(self, inputs: Inputs) -> Made:
        """Read what lies beside the recording of a rank."""
        return Made()

    def groups(self, part: Any, linked: Linked, inputs: Inputs) -> Sequence[ProcessGroup]:
        """Return process groups that ``part``, what ``beside`` read, knows and the recording may not."""
        return ()

    def group_names(self, part: Any, linked: Linked) -> Mapping[int, str] | None:
        """Return of host rows the name of their process group that ``part`` knows and the recording may not."""

    def of_graph(self, rank: GraphedRank) -> Made:
        """Make the part of a rank that has its graph."""
        return Made()

    def to_join(self, part: Any) -> Any:
        """Return what joining the ranks reads of the part that ``of_graph`` made."""

    def over_ranks(self, parts: Mapping[int, Any], aligned: Aligned | None) -> Any:
        """Make the part of a run of what ``to_join`` gave, None for a rank that has nothing. ``aligned``: None of a
        rank that stands alone.
        """

    def of_rank(self, part: Any, rank: int) -> Any:
        """Return what the files of ``rank`` are written with of the part of its run."""

    def columns(self, graph: Graph, prepared: PreparedRank, joined: Joined) -> Columns:
        """Return the columns of the nodes of ``graph``, which is about to be written."""
        return Columns()

    def gaining(self, graph: Graph, linked: Linked) -> Grouped | None:
        """Put nodes into groups, for each of which it is computed what it would gain if they took no time."""

    def finish(self, work: RankWork) -> RankPart:
        """Write the files of a rank, and return its other parts."""
        return RankPart()

    # the run
    def recorded(self, recordings: Recordings) -> Any:
        """Read what is of the run and of no rank, before the work begins."""

    def instead(self, recordings: Recordings, options: Options) -> Any:
        """Return the part of a run whose recordings are none of ranks; None where they are."""

    def repeats(self, recordings: Recordings, summary: Any) -> bool:
        """Tell whether ``summary`` may be that of an earlier run of the same recordings."""
        return True

    def files_of(self, rank: Any) -> Iterable[str] | None:
        """Return the names of the files beside the recording that a rank of a summary was made of."""

    def of_graphs(self, found: Sequence[Path], own: Mapping[int, Path]) -> Made:
        """Make fields of ``Run`` from graphs of others that lay among the recordings. ``own``: those of each rank."""
        return Made()

    def write(self, part: Any, folder: Path) -> tuple[str, ...] | None:
        """Write the files of the part of a run, and return their names."""

    def tracks(self, out: BinaryIO, part: Any) -> bool:
        """Write the rows of the timeline that stand before those of ranks; tell whether there are any."""
        return False

    def of_records(self, ranks: Sequence[Any]) -> Mapping[str, Any] | None:
        """Return the fields of ``Run`` in ``summary.json``, from the records of its ranks."""

    def kept(self, ranks: Sequence[Any]) -> Sequence[Any]:
        """Return the records of ranks as ``summary.json`` keeps them: of many, what a page shows of some alone goes."""
        return ranks

    def of_run(self, result: RunResult, recorded: Any) -> Mapping[str, Any] | None:
        """Return the fields of ``Summary``. ``recorded``: what the hook of that name read."""

    # what graphlink doctor says of recordings
    def lacks(self, rank: GraphedRank, built: Built) -> Iterable[Finding] | None:
        """Report what the recording of a rank lacks."""

    def run_lacks(self, part: Any, ranks: int) -> Iterable[Finding] | None:
        """Report what the ranks of a run lack together; ``part``: what ``over_ranks`` made of so many."""

    def file_lacks(self, path: Path, *, found: bool, alone: bool) -> Iterable[Finding] | None:
        """Report what a side file lacks, ``found`` in a folder or named, and ``alone``: without a recording.

        Raises:
            InputError: it is named and cannot be read.
        """

    # what a finished run is asked
    def shown(self, folder: Path, name: str) -> Shown | None:
        """Return what ``graphlink show`` has to say of a folder that this wing made, and the user calls ``name``."""

    # the page of a run
    def page_part(self, reading: Reading) -> Any:
        """Read what the sections of this wing show."""

    def worth_telling(self, ranks: Sequence[Any]) -> Telling:
        """Choose ranks of many that are told in detail, and say why."""
        return Telling()

    def about(self, summary: Any) -> str | None:
        """Return what a run without graphs was made of, in words."""

    # the command line
    def refuse(self, arguments: Namespace) -> None:
        """Refuse options of the main job that contradict each other.

        Raises:
            UsageError: some do.
        """

    def next_steps(self, summary: Any) -> Iterable[tuple[int, str, str]] | None:
        """Return what to run next on a run, after ``graphlink``: its place among what others return, verb and options,
        and what it tells.

        ``{}`` stands for the folder.
        """

    # what summary.json holds, and what is printed of it
    def rank_lines(self, rank: Any) -> Iterable[tuple[str, tuple[str, str]]] | None:
        """Return lines of the block of a rank, name and text, each with the name of the line that it stands before."""

    def trust(self, rank: Any) -> str | None:
        """Return what says how far the graph of a rank is to be trusted."""

    def ranked(self, ranks: Sequence[Any]) -> Sequence[Any] | None:
        """Return the ranks of a run in the order in which they are listed."""

    def rank_cells(self, rank: Any) -> Mapping[str, str] | None:
        """Return cells of the line of a rank in that list, by column."""

    def remarks(self, ranks: Sequence[Any]) -> Sequence[str] | None:
        """Return lines behind that list."""

    def run_lines(self, run: Any) -> Iterable[tuple[str, str]] | None:
        """Return lines of the block of all ranks, name and text."""

    def first(self, summary: Any, folder: str) -> Sequence[str | Table] | None:
        """Return the first lines on a run: its main fact, and what to do about it. ``folder``: where its files lie, ""
        where they are not asked.
        """

    def blocks(self, summary: Any) -> Blocks:
        """Return blocks of the run, ahead of that of all ranks and behind it."""
        return Blocks()


class Grouped(NamedTuple):
    """The group of each node, ``NOWHERE`` for none, and what its wing wants to find again in ``RankWork.grouped``."""

    of_node: I32
    found: Any


WINGS: Final = (  # in the order that runs: what one makes of a rank may be read by those behind it, where it is there
    "operations",
    "standstill",
    "gpu",
    "nccl",
    "pipeline",
    "logs",
    "astra",
    "scale",
    "advice",
    "diff",
    "page",
    "doctor",
    "mcp",
)


@cache
def wing(folder: str) -> Wing:
    """Return the hooks of a wing, which is loaded for it."""
    return cast("Wing", import_module(f"graphlink.{folder}.wing").Hooks())


def each() -> Iterator[tuple[str, Wing]]:
    """Yield name and hooks of each wing, in the order that runs."""
    for folder in WINGS:
        yield folder, wing(folder)


def with_fields(core: type[RecordT]) -> type[RecordT]:
    """Return a record of ``summary.json`` with the fields that wings add to it, each in its place."""
    import msgspec  # not above: the help of the command needs none

    added = [field for record, text in declarations("fields") if record == core.__name__ for field in imported(text)]
    fields: list[Any] = []
    for own in msgspec.structs.fields(core):  # type: ignore[arg-type]
        rest = msgspec.field(default=own.default, default_factory=own.default_factory)  # type: ignore[call-overload]
        fields.append((own.name, own.type, rest))
        for field in (field for field in added if field.after == own.name):
            always = field.default is ...
            fields.append((field.name, field.type) if always else (field.name, field.type, field.default))
    made = msgspec.defstruct(
        core.__name__, fields, bases=core.__bases__, module=core.__module__, frozen=True, kw_only=True
    )
    made.__doc__ = core.__doc__
    return cast("type[RecordT]", made)


def over_ranks(rows: Mapping[int, Parts], aligned: Aligned | None = None) -> Parts:
    """Make the parts of a run from what joining reads of its ranks."""
    made = ((name, hooks.over_ranks({rank: rows[rank].get(name) for rank in rows}, aligned)) for name, hooks in each())
    return Parts({name: part for name, part in made if part is not None})


def node_operations(folder: Path, ranks: Iterable[int]) -> Mapping[int, Any] | None:
    """Return of each rank which operation each node is part of, by which what-ifs choose; None where nothing tells."""
    answer = dict(declarations("answers")).get("node_operations")
    return None if answer is None else imported(answer)(folder, ranks)


def imported(text: str) -> Any:
    """Return what ``text``, ``module:name``, names below ``graphlink``."""
    module, _, name = text.partition(":")
    return getattr(import_module(f"graphlink.{module}"), name)


def declarations(hook: str) -> Iterator[tuple[Any, str]]:
    """Yield what wings declare under ``hook``, such as ``tables``: the key, and what ``imported`` imports."""
    for folder, hooks in each():
        yield from ((key, f"{folder}.{text}") for key, text in getattr(hooks, hook).items())


def provided(hook: str, name: str) -> Any:
    """Return what a wing provides under ``name``: one of its ``tables`` or ``answers``.

    Raises:
        UsageError: none does.
    """
    by_name = dict(declarations(hook))
    if name in by_name:
        return imported(by_name[name])
    from graphlink.errors import UsageError

    raise UsageError(f"{name}: no part of this installation makes it")


def side_file(path: Path) -> SideFile | None:
    """Read the head of a file that lies beside recordings; None for another one.

    Raises:
        InputError: it cannot be read.
    """
    return next((head for _, hooks in each() if (head := hooks.side_file(path)) is not None), None)


def all_of(hook: str, *given: Any, **named: Any) -> Iterator[Any]:
    """Yield what the hook of each wing returns, one after the other; None is nothing."""
    for _, hooks in each():
        yield from getattr(hooks, hook)(*given, **named) or ()


def any_of(hook: str, value: Any) -> bool:
    """Tell whether a wing says yes to ``value``."""
    return any(getattr(hooks, hook)(value) for _, hooks in each())


def stored_type(folder: str, name: str) -> Any:
    """Return the type of that name whose records a wing keeps between jobs.

    Raises:
        ValueError: it keeps none, or there is no such wing.
    """
    for text in wing(folder).stored if folder in WINGS else ():
        if text.partition(":")[2] == name:
            return imported(f"{folder}.{text}")
    raise ValueError(f"no {name} of {folder} is kept")
