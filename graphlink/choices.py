"""What declares the options of a verb, and the values that options may have, in commands, in the library and in files.
Every command loads this, so it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from argparse import ArgumentParser, _ArgumentGroup

    _Parser = ArgumentParser | _ArgumentGroup

ASTRA_SIM: Final = "astra-sim"  # a target, and a machine
CHAKRA: Final = "chakra"
FOLDED: Final = "launches"  # of ``--host``, and of the graph's ``host`` attribute
CHOICES: Final[dict[str, tuple[str, ...]]] = {  # of options that have one of these values; without a value the first
    "sync": ("both", "hta", "cuda"),
    "target": (ASTRA_SIM, CHAKRA),
    "host": ("full", FOLDED),
    "timeline": ("recorded", "both", "none"),
    "comm_time": ("recorded", "transfer"),
    "engine": ("pool", "ray"),
}
LATENCY_NS: Final = 20_000  # a launch, a call or the start of an op that takes longer waited for something
HTA_LIMIT: Final = 2_000_000  # events of a window
FORMATS: Final = ("parquet", "arrow", "csv")
IDEAL: Final = "ideal"
RANKS: Final = "ranks"
COUPLED: Final = "coupled"
MACHINES: Final = (IDEAL, ASTRA_SIM, RANKS, COUPLED)
JOINED: Final = (RANKS, COUPLED)  # replay all ranks at once
Sort = Literal["host", "gap", "kernel", "comm", "copy", "delay"]  # of nodes, as ``replay.workload.Work`` names them
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
MOST_GB_PER_S: Final = 1e9
MOST_US: Final = 1e9


class Option:
    """An argument or option of the command line, with what ``argparse.add_argument`` is told of it."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names, self.settings = names, settings

    def add_to(self, parser: _Parser) -> None:
        """Add it to a parser, or to a group of one."""
        parser.add_argument(*self.names, **self.settings)


class Either(NamedTuple):
    """Options of which one at most is given."""

    options: Sequence[Option]

    def add_to(self, parser: _Parser) -> None:
        """Add them to a parser, or to a group of one."""
        group = parser.add_mutually_exclusive_group()
        for option in self.options:
            option.add_to(group)


class VerbOptions(NamedTuple):
    """The arguments and options of a verb but ``--json``. ``groups``: those below a heading in its help; ``epilog``:
    how that ends.
    """

    own: Sequence[Option | Either] = ()
    groups: Mapping[str, Sequence[Option | Either]] = {}
    epilog: str | None = None

    def add_to(self, parser: ArgumentParser) -> None:
        """Add them to the parser of the verb."""
        parser.epilog = self.epilog or parser.epilog
        for heading, options in {"": self.own, **self.groups}.items():
            part = parser.add_argument_group(heading) if heading else parser
            for option in options:
                option.add_to(part)
