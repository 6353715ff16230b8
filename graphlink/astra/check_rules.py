"""The behaviour of ASTRA-sim on a graph, rule by rule: one place for the command, its output and docs/check.md.

``head``: ASTRA-sim's present reader, ``feeder_v3``; ``legacy``: Chakra's ``src/feeder``, which mlcommons ships. "" = no
harm there. Determined by running hand-made graphs through both, unless the text says (read): then from their source.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from graphlink.records import counted
from graphlink.version import __version__

ERROR, WARNING = "error", "warning"


Groups = dict[int, tuple[int, ...]]  # of the groups file, by id: members as listed


@dataclass(frozen=True, slots=True)
class Rule:
    """``key`` names it, ``what`` is found, ``todo`` helps, ``head`` and ``legacy`` say what happens else. An ``error``
    breaks a run or its times.
    """

    key: str
    grade: str
    what: str
    todo: str
    head: str
    legacy: str

    @property
    def on_legacy(self) -> str:
        """Return the effect on the legacy reader; "" = no harm."""
        return self.head if self.legacy == _SAME else self.legacy


_PLAIN: Final = {
    r" \(network mode\)": ". Not with replay-only in the system file",
    r" \(read\)": "",
    r"\babort at tick 0, later hang": "it stops with an error if the node runs first; later the rank never finishes "
    "(exit status 0)",
    r": throws at load": " while it loads the file",
    r"\babort\b": "it stops with an error",
    r"\bhang\b": "the rank never finishes (exit status 0)",
    r"\bin network mode\b": "without replay-only",
    r"^skipped\b": "it is left out",
    r"\bskipped\b": "left out",
    r"\bwrong\b": "it runs, but not as meant",
    r"\bexit 1\b": "it ends with exit status 1",
    r"^(?=(?:takes|runs|converts|waits|reads|ignores|finishes|goes|lasts)\b)": "it ",
}
_SAME: Final = "the same"
_NO_MATTER: Final = ""
_NETWORK: Final = " (network mode)"
_THROWS: Final = "abort at tick 0, later hang"

_FRAMING: Final = (
    Rule("no-metadata", ERROR, "The file does not begin with a GlobalMetadata message.",
         "Write that message before the nodes.", "skipped: the first node is swallowed; what waits for it aborts",
         "hang: the first node is swallowed"),
    Rule("no-version", WARNING, "The GlobalMetadata message has no version.", "Set its version, for example to 0.0.4.",
         _NO_MATTER, "no harm, but Chakra's Python reader sees an empty file (read)"),
    Rule("broken", ERROR, "A message has no proper length, or is no node.",
         "Write the file again: each message needs its length before it.", "abort, hang, or it reads garbage", _SAME),
    Rule("cut-off", ERROR, "The last message of the file is cut off.", "Write or copy the file again.",
         "wrong: accepted, the message before it runs once more",
         "skipped: it stops reading there, or reads half a node"),
    Rule("empty-message", ERROR, "A message has the length 0.", "Write no empty messages.",
         "it adds a node 0 of type INVALID; the rank's statistics are lost", _NO_MATTER),
    Rule("compressed", ERROR, "The file is compressed.", "Unpack it first: the simulator reads plain files.",
         "abort: cannot read it", "reads gzip, not zstd (read)"),
    Rule("no-nodes", ERROR, "A rank has no nodes.",
         "Give it at least one computation node, or leave the rank out of the run.", "abort: throws at load",
         "finishes at 0"),
    Rule("file-name", ERROR, "The file is not named PREFIX.RANK.et, or its RANK begins with 0.",
         "Rename it, for example to trace.0.et.", "exit 1: the file is not found", _SAME),
    Rule("other-rank", WARNING, "The name of the file and its GlobalMetadata name different ranks.",
         "Rename the file, or write its rank into the GlobalMetadata.", "runs as the rank of the file name", _SAME),
    Rule("parents-late", WARNING, "A node stands in the file before a node that it depends on.",
         "Write nodes in the order of their dependencies.", "slow: each node rescans those that wait (read)",
         _NO_MATTER),
)  # fmt: skip

_DEPENDENCIES: Final = (
    Rule("dangling-data", ERROR, "data_deps names an id that no node has.",
         "Take the id out, or write the node that is missing.", "abort: throws at load",
         "hang: the node is never released"),
    Rule("dangling-ctrl", ERROR, "ctrl_deps names an id that no node has.",
         "Take the id out, or write the node that is missing.", "abort: throws at load", _NO_MATTER),
    Rule("duplicate-id", ERROR, "Two nodes have the same id.", "Give each node of a rank an id of its own.",
         "skipped: the later one wins, with the dependencies of both", "hang"),
    Rule("duplicate-data", ERROR, "data_deps of a node names another node twice.", "Name each node once.", _NO_MATTER,
         "hang: the node is never released"),
    Rule("self-data", ERROR, "A node depends on itself in data_deps.", "Take its own id out of its data_deps.",
         "skipped, the rank counts as finished: time too short", "hang"),
    Rule("self-ctrl", ERROR, "A node depends on itself in ctrl_deps.", "Take its own id out of its ctrl_deps.",
         "skipped, the rank counts as finished: time too short", _NO_MATTER),
    Rule("no-start", ERROR, "Each node of the rank depends on another one, so none can begin.",
         "Leave the first node without dependencies.", 'abort: "No dependancy free nodes found"', "hang"),
    Rule("cycle", ERROR, "Nodes depend on each other in a circle, by data_deps.",
         "Take out the dependency of the circle that is wrong: each is printed below.",
         "skipped with all that follows, the rank counts as finished: time too short", "hang"),
    Rule("cycle-mixed", ERROR, "Nodes depend on each other in a circle, by data_deps and ctrl_deps together.",
         "Take out the dependency of the circle that is wrong, mostly one of ctrl_deps.",
         "skipped with all that follows, the rank counts as finished: time too short",
         "runs: ctrl_deps are not honoured"),
    Rule("ctrl-alone", ERROR, "A node depends on another one by ctrl_deps alone, and data_deps do not imply it.",
         "Add the dependency to data_deps, as the reader of 2024 honours no others.", "waits for it",
         "wrong: does not wait for it"),
    Rule("ctrl-undecided", WARNING,
         "A dependency of ctrl_deps is so far from its node that it is not known whether data_deps imply it.",
         "Add it to data_deps, if the reader of 2024 is to wait for it.", "waits for it", "it may not wait for it"),
)  # fmt: skip

_NODES: Final = (
    Rule("metadata-node", ERROR, "A node has the type METADATA_NODE.",
         "Leave such nodes out, or give them the type COMP_NODE.", "abort, in every mode", "hang" + _NETWORK),
    Rule("memory-node", ERROR, "A node has the type MEM_LOAD_NODE or MEM_STORE_NODE.",
         "Describe a memory in the system file, or give it the type COMP_NODE.",
         _THROWS + " with NO_MEMORY_EXPANSION" + _NETWORK, "exit 1 with NO_MEMORY_EXPANSION" + _NETWORK),
    Rule("invalid-node", ERROR, "A node has the type INVALID_NODE.", "Give it its true type, or leave it out.",
         "hang, unless it is the last node" + _NETWORK,
         "skipped with what follows, the rank counts as finished" + _NETWORK),
    Rule("unknown-type", ERROR, "A node has a type that Chakra does not have.", "Use one of Chakra's types, 0 to 7.",
         "abort", "hang" + _NETWORK),
    Rule("comm-on-cpu", ERROR, "A node that communicates has is_cpu_op true.", "Set is_cpu_op to false.",
         _THROWS + _NETWORK, "wrong: runs as computation" + _NETWORK),
    Rule("cpu-statistics", WARNING, "The graph has nodes of the CPU.",
         "Nothing, if you do not need the statistics at the end: all times are right.",
         "the statistics at a rank's end throw: their lines are missing, times are right", _NO_MATTER),
    Rule("last-node", ERROR, "A rank that has nodes of the CPU ends in a SEND or RECV.",
         "Let a computation node depend on it, as the last one.", "abort: all ranks stop" + _NETWORK, _NO_MATTER),
    Rule("maybe-last", WARNING, "A rank that has nodes of the CPU may end in a SEND or RECV.",
         "Let a computation node depend on all that nothing waits for, as the last one.",
         "abort if it ends last: all ranks stop", _NO_MATTER),
    Rule("long-duration", ERROR, "A duration_micros is above 2^46, two years.",
         "Check its unit: it is in microseconds.",
         "hang, abort, or no time at all, as the ns wrap; in network mode not of communication", _SAME),
    Rule("late-communication", ERROR, "Communication begins 2^45 us, a year, after the start or later.",
         "Check the unit of durations: they are in microseconds.", "hang" + _NETWORK, _SAME),
    Rule("beyond-double", WARNING, "A rank with communication goes on for more than 104 days (2^53 ns).",
         "Check the unit of durations, or cut the graph into parts.",
         "hang where something ends at a ns that a double does not hold: its end is lost" + _NETWORK, _SAME),
    Rule("no-duration", WARNING, "A node has a duration_micros of 0.", "Nothing: each such node adds 1 ns.",
         "takes 1 ns", "takes 1 ns; a COMP without num_ops is skipped, what follows is not"),
    Rule("wide-fan", WARNING, "Thousands of nodes are ready at the same time.",
         "Let nodes of a thread or stream depend on each other, one after the other.",
         "slow: 4 k take 3 s, 20 k more than 5 min", _SAME),
    Rule("start-order", WARNING, "The order of the ids is not that of the recorded starts.",
         "Number the nodes by their start, if the simulator is to choose as the recording did.",
         "other order: among ready nodes the lowest id goes first", _SAME),
)  # fmt: skip

_ATTRIBUTES: Final = (
    Rule("cpu-kind", ERROR, "is_cpu_op has a kind of value that cannot be converted.", "Write it as bool_val.", _THROWS,
         "wrong: reads false"),
    Rule("kind-throws", ERROR, "An attribute of communication has a kind of value that cannot be converted.",
         "Write integers as int64_val, and pg_name as string_val.", _THROWS + _NETWORK,
         "wrong: reads 0; comm_src, comm_dst: abort" + _NETWORK),
    Rule("kind-zero", ERROR, "An attribute has another kind of integer than the reader of 2024 takes.",
         "Write comm_size and comm_type as int64_val, comm_src, comm_dst and comm_tag as int32_val, is_cpu_op as "
         "bool_val.", "converts it",
         "wrong: reads 0 (is_cpu_op: GPU, comm_size: 0 bytes); comm_src, comm_dst: abort" + _NETWORK),
    Rule("attribute-twice", ERROR, "A node has an attribute twice, with two values.", "Write each attribute once.",
         "wrong: reads the first (read)", "wrong: reads the last (read)"),
    Rule("no-comm-type", ERROR, "A collective has no comm_type.",
         "Say which collective it is, by its number in Chakra's schema.", _THROWS + _NETWORK,
         "wrong: 0 (ALL_REDUCE) or garbage"),
    Rule("no-comm-size", ERROR, "Communication has no comm_size.", "Write how many bytes it moves.", _THROWS + _NETWORK,
         "wrong: 0 bytes"),
    Rule("no-peer", ERROR, "A SEND has no comm_dst, or a RECV no comm_src.", "Write the rank at the other end.",
         _THROWS + _NETWORK, "abort" + _NETWORK),
    Rule("no-tag", ERROR, "A SEND or RECV has no comm_tag.", "Write its tag, 0 where there are none.",
         _THROWS + _NETWORK, "it takes tag 0"),
    Rule("foreign-end", ERROR, "The comm_src of a SEND, or the comm_dst of a RECV, is another rank than its own.",
         "Write the rank of the file there, or leave it out.", _THROWS + _NETWORK, _NO_MATTER),
    Rule("involved-dim", ERROR, "involved_dim is no bool_list.",
         "Write it as bool_list, with a value for each dimension of the network, or leave it out.", "exit 1" + _NETWORK,
         _SAME),
    Rule("no-dimension", ERROR, "involved_dim is false for all dimensions, and there is no pg_name.",
         "Set the dimensions over which it communicates to true, or leave involved_dim out.", "hang" + _NETWORK,
         "hang, unless there is a groups file" + _NETWORK),
)  # fmt: skip

_COLLECTIVES: Final = (
    Rule("unsupported", ERROR, "The simulated network does not have this collective.",
         "Write it as one that it has: ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER or ALL_TO_ALL.", _THROWS + _NETWORK,
         "hang" + _NETWORK),
    Rule("broadcast", WARNING, "There is a BROADCAST, which the network does not simulate.",
         "Nothing, if its recorded duration will do; else write it as another collective.",
         "lasts its duration_micros, ranks are not coupled" + _NETWORK, _SAME),
    Rule("empty-gather", ERROR, "An ALL_GATHER has the size 0.", "Leave it out, or write it as a computation node.",
         "hang" + _NETWORK, _SAME),
    Rule("tiny-gather", ERROR, "An ALL_GATHER has less than 4 bytes for each rank.",
         "Set preferred-dataset-splits to 1 in the system file, as graphlink astra does.",
         "endless loop, growing memory, if it is less than preferred-dataset-splits" + _NETWORK, _SAME),
    Rule("small-gather", WARNING, "An ALL_GATHER has less than 64 bytes for each rank.",
         "Set preferred-dataset-splits to 1 in the system file, as graphlink astra does.",
         "endless loop if preferred-dataset-splits is larger", _SAME),
    Rule("size-zero", WARNING, "A collective has the size 0.",
         "Nothing, if it stands for a barrier: it takes its steps.", "takes its steps" + _NETWORK, _SAME),
    Rule("negative-size", ERROR, "A comm_size is below 0.", "Write how many bytes are moved.", "hang" + _NETWORK,
         _SAME),
    Rule("group-of-one", ERROR, "A collective has a group of one rank.",
         "Write it as a computation node: nothing is moved.", "hang" + _NETWORK, _SAME),
    Rule("group-text", ERROR, "A pg_name is no number.",
         "Write the decimal number of the group, as it stands in the groups file.", _THROWS + _NETWORK, "ignores it"),
    Rule("group-prefix", ERROR, "A pg_name begins with a number and goes on.", "Write the number of the group alone.",
         "wrong: the number alone is read", "ignores it"),
    Rule("group-huge", ERROR, "A pg_name is above 2^31 - 1.", "Number the groups from 1.", "abort" + _NETWORK,
         "ignores it"),
    Rule("group-zero", WARNING, 'A pg_name is "0" or empty, which means all ranks.',
         "Nothing, if all ranks are meant; else number the groups from 1.", "it takes all ranks", "ignores it"),
    Rule("group-unknown", ERROR, "A pg_name is not in the groups file.",
         "Add the group and its ranks to comm_group.json.", "exit 1" + _NETWORK, "ignores it"),
    Rule("no-groups", ERROR, "A collective names a group, and there is no groups file.",
         "Write comm_group.json beside the graphs, or name it with --groups.", "exit 1" + _NETWORK, "ignores it"),
    Rule("outside-group", ERROR, "A rank is not in the group of its collective.",
         "Correct the group in comm_group.json, or the pg_name.", "abort" + _NETWORK,
         "takes another group, or hang" + _NETWORK),
    Rule("groups-path", ERROR, 'The path of the groups file contains "empty".',
         'Rename its folder: the simulator takes "empty" for no file.',
         "the file is ignored: exit 1 at the first group" + _NETWORK, "the file is ignored"),
    Rule("groups-file", ERROR, "The groups file cannot be used.", 'Write it as JSON: {"1": [0, 1], "2": [2, 3]}.',
         "abort if it is no JSON or a group no list, else exit 1 at the first group",
         "abort if it is no JSON, else no harm"),
    Rule("groups-key", ERROR, "A key in the groups file is no number above 0.", "Number the groups from 1.", "abort",
         _NO_MATTER),
    Rule("groups-high", WARNING, "A key in the groups file is above 499.",
         "Number the groups from 1 to 499, where there are so few.", "ids are meant to stay within 1..499 (read)",
         _SAME),
    Rule("group-beyond", ERROR, "A group names a rank that the run does not have.",
         "Add the file of that rank, or take it out of the group.", "abort or hang" + _NETWORK, _SAME),
    Rule("group-twice", ERROR, "A group lists a rank twice.", "List each rank once.", "hang" + _NETWORK, _SAME),
    Rule("unchained", WARNING, "Two collectives of a group have no order: data_deps do not say which comes first.",
         "Let the later one depend on the earlier one, on each rank.",
         "hang if the ranks start them in different orders: the lower id goes first only where both are ready", _SAME),
    Rule("legacy-ids", WARNING, "Ids of collectives are below the number of collectives of all ranks.",
         "Begin the ids of all nodes above that number, as graphlink does.", _NO_MATTER,
         "abort (a segfault, too) or hang, if the id is the number of the rank's next, which begins as it ends"
         + _NETWORK),
    Rule("legacy-group", WARNING, "A rank uses several groups.",
         "Use the reader of 2026 (feeder_v3), which knows groups.", _NO_MATTER,
         "wrong: takes one group that holds the rank for all, or hang"),
)  # fmt: skip

_MESSAGES: Final = (
    Rule("to-itself", ERROR, "A SEND or RECV has the own rank at both ends.",
         "Leave it out, or write it as a computation node.", "abort" + _NETWORK, _SAME),
    Rule("no-such-rank", ERROR, "The other end of a SEND or RECV is no rank of the run.",
         "Add the file of that rank, or correct the number.", "abort" + _NETWORK, _SAME),
    Rule("negative-tag", ERROR, "A comm_tag is below 0.", "Use tags from 0.", "abort" + _NETWORK, _SAME),
    Rule("empty-send", ERROR, "A SEND has the size 0.", "Leave it and its RECV out, or write at least 1 byte.",
         "abort" + _NETWORK, _SAME),
    Rule("no-send", ERROR, "A RECV has no SEND of its tag, source and size.",
         "Write the SEND on the other rank, or take the RECV out.", "hang: the receiver waits" + _NETWORK,
         _SAME),
    Rule("no-recv", WARNING, "A SEND has no RECV of its tag, target and size.",
         "Write the RECV on the other rank, if it is to wait.", "goes unnoticed: ends after the transfer", _SAME),
)  # fmt: skip

_RANKS: Final = (
    Rule("missing-rank", ERROR, "The file of a rank is missing.", "Write a file for each rank, from 0 on.", "exit 1",
         _SAME),
    Rule("alone", WARNING, "There is a single rank, and the network needs two.",
         "Add a second rank with one computation node, as graphlink astra does.",
         "it cannot run: the network needs two; add a trivial second rank", _SAME),
    Rule("fewer-ranks", WARNING, "GlobalMetadata names more ranks than there are files.",
         "Link the other ranks, too, or scale the run: graphlink scale.", "runs only with a file for each rank", _SAME),
    Rule("order-differs", ERROR, "Ranks of a group run other collectives, or other sizes, at the same place.",
         "Check that all recordings are of the same steps of one run, then link them together.",
         "hang: both sides wait" + _NETWORK, _SAME),
    Rule("rank-circle", ERROR, "Communication of several ranks waits in a circle, or behind one.",
         "Change the order of one of the messages or collectives that are printed below.",
         "hang whatever the timing: all ranks in it wait" + _NETWORK,
         "hang, unless the circle needs ctrl_deps or several groups of a rank" + _NETWORK),
    Rule("misses-one", ERROR, "Ranks of a group run different numbers of collectives.",
         "Check that all recordings are of the same steps of one run, then link them together.",
         "hang: the others wait" + _NETWORK, _SAME),
    Rule("slot-deadlock", ERROR, "Ranks start collectives of several groups in orders that contradict each other.",
         "Let the collectives depend on each other in the same order on all ranks.",
         "hang whatever the timing: there is one communication slot a rank" + _NETWORK,
         "hang, or takes another group" + _NETWORK),
    Rule("slot-order", WARNING,
         "By ids or recorded times, ranks start collectives of several groups in orders that contradict each "
         "other, or a SEND behind a collective, where communication is quick.",
         "Let them depend on each other in the same order on all ranks.",
         "hang if they start so: there is one communication slot a rank" + _NETWORK,
         "hang, or takes another group" + _NETWORK),
)  # fmt: skip

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

    @property
    def text(self) -> str:
        return f"{self.rule.what} Found {counted(self.count, 'time')} ({self.rule.key})"


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


def plain(effect: str) -> str:
    """Return what a reader makes of a finding, as a sentence for people."""
    for term, words in _PLAIN.items():
        effect = re.sub(term, words, effect)
    return f"{effect[:1].upper()}{effect[1:]}." if effect else "No harm."


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
