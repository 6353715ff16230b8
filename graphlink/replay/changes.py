"""The changes of a what-if, as a file of ``--what-if`` has them and as the options of the command line make them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec

from graphlink import choices
from graphlink.choices import MOST_GB_PER_S, MOST_US, Sort
from graphlink.errors import UsageError
from graphlink.linking.step_cut import Steps, parse_steps
from graphlink.patterns import UserPattern
from graphlink.replay.workload import Work

MOST_FACTOR: Final = 1_000_000
LEAST_MB: Final = 1e-3
MOST_WORKERS: Final = 4096
PREFETCH: Final = 2  # batches that each worker is asked for in advance, PyTorch's default
ALL: Final = "all"
PATH: Final = "path"  # before a pattern of ``--scale`` instead of a sort: that is found in the path
SORTS: Final[dict[str, Work]] = {name: Work[name.upper()] for name in choices.SORTS}
SORT_OF: Final[dict[Work, Sort]] = {SORTS[name]: name for name in choices.SORTS}
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Ident: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Many: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)]
ACTIONS: Final = ("scale", "add_us", "most_us", "remove", "like", "even_out", "launch_us")  # of a change of times
_OF_FILES: Final = ("step", "thread", "stream", "path", "line", "nth", "every")  # what no option says
_OF_RANK: Final = re.compile(r"rank(\d{1,9}):(?=.)")


class Selector(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes for which all of this is true; what is None is true of all.

    ``step``: a number, a range as ``3-5`` or several, by the marks of steps. ``thread``: OS thread ids of host nodes,
    and of the host nodes that launched. ``path``: found in the callers, outermost first, with ``/`` between. ``line``:
    found in the ``file(line): function`` of the Python frames. Of a wait, ``stream`` and ``sort`` are those of the
    device op that is awaited, all else is of the host node that waits. ``nth``: as ``step``, but from 1, by their turn
    among the ones of their name that all else chooses in a step; ``every``: turns begin anew after so many, and
    without ``nth`` the last of them is chosen.
    """

    rank: Count | tuple[Count, ...] | None = None
    step: Count | str | None = None
    thread: Ident | tuple[Ident, ...] | None = None
    stream: Ident | tuple[Ident, ...] | None = None
    sort: Sort | None = None
    name: UserPattern | None = None
    path: UserPattern | None = None
    line: UserPattern | None = None
    nth: Many | str | None = None
    every: Many | None = None

    def __post_init__(self) -> None:
        for name, numbers in (("step", self.step), ("nth", self.nth)):
            if numbers is not None and _range(numbers) is None:
                raise ValueError(
                    f"{name} {numbers!r} is neither a number (3) nor a range (2-5), nor several of them (1,3-5)"
                )
        for part in () if self.nth is None else self.turns or ():
            if part.first < 1:
                raise ValueError(f"nth {self.nth!r}: turns count from 1")
            if self.every is not None and part.first > self.every:
                raise ValueError(f"nth {self.nth!r}: with every {self.every} there is no turn {part.first}")

    @property
    def steps(self) -> list[Steps] | None:
        """Return the steps that are chosen; None for all."""
        return _range(self.step)

    @property
    def turns(self) -> list[Steps] | None:
        """Return the turns in a step that are chosen, from 1; None for all."""
        return _range(self.every if self.nth is None else self.nth)

    @property
    def anything(self) -> bool:
        """Tell whether it says anything, so that not all is chosen."""
        return any(getattr(self, name) is not None for name in Selector.__struct_fields__)

    def part(self, *names: str) -> Selector:
        """Return what it says by the fields ``names`` alone."""
        return Selector(**{name: getattr(self, name) for name in names})

    @property
    def what(self) -> str:
        """Return ``kernel:<regex>``, ``kernel`` for all, ``<regex>`` for each sort; before it ``rank3:``, after it all
        else.
        """
        ranks, head = self.rank, [self.sort, None if self.name is None else self.name.pattern]
        if isinstance(ranks, int):
            ranks, head = None, [f"rank{ranks}", *head]
        numbers = {"step": self.step, "thread": self.thread, "stream": self.stream, "rank": ranks}
        numbers |= {"nth": self.nth, "every": self.every}
        words = [
            f"{key} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"
            for key, value in numbers.items()
            if value is not None
        ]
        patterns = {"path": self.path, "line": self.line}
        words += [f"{key} {value.pattern!r}" for key, value in patterns.items() if value is not None]
        subject = ":".join(part for part in head if part is not None)
        return " of ".join(filter(None, (subject, ", ".join(words))))

    @property
    def of_option(self) -> bool:
        """Tell whether ``--scale`` can say it."""
        return not self.part(*_OF_FILES).anything and not isinstance(self.rank, tuple)


class TimeChange(Selector, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other times of nodes, by one of: ``scale``, a factor; ``add_us``, more or less for each, not below 0;
    ``most_us``: no more than that; ``remove``: no time, and no wait in it; ``like``: the times of the run in that
    folder, on the same rank or for all ranks on ``like_rank``; ``even_out``: those of the same ops on the other ranks,
    or without ``rank`` in the quicker ones of the steps; ``launch_us``: more or less for each launch call that it
    makes.
    """

    scale: float | None = None
    add_us: float | None = None
    most_us: float | None = None
    remove: bool = False
    like: str | None = None
    like_rank: Count | None = None
    even_out: bool = False
    launch_us: float | None = None

    def __post_init__(self) -> None:
        Selector.__post_init__(self)
        _refuse_but_one(self, ACTIONS)
        if self.scale is not None and not 0 <= self.scale <= MOST_FACTOR:
            raise ValueError(f"scale {self.scale} is no factor from 0 to {MOST_FACTOR:,}")
        for name in ("add_us", "launch_us", "most_us"):
            us = getattr(self, name)
            if us is not None and not (0 if name == "most_us" else -MOST_US) <= us < MOST_US:
                raise ValueError(f"{name} {us} is no time in us")
        if not self.anything and self.kind in ("scale", "add_us", "most_us", "remove"):
            raise ValueError("names nothing to change: give one of " + ", ".join(Selector.__struct_fields__))
        if self.like is None and self.like_rank is not None:
            raise ValueError("like_rank wants like, the folder of the run that has this rank")
        if self.even_out and self.rank is None and self.step is None:
            raise ValueError("even_out wants the rank that is to be as the others, or the steps that are to be equal")

    @property
    def kind(self) -> str:
        """Return its entry in the table of assumptions."""
        return next(name for name in ACTIONS if _is_given(getattr(self, name)))

    @property
    def done(self) -> str:
        """Return what it does, in a few words."""
        what = self.what or ALL
        if self.launch_us is not None:
            return f"launches {self.launch_us:+g} us each" + (f" of {what}" if self.anything else "")
        acts = {"scale": f"x {self.scale or 0:g}", "add_us": f"{self.add_us or 0:+g} us each"}
        acts |= {"most_us": f"at most {self.most_us or 0:g} us each", "remove": "removed"}
        acts |= {"like": f"like {'' if self.like_rank is None else f'rank {self.like_rank} of '}{self.like}"}
        acts |= {"even_out": "as in the quicker steps" if self.rank is None else "as on the other ranks"}
        return f"{what} {acts[self.kind]}"

    @property
    def title(self) -> str:
        """Return how the command line, or else a file, asks for it."""
        if self.scale is not None and self.of_option:
            return f"--scale {self.what}={self.scale:g}"
        if self.path is not None and self.scale is not None and self.what == self.part("path").what:
            return f"--scale {PATH}:{self.path.pattern}={self.scale:g}"
        if self.launch_us is not None and not self.anything:
            return f"--launch-cost {self.launch_us:g}"
        return f"[[time]] {self.done}"


class WaitChange(Selector, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Waits of host threads ``remove``d, or moved to a later place of their thread: ``move_to_end_of_step``, or
    ``move_before`` the next op in whose name that is found.

    ``which``: ``all``, the id of an awaited or a waiting node, the exact name of the op that waits or of the call.
    """

    which: str | Count = ALL
    remove: bool = False
    move_to_end_of_step: bool = False
    move_before: UserPattern | None = None

    def __post_init__(self) -> None:
        Selector.__post_init__(self)
        _refuse_but_one(self, ("remove", "move_to_end_of_step", "move_before"))

    @property
    def kind(self) -> str:
        """Return its entry in the table of assumptions."""
        return "remove_wait" if self.remove else "move_wait"

    @property
    def done(self) -> str:
        """Return what it does, in a few words."""
        which = f"sync {self.which}" + (f" of {self.what}" if self.anything else "")
        if self.remove:
            return f"without {which}"
        where = "to the end of its step" if self.move_before is None else f"to before {self.move_before.pattern}"
        return f"{which} moved {where}"

    @property
    def title(self) -> str:
        """Return how the command line, or else a file, asks for it."""
        return f"--remove-sync {self.which}" if self.remove and not self.anything else f"[[wait]] {self.done}"


class NetworkChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Communication at another bandwidth: it takes what its bytes take on the wire, and ``latency_us`` for each step of
    a ring; without a latency no less than the quickest recorded. ``group``: of one alone, its id in ``comm_group.json``
    or, as a text, its recorded name.
    """

    kind: ClassVar[str] = "network"

    group: Count | str | None = None
    bandwidth_gb_per_s: float
    latency_us: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth_gb_per_s < MOST_GB_PER_S:
            raise ValueError(f"bandwidth_gb_per_s {self.bandwidth_gb_per_s} is no bandwidth in GB/s")
        if self.latency_us is not None and not 0 <= self.latency_us < MOST_US:
            raise ValueError(f"latency_us {self.latency_us} is no time in us")

    @property
    def done(self) -> str:
        """Return what it does, in a few words."""
        latency = "" if self.latency_us is None else f", latency {self.latency_us:g} us a step"
        return f"bandwidth {self.bandwidth_gb_per_s:g} GB/s{latency}{_in_group(self.group)}"

    @property
    def title(self) -> str:
        """Return how the command line, or else a file, asks for it."""
        plain = self.group is None and self.latency_us is None
        return f"--bandwidth {self.bandwidth_gb_per_s:g}" if plain else f"[[network]] {self.done}"


class GraphChange(Selector, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each op or range that is chosen as one launch of a CUDA graph, which takes ``launch_us``; from one of its device
    ops to the next the device takes ``gap_us`` (None = as the recording shows it). ``auto``: each step, or what of it
    lies between things that no graph can hold.
    """

    kind: ClassVar[str] = "cuda_graph"

    launch_us: float | None = None
    gap_us: float | None = None
    auto: bool = False

    def __post_init__(self) -> None:
        Selector.__post_init__(self)
        if self.auto == self.part("name", "path", "line").anything:
            raise ValueError("wants name, path or line, of the ops or ranges that become graphs, or auto")
        for name in ("launch_us", "gap_us"):
            us = getattr(self, name)
            if us is not None and not 0 <= us < MOST_US:
                raise ValueError(f"{name} {us} is no time in us")

    @property
    def done(self) -> str:
        """Return what it does, in a few words."""
        subject = "steps, or their parts between waits," if self.auto else self.what
        return f"{subject} as CUDA graphs"

    @property
    def title(self) -> str:
        """Return how the command line, or else a file, asks for it."""
        named = self.of_option and self.sort is None and self.rank is None
        plain = named and self.launch_us is None and self.gap_us is None
        asked = "auto" if self.auto else self.what
        return f"--cuda-graph {asked}" if plain else f"[[cuda_graph]] {self.done}"


class BucketChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The all-reduces or reduce-scatters of gradients of a step joined or divided to ``size_mb`` each (of 2**20 bytes),
    or every ``join`` of them joined; of one ``group``, as in ``NetworkChange``, or of all that have several in a step.
    ``bandwidth_gb_per_s``: of their bytes on the wire, None = as the recording shows it.
    """

    kind: ClassVar[str] = "buckets"

    size_mb: float | None = None
    join: Annotated[int, msgspec.Meta(ge=2, le=MOST_FACTOR)] | None = None
    group: Count | str | None = None
    bandwidth_gb_per_s: float | None = None

    def __post_init__(self) -> None:
        _refuse_but_one(self, ("size_mb", "join"))
        if self.size_mb is not None and not LEAST_MB <= self.size_mb <= MOST_FACTOR:
            raise ValueError(f"size_mb {self.size_mb} is no size from {LEAST_MB:g} to {MOST_FACTOR:,} MB")
        if self.bandwidth_gb_per_s is not None and not 0 < self.bandwidth_gb_per_s < MOST_GB_PER_S:
            raise ValueError(f"bandwidth_gb_per_s {self.bandwidth_gb_per_s} is no bandwidth in GB/s")

    @property
    def done(self) -> str:
        """Return what it does, in a few words."""
        buckets = f"every {self.join} buckets joined" if self.size_mb is None else f"buckets of {self.size_mb:g} MB"
        return buckets + _in_group(self.group)

    @property
    def title(self) -> str:
        """Return how the command line, or else a file, asks for it."""
        plain = self.size_mb is not None and self.group is None
        return f"--buckets {self.size_mb:g}" if plain else f"[[buckets]] {self.done}"


class LoaderChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The batches of each DataLoader made by ``workers``, each asked for ``prefetch`` in advance, on a machine with
    ``cores`` (None = enough for all). ``recorded``: the number of workers in the recording, None where the main thread
    makes batches itself.
    """

    kind: ClassVar[str] = "dataloader"

    workers: Many
    recorded: Many | None = None
    cores: Many | None = None
    prefetch: Many = PREFETCH

    @property
    def at_once(self) -> int:
        """Return how many batches are made at one time: a worker each, on the cores that the main thread leaves."""
        return self.workers if self.cores is None else max(1, min(self.workers, self.cores - 1))

    @property
    def ahead(self) -> int:
        """Return how many batches are asked for and not taken, at most."""
        return self.workers * self.prefetch

    @property
    def done(self) -> str:
        """Return what it does, in a few words."""
        cores = "" if self.cores is None else f" on {self.cores} core{'s' * (self.cores != 1)}"
        return f"DataLoader with {self.workers} worker{'s' * (self.workers != 1)}{cores}"

    @property
    def title(self) -> str:
        """Return how the command line, or else a file, asks for it."""
        return f"--dataloader-workers {'' if self.recorded is None else f'{self.recorded}:'}{self.workers}"


AnyChange: TypeAlias = NetworkChange | TimeChange | WaitChange | GraphChange | BucketChange | LoaderChange


class Changes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The changes that are requested, by the tables of a file. They are made in the order of ``each``."""

    time: tuple[TimeChange, ...] = ()
    wait: tuple[WaitChange, ...] = ()
    network: tuple[NetworkChange, ...] = ()
    cuda_graph: tuple[GraphChange, ...] = ()
    buckets: tuple[BucketChange, ...] = ()
    dataloader: tuple[LoaderChange, ...] = ()

    @property
    def any(self) -> bool:
        """Tell whether anything is changed."""
        return bool(self.each())

    @property
    def of_operations(self) -> bool:
        """Tell whether a change chooses paths or lines, or names lines that are in its way, for which the operations of
        nodes are wanted."""
        return bool(self.cuda_graph) or any(change.part("path", "line").anything for change in (*self.time, *self.wait))

    def each(self) -> list[AnyChange]:
        """Return every change, in the order in which they are made, those of one table in their order."""
        return [*self.network, *self.time, *self.wait, *self.cuda_graph, *self.buckets, *self.dataloader]

    def joined(self, more: Changes) -> Changes:
        """Return these changes and ``more`` behind them."""
        return Changes(*(getattr(self, name) + getattr(more, name) for name in self.__struct_fields__))


def _refuse_but_one(change: msgspec.Struct, actions: Sequence[str]) -> None:
    """Refuse a change that says several things that are to be done, or none. Raises ValueError."""
    given = [name for name in actions if _is_given(getattr(change, name))]
    if len(given) != 1:
        raise ValueError(f"wants one of {', '.join(actions)}" + (f", and has {', '.join(given)}" if given else ""))


def _range(numbers: int | str | None) -> list[Steps] | None:
    """Return the numbers of ``3``, ``2-5`` or ``1,3-5``; None for all, and for what is none of these."""
    try:
        parts = [] if numbers is None else [parse_steps(part.strip()) for part in str(numbers).split(",")]
    except UsageError:
        return None
    return [part for part in parts if part is not None] or None


def _is_given(value: Any) -> bool:
    return value is not None and value is not False


def _in_group(group: int | str | None) -> str:
    return "" if group is None else f" in group {group}"


def changes_of(
    scale: Sequence[str] = (),
    remove_sync: Sequence[str] = (),
    bandwidth_gb_per_s: float | None = None,
    launch_us: float | None = None,
) -> Changes:
    """Return the changes that options ask for.

    Raises:
        UsageError: one is no ``SORT:REGEX=FACTOR``.
    """
    times = (*map(parse_scale, scale), *([] if launch_us is None else [TimeChange(launch_us=launch_us)]))
    waits = tuple(WaitChange(which=which, remove=True) for which in remove_sync)
    network = () if bandwidth_gb_per_s is None else (NetworkChange(bandwidth_gb_per_s=bandwidth_gb_per_s),)
    return Changes(times, waits, network)


def graphs_of(names: Sequence[str]) -> Changes:
    """Return the changes that ``--cuda-graph`` asks for: ``auto``, or regular expressions. Raises UsageError."""
    auto, named = GraphChange(auto=True), [UserPattern(name, "--cuda-graph") for name in names if name != "auto"]
    return Changes(cuda_graph=(*([auto] if "auto" in names else []), *(GraphChange(name=name) for name in named)))


def parse_scale(text: str) -> TimeChange:
    """Parse ``kernel:<regex>=0.5``, ``kernel=0.5`` or ``<regex>=0.5``, which is of each sort, as is
    ``path:<regex>=0.5``; before it ``rank3:`` is of one rank.

    Raises:
        UsageError: no sort and no pattern, or no factor.
    """
    what, equals, number = text.rpartition("=")
    rank, of_rank = None, _OF_RANK.match(what)
    if of_rank is not None:
        rank, what = int(of_rank[1]), what[of_rank.end() :]
    sort, colon, pattern = what.partition(":")
    todo = "write SORT=FACTOR, SORT:REGEX=FACTOR or REGEX=FACTOR, of one rank rankN:..., SORT being one of "
    todo += ", ".join((*SORTS, PATH))
    if not equals:
        raise UsageError(f"--scale {text!r}: has no =FACTOR", todo=todo)
    if not what:
        raise UsageError(f"--scale {text!r}: names nothing to scale", todo=todo)
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= MOST_FACTOR:
        raise UsageError(f"--scale {text!r}: {number!r} is no factor from 0 to {MOST_FACTOR:,}", todo=todo)
    if sort == PATH and colon:
        return TimeChange(path=UserPattern(pattern, f"--scale {PATH}:"), scale=factor, rank=rank)
    if sort not in SORTS:
        return TimeChange(name=UserPattern(what, "--scale"), scale=factor, rank=rank)
    named = UserPattern(pattern, f"--scale {sort}:") if colon else None
    return TimeChange(sort=SORT_OF[SORTS[sort]], name=named, scale=factor, rank=rank)
