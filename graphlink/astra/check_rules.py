"""The behaviour of ASTRA-sim on a graph, rule by rule: one place for the command, its output and docs/check.md.

``head``: ASTRA-sim's present reader, ``feeder_v3``; ``legacy``: Chakra's ``src/feeder``, which mlcommons ships. "" = no
harm there. Determined by running hand-made graphs through both, unless the text says (read): then from their source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from graphlink.version import __version__

ERROR, WARNING = "error", "warning"


Groups = dict[int, tuple[int, ...]]  # of the groups file, by id: members as listed


@dataclass(frozen=True, slots=True)
class Rule:
    """``key`` names it, ``what`` is found, ``head`` and ``legacy`` say what happens then. An ``error`` breaks a run or
    its times.
    """

    key: str
    grade: str
    what: str
    head: str
    legacy: str

    @property
    def on_legacy(self) -> str:
        """Return the effect on the legacy reader; "" = no harm."""
        return self.head if self.legacy == _SAME else self.legacy


_SAME: Final = "the same"
_NO_MATTER: Final = ""
_NETWORK: Final = " (network mode)"
_THROWS: Final = "abort at tick 0, later hang"

_FRAMING: Final = (
    Rule(
        "no-metadata",
        ERROR,
        "file does not begin with a GlobalMetadata message",
        "skipped: the first node is swallowed; what waits for it aborts",
        "hang: the first node is swallowed",
    ),
    Rule(
        "no-version",
        WARNING,
        "GlobalMetadata has no version",
        _NO_MATTER,
        "none, but Chakra's Python reader sees an empty file (read)",
    ),
    Rule("broken", ERROR, "message has no proper length, or is no Node", "abort, hang, or nodes of garbage", _SAME),
    Rule(
        "cut-off",
        ERROR,
        "last message is cut off",
        "wrong: accepted, the message before it runs once more",
        "skipped: stops reading there, or reads half a node",
    ),
    Rule(
        "empty-message",
        ERROR,
        "message of length 0",
        "an extra node 0 of type INVALID; the rank's statistics are lost",
        _NO_MATTER,
    ),
    Rule("compressed", ERROR, "file is compressed", "abort: cannot read it", "reads gzip, not zstd (read)"),
    Rule("no-nodes", ERROR, "rank without nodes", "abort: throws at load", "finishes at 0"),
    Rule(
        "file-name",
        ERROR,
        "file is not named PREFIX.RANK.et, or RANK begins with 0",
        "exit 1: the file is not found",
        _SAME,
    ),
    Rule(
        "other-rank",
        WARNING,
        "file name and GlobalMetadata name different ranks",
        "runs as the rank of the file name",
        _SAME,
    ),
    Rule(
        "parents-late",
        WARNING,
        "node stands before one that it depends on",
        "slow: each node rescans those that wait (read)",
        _NO_MATTER,
    ),
)

_DEPENDENCIES: Final = (
    Rule(
        "dangling-data",
        ERROR,
        "data_deps names an id that no node has",
        "abort: throws at load",
        "hang: the node is never released",
    ),
    Rule("dangling-ctrl", ERROR, "ctrl_deps names an id that no node has", "abort: throws at load", _NO_MATTER),
    Rule(
        "duplicate-id",
        ERROR,
        "two nodes have one id",
        "skipped: the later one wins, with the dependencies of both",
        "hang",
    ),
    Rule("duplicate-data", ERROR, "data_deps names a node twice", _NO_MATTER, "hang: the node is never released"),
    Rule(
        "self-data",
        ERROR,
        "node depends on itself in data_deps",
        "skipped, the rank counts as finished: time too short",
        "hang",
    ),
    Rule(
        "self-ctrl",
        ERROR,
        "node depends on itself in ctrl_deps",
        "skipped, the rank counts as finished: time too short",
        _NO_MATTER,
    ),
    Rule("no-start", ERROR, "no node is free of dependencies", 'abort: "No dependancy free nodes found"', "hang"),
    Rule(
        "cycle",
        ERROR,
        "data_deps run in a circle",
        "skipped with all that follows, the rank counts as finished: time too short",
        "hang",
    ),
    Rule(
        "cycle-mixed",
        ERROR,
        "data_deps and ctrl_deps together run in a circle",
        "skipped with all that follows, the rank counts as finished: time too short",
        "runs: ctrl_deps are not honoured",
    ),
    Rule(
        "ctrl-alone", ERROR, "ctrl_deps that data_deps do not imply", "waits for it", "wrong time: does not wait for it"
    ),
    Rule(
        "ctrl-undecided",
        WARNING,
        "ctrl_deps too far apart to say whether data_deps imply them",
        "waits for it",
        "may not wait for it",
    ),
)

_NODES: Final = (
    Rule("metadata-node", ERROR, "METADATA_NODE", "abort, in every mode", "hang" + _NETWORK),
    Rule(
        "memory-node",
        ERROR,
        "MEM_LOAD_NODE or MEM_STORE_NODE",
        _THROWS + " with NO_MEMORY_EXPANSION" + _NETWORK,
        "exit 1 with NO_MEMORY_EXPANSION" + _NETWORK,
    ),
    Rule(
        "invalid-node",
        ERROR,
        "INVALID_NODE",
        "hang, unless it is the last node" + _NETWORK,
        "skipped with what follows, the rank counts as finished" + _NETWORK,
    ),
    Rule("unknown-type", ERROR, "node type that Chakra does not have", "abort", "hang" + _NETWORK),
    Rule(
        "comm-on-cpu",
        ERROR,
        "communication with is_cpu_op true",
        _THROWS + _NETWORK,
        "wrong: runs as computation" + _NETWORK,
    ),
    Rule(
        "cpu-statistics",
        WARNING,
        "CPU nodes",
        "the statistics at a rank's end throw: their lines are missing, times are right",
        _NO_MATTER,
    ),
    Rule(
        "last-node",
        ERROR,
        "rank with CPU nodes that ends in a SEND or RECV",
        "abort of all ranks" + _NETWORK,
        _NO_MATTER,
    ),
    Rule(
        "maybe-last",
        WARNING,
        "rank with CPU nodes that may end in a SEND or RECV",
        "abort of all ranks if it ends last",
        _NO_MATTER,
    ),
    Rule(
        "long-duration",
        ERROR,
        "duration_micros above 2^46",
        "hang, abort, or no time at all, as the ns wrap; in network mode not of communication",
        _SAME,
    ),
    Rule(
        "late-communication",
        ERROR,
        "communication that begins 2^45 us after the start or later",
        "hang" + _NETWORK,
        _SAME,
    ),
    Rule(
        "beyond-double",
        WARNING,
        "rank with communication that goes on for more than 2^53 ns (104 days)",
        "hang where something ends at a ns that a double does not hold: its end is lost" + _NETWORK,
        _SAME,
    ),
    Rule(
        "no-duration",
        WARNING,
        "duration_micros 0",
        "takes 1 ns",
        "takes 1 ns; a COMP without num_ops is skipped, what follows is not",
    ),
    Rule("wide-fan", WARNING, "thousands of nodes ready at once", "slow: 4 k take 3 s, 20 k more than 5 min", _SAME),
    Rule(
        "start-order",
        WARNING,
        "id order is not that of recorded starts",
        "other order: among ready nodes the lowest id goes first",
        _SAME,
    ),
)

_ATTRIBUTES: Final = (
    Rule("cpu-kind", ERROR, "is_cpu_op of a kind that cannot be converted", _THROWS, "wrong: reads false"),
    Rule(
        "kind-throws",
        ERROR,
        "attribute of communication of a kind that cannot be converted",
        _THROWS + _NETWORK,
        "wrong: reads 0; comm_src, comm_dst: abort" + _NETWORK,
    ),
    Rule(
        "kind-zero",
        ERROR,
        "attribute of another integer kind",
        "converts it",
        "wrong: reads 0 (is_cpu_op: GPU, comm_size: 0 bytes); comm_src, comm_dst: abort" + _NETWORK,
    ),
    Rule(
        "attribute-twice",
        ERROR,
        "attribute twice on a node, with two values",
        "wrong: reads the first (read)",
        "wrong: reads the last (read)",
    ),
    Rule("no-comm-type", ERROR, "collective without comm_type", _THROWS + _NETWORK, "wrong: 0 (ALL_REDUCE) or garbage"),
    Rule("no-comm-size", ERROR, "communication without comm_size", _THROWS + _NETWORK, "wrong: 0 bytes"),
    Rule(
        "no-peer",
        ERROR,
        "SEND without comm_dst or RECV without comm_src",
        _THROWS + _NETWORK,
        "abort: throws" + _NETWORK,
    ),
    Rule("no-tag", ERROR, "SEND or RECV without comm_tag", _THROWS + _NETWORK, "tag 0"),
    Rule(
        "foreign-end",
        ERROR,
        "comm_src of a SEND, or comm_dst of a RECV, is another rank",
        _THROWS + _NETWORK,
        _NO_MATTER,
    ),
    Rule("involved-dim", ERROR, "involved_dim is no bool_list", "exit 1" + _NETWORK, _SAME),
    Rule(
        "no-dimension",
        ERROR,
        "involved_dim is all false, and no pg_name",
        "hang" + _NETWORK,
        "hang, unless there is a groups file" + _NETWORK,
    ),
)

_COLLECTIVES: Final = (
    Rule("unsupported", ERROR, "collective that the network model lacks", _THROWS + _NETWORK, "hang" + _NETWORK),
    Rule("broadcast", WARNING, "BROADCAST", "lasts its duration_micros, ranks are not coupled" + _NETWORK, _SAME),
    Rule("empty-gather", ERROR, "ALL_GATHER of size 0", "hang" + _NETWORK, _SAME),
    Rule(
        "tiny-gather",
        ERROR,
        "ALL_GATHER of less than 4 bytes a rank",
        "endless loop, growing memory, if it is less than preferred-dataset-splits" + _NETWORK,
        _SAME,
    ),
    Rule(
        "small-gather",
        WARNING,
        "ALL_GATHER of less than 64 bytes a rank",
        "endless loop if preferred-dataset-splits is larger",
        _SAME,
    ),
    Rule("size-zero", WARNING, "collective of size 0", "takes its steps" + _NETWORK, _SAME),
    Rule("negative-size", ERROR, "comm_size below 0", "hang" + _NETWORK, _SAME),
    Rule("group-of-one", ERROR, "collective in a group of one", "hang" + _NETWORK, _SAME),
    Rule("group-text", ERROR, "pg_name is no number", _THROWS + _NETWORK, "ignores it"),
    Rule(
        "group-prefix",
        ERROR,
        "pg_name begins with a number and goes on",
        "wrong group: the number alone is read",
        "ignores it",
    ),
    Rule("group-huge", ERROR, "pg_name above 2^31 - 1", "abort" + _NETWORK, "ignores it"),
    Rule("group-zero", WARNING, 'pg_name "0" or empty', "all ranks", "ignores it"),
    Rule("group-unknown", ERROR, "pg_name that the groups file lacks", "exit 1" + _NETWORK, "ignores it"),
    Rule("no-groups", ERROR, "collective names a group and there is no groups file", "exit 1" + _NETWORK, "ignores it"),
    Rule(
        "outside-group",
        ERROR,
        "rank is not in the group of its collective",
        "abort" + _NETWORK,
        "takes another group, or hang" + _NETWORK,
    ),
    Rule(
        "groups-path",
        ERROR,
        'path of the groups file contains "empty"',
        "the file is ignored: exit 1 at the first group" + _NETWORK,
        "the file is ignored",
    ),
    Rule(
        "groups-file",
        ERROR,
        "groups file cannot be used",
        "abort if it is no JSON or a group no list, else exit 1 at the first group",
        "abort if it is no JSON, else no harm",
    ),
    Rule("groups-key", ERROR, "key in the groups file is no number above 0", "abort", _NO_MATTER),
    Rule(
        "groups-high", WARNING, "key in the groups file above 499", "ids are meant to stay within 1..499 (read)", _SAME
    ),
    Rule(
        "group-beyond",
        ERROR,
        "group of a collective names a rank that the run does not have",
        "abort or hang" + _NETWORK,
        _SAME,
    ),
    Rule("group-twice", ERROR, "group of a collective lists a rank twice", "hang" + _NETWORK, _SAME),
    Rule(
        "unchained",
        WARNING,
        "collectives of one group that data_deps do not order",
        "hang if the ranks start them in different orders: the lower id goes first only where both are ready",
        _SAME,
    ),
    Rule(
        "legacy-ids",
        WARNING,
        "ids of collectives below their number over all ranks",
        _NO_MATTER,
        "abort (a segfault, too) or hang, if the id is the number of the rank's next, which begins as it ends"
        + _NETWORK,
    ),
    Rule(
        "legacy-group",
        WARNING,
        "rank uses several groups",
        _NO_MATTER,
        "wrong time: takes one group that holds the rank for all; may hang",
    ),
)

_MESSAGES: Final = (
    Rule("to-itself", ERROR, "SEND or RECV with the own rank at both ends", "abort: asserts" + _NETWORK, _SAME),
    Rule("no-such-rank", ERROR, "peer is no rank of the run", "abort: asserts" + _NETWORK, _SAME),
    Rule("negative-tag", ERROR, "comm_tag below 0", "abort: asserts" + _NETWORK, _SAME),
    Rule("empty-send", ERROR, "SEND of size 0", "abort: asserts" + _NETWORK, _SAME),
    Rule(
        "no-send",
        ERROR,
        "RECV without SEND of its tag, source, size and count",
        "hang of the receiver, exit status 0" + _NETWORK,
        _SAME,
    ),
    Rule(
        "no-recv",
        WARNING,
        "SEND without RECV of its tag, target, size and count",
        "goes unnoticed: ends after the transfer",
        _SAME,
    ),
)

_RANKS: Final = (
    Rule("missing-rank", ERROR, "rank file is missing", "exit 1", _SAME),
    Rule("alone", WARNING, "single rank", "cannot run: the network needs two; add a trivial second rank", _SAME),
    Rule(
        "fewer-ranks",
        WARNING,
        "GlobalMetadata names more ranks than there are files",
        "runs only with a file for each rank",
        _SAME,
    ),
    Rule(
        "order-differs",
        ERROR,
        "ranks of a group run other collectives or other sizes at one place",
        "hang of both sides, exit status 0" + _NETWORK,
        _SAME,
    ),
    Rule(
        "rank-circle",
        ERROR,
        "communication waits in a circle over ranks, or behind one",
        "hang of all ranks in it whatever the timing, exit status 0" + _NETWORK,
        "hang, unless the circle needs ctrl_deps or several groups of a rank" + _NETWORK,
    ),
    Rule(
        "misses-one",
        ERROR,
        "ranks of a group run different numbers of collectives",
        "hang of the others, exit status 0" + _NETWORK,
        _SAME,
    ),
    Rule(
        "slot-deadlock",
        ERROR,
        "ranks start collectives of several groups in orders that contradict each other",
        "hang whatever the timing: there is one communication slot a rank, exit status 0" + _NETWORK,
        "hang, or takes another group" + _NETWORK,
    ),
    Rule(
        "slot-order",
        WARNING,
        "by ids or recorded times, ranks start collectives of several groups in orders that contradict each other, or "
        "SENDs behind collectives where communication is quick",
        "hang if they start so: there is one communication slot a rank" + _NETWORK,
        "hang, or takes another group" + _NETWORK,
    ),
)

SECTIONS: Final = {
    "Framing and files": _FRAMING,
    "Dependencies": _DEPENDENCIES,
    "Nodes and scheduling": _NODES,
    "Attributes": _ATTRIBUTES,
    "Collectives and groups": _COLLECTIVES,
    "Messages": _MESSAGES,
    "Over the ranks": _RANKS,
}
RULES: Final = {rule.key: rule for rules in SECTIONS.values() for rule in rules}

EXAMPLES: Final = 3  # of a rule that are kept


@dataclass(frozen=True, slots=True)
class Verdict:
    """One rule that does not hold at ``count`` places."""

    rule: Rule
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings in a set of rank files, errors first; rules in the order of ``RULES``."""

    ranks: tuple[int, ...]
    nodes: int
    errors: int
    warnings: int
    verdicts: tuple[Verdict, ...]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The output of ``graphlink check --json``: a run per prefix, or the one graph by its file's name."""

    graphlink: str = __version__
    runs: dict[str, Judgement]


class Findings:
    """Collects; nothing is lost but examples beyond the first few."""

    def __init__(self) -> None:
        self._count: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = defaultdict(list)

    def add(self, key: str, count: int, examples: Iterable[str] = ()) -> None:
        """Add ``count`` places where rule ``key`` does not hold; of ``examples`` no more are taken than are kept."""
        assert key in RULES, key
        if not count:
            return
        self._count[key] += count
        self._examples[key].extend(islice(examples, EXAMPLES - len(self._examples[key])))

    def judgement(self, ranks: Iterable[int], nodes: int) -> Judgement:
        """Return the findings in the files of ``ranks``, errors first."""
        found = [
            Verdict(rule, self._count[key], tuple(self._examples[key]))
            for key, rule in RULES.items()
            if key in self._count
        ]
        found.sort(key=lambda v: v.rule.grade != ERROR)
        errors = sum(v.rule.grade == ERROR for v in found)
        return Judgement(tuple(ranks), nodes, errors, len(found) - errors, tuple(found))
