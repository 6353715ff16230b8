"""The behaviour of ASTRA-sim on a graph, rule by rule: one place for the command, its output and docs/check.md.

``head``: ASTRA-sim's present reader, ``feeder_v3``; ``legacy``: Chakra's ``src/feeder``, which mlcommons ships.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from graphlink.read.document import Written
from graphlink.records import counted

ERROR, WARNING = "error", "warning"

Ends = tuple[str, ...]  # how a run may end, in alphabetical order
Effect = tuple[str, Ends]  # what a reader makes of a finding, as a sentence


@dataclass(frozen=True, slots=True)
class Rule:
    """``key`` names it, ``what`` is found, ``todo`` helps, ``head`` and ``legacy`` say what happens else. An ``error``
    breaks a run or its times.

    ``head_ends`` and ``legacy_ends``: how a run may end there with a simulated network: it ``aborts``, it ``hangs`` (a
    rank has not finished), it ``lacks`` nodes, or it ``runs``. ``known_from``: a ``run``, its ``source``, or
    ``derived`` from these or from the format.
    """

    key: str
    grade: str
    what: str
    todo: str
    head: str
    head_ends: Ends
    legacy: str
    legacy_ends: Ends
    known_from: str = "run"

    def effect(self, reader: str) -> str:
        """Return what ``reader`` makes of it, as a sentence."""
        return self.head if reader == "head" else self.legacy

    def ends(self, reader: str, *, replay_only: bool = False) -> Ends:
        """Return how a run of ``reader`` may end; ``replay_only``: by recorded times, without a network."""
        if replay_only and self.effect(reader).endswith(_NETWORK):
            return _RUNS
        return self.head_ends if reader == "head" else self.legacy_ends


def _both(text: str, ends: Ends) -> tuple[str, Ends, str, Ends]:
    """Return an effect for both readers."""
    return text, ends, text, ends


def _network(effect: Effect) -> Effect:
    """Return the effect of a finding that has none where no network is simulated."""
    return effect[0] + _NETWORK, effect[1]


_RUNS: Final = ("runs",)
_NETWORK: Final = " Not with replay-only in the system file."
NO_HARM: Final = "No harm."
_HARMLESS: Final = (NO_HARM, _RUNS)
_IGNORES: Final = ("It ignores pg_name.", _RUNS)
_ABORTS: Final = ("It stops with an error.", ("aborts",))
_FAILS: Final = ("It ends with exit status 1.", ("aborts",))
_HANGS: Final = ("The rank never finishes (exit status 0).", ("hangs",))
_EARLY: Final = ("It leaves the node out and counts the rank as finished: the time is too short.", ("lacks",))
_THROWS: Final = (
    "It stops with an error if the node runs first; later the rank never finishes (exit status 0).",
    ("aborts", "hangs"),
)

SECTIONS: Final = {
    "Framing and files": (
    Rule("no-metadata", ERROR, "The file does not begin with a GlobalMetadata message.",
         "Write that message before the nodes.",
         "It takes the first node for that message: what waits for the node stops it with an error.",
         ("aborts", "lacks"),
         "The rank never finishes (exit status 0): the first node is taken for that message.", ("hangs",)),
    Rule("no-version", WARNING, "The GlobalMetadata message has no version.", "Set its version, for example to 0.0.4.",
         *_HARMLESS, "No harm, but Chakra's Python reader sees an empty file.", ("runs",), known_from="run, source"),
    Rule("broken", ERROR, "A message has no proper length, or is no node.",
         "Write the file again: each message needs its length before it.",
         *_both("It stops with an error, the rank never finishes (exit status 0), or it reads garbage.",
                ("aborts", "hangs", "runs")), known_from="derived"),
    Rule("cut-off", ERROR, "The last message of the file is cut off.", "Write or copy the file again.",
         "It runs the message before that one twice.", ("runs",),
         "It stops reading there, or reads half a node: the time is too short.", ("lacks", "runs")),
    Rule("empty-message", ERROR, "A message has the length 0.", "Write no empty messages.",
         "It adds a node 0 of type INVALID, and the rank's statistics are lost.", ("runs",), *_HARMLESS),
    Rule("compressed", ERROR, "The file is compressed.", "Unpack it first: the simulator reads plain files.",
         "It stops with an error: it cannot read the file.", ("aborts",), "It reads gzip, not zstd.", ("runs",),
         known_from="run, source"),
    Rule("no-nodes", ERROR, "A rank has no nodes.",
         "Give it at least one computation node, or leave the rank out of the run.",
         "It stops with an error while it loads the file.", ("aborts",), "The rank finishes at 0.", ("runs",)),
    Rule("file-name", ERROR, "The file is not named PREFIX.RANK.et, or its RANK begins with 0.",
         "Rename it, for example to trace.0.et.",
         *_both("It ends with exit status 1: the file is not found.", ("aborts",)), known_from="derived"),
    Rule("other-rank", WARNING, "The name of the file and its GlobalMetadata name different ranks.",
         "Rename the file, or write its rank into the GlobalMetadata.",
         *_both("It takes the rank of the file name.", ("runs",)), known_from="derived"),
    Rule("parents-late", WARNING, "A node stands in the file before a node that it depends on.",
         "Write nodes in the order of their dependencies.",
         "It is slow: each node looks again through those that wait.", ("runs",), *_HARMLESS, known_from="source"),
    ),
    "Dependencies": (
    Rule("dangling-data", ERROR, "data_deps names an id that no node has.",
         "Take the id out, or write the node that is missing.",
         "It stops with an error while it loads the file.", ("aborts",),
         "The rank never finishes (exit status 0): the node is never released.", ("hangs",)),
    Rule("dangling-ctrl", ERROR, "ctrl_deps names an id that no node has.",
         "Take the id out, or write the node that is missing.",
         "It stops with an error while it loads the file.", ("aborts",), *_HARMLESS),
    Rule("duplicate-id", ERROR, "Two nodes have the same id.", "Give each node of a rank an id of its own.",
         "It takes the later node alone, with the dependencies of both.", ("lacks",), *_HANGS),
    Rule("duplicate-data", ERROR, "data_deps of a node names another node twice.", "Name each node once.", *_HARMLESS,
         "The rank never finishes (exit status 0): the node is never released.", ("hangs",)),
    Rule("self-data", ERROR, "A node depends on itself in data_deps.", "Take its own id out of its data_deps.", *_EARLY,
         *_HANGS),
    Rule("self-ctrl", ERROR, "A node depends on itself in ctrl_deps.", "Take its own id out of its ctrl_deps.", *_EARLY,
         *_HARMLESS),
    Rule("no-start", ERROR, "Each node of the rank depends on another one, so none can begin.",
         "Leave the first node without dependencies.",
         'It stops with an error: "No dependancy free nodes found".', ("aborts",), *_HANGS),
    Rule("cycle", ERROR, "Nodes depend on each other in a circle, by data_deps.",
         "Take out the dependency of the circle that is wrong: each is printed below.",
         "It leaves the nodes and all that follows out and counts the rank as finished: the time is too short.",
         ("lacks",), *_HANGS),
    Rule("cycle-mixed", ERROR, "Nodes depend on each other in a circle, by data_deps and ctrl_deps together.",
         "Take out the dependency of the circle that is wrong, mostly one of ctrl_deps.",
         "It leaves the nodes and all that follows out and counts the rank as finished: the time is too short.",
         ("lacks",), "It runs, as it ignores ctrl_deps.", ("runs",)),
    Rule("ctrl-alone", ERROR, "A node depends on another one by ctrl_deps alone, and data_deps do not imply it.",
         "Add the dependency to data_deps, as the reader of 2024 honours no others.",
         "It waits for that node.", ("runs",), "It does not wait for that node: the order is another one.", ("runs",)),
    Rule("ctrl-undecided", WARNING,
         "A dependency of ctrl_deps is so far from its node that it is not known whether data_deps imply it.",
         "Add it to data_deps, if the reader of 2024 is to wait for it.", "It waits for that node.", ("runs",),
         "It may not wait for that node.", ("runs",), known_from="derived"),
    ),
    "Nodes and scheduling": (
    Rule("metadata-node", ERROR, "A node has the type METADATA_NODE.",
         "Leave such nodes out, or give them the type COMP_NODE.",
         "It stops with an error, with replay-only in the system file, too.", ("aborts",), *_network(_HANGS)),
    Rule("memory-node", ERROR, "A node has the type MEM_LOAD_NODE or MEM_STORE_NODE.",
         "Describe a memory in the system file, or give it the type COMP_NODE.",
         "With NO_MEMORY_EXPANSION it stops with an error if the node runs first; later the rank never finishes (exit "
         "status 0)." + _NETWORK, ("aborts", "hangs"),
         "With NO_MEMORY_EXPANSION it ends with exit status 1." + _NETWORK, ("aborts",)),
    Rule("invalid-node", ERROR, "A node has the type INVALID_NODE.", "Give it its true type, or leave it out.",
         "The rank never finishes (exit status 0), unless the node is the last one." + _NETWORK, ("hangs", "runs"),
         "It leaves the node and what follows out and counts the rank as finished." + _NETWORK, ("lacks",)),
    Rule("unknown-type", ERROR, "A node has a type that Chakra does not have.", "Use one of Chakra's types, 0 to 7.",
         *_ABORTS, *_network(_HANGS)),
    Rule("comm-on-cpu", ERROR, "A node that communicates has is_cpu_op true.", "Set is_cpu_op to false.",
         *_network(_THROWS), "It runs the node as computation." + _NETWORK, ("runs",)),
    Rule("cpu-statistics", WARNING, "The graph has nodes of the CPU.",
         "Nothing, if you do not need the statistics at the end: all times are right.",
         "It prints no statistics at the end of the rank. Times are right.", ("runs",), *_HARMLESS),
    Rule("last-node", ERROR, "A rank that has nodes of the CPU ends in a SEND or RECV.",
         "Let a computation node depend on it, as the last one.",
         "It stops with an error, on all ranks." + _NETWORK, ("aborts",), *_HARMLESS),
    Rule("maybe-last", WARNING, "A rank that has nodes of the CPU may end in a SEND or RECV.",
         "Let a computation node depend on all that nothing waits for, as the last one.",
         "It stops with an error, on all ranks, if that node ends last.", ("aborts", "runs"), *_HARMLESS,
         known_from="derived"),
    Rule("long-duration", ERROR, "A duration_micros is above 2^46, two years.",
         "Check its unit: it is in microseconds.",
         *_both("The rank never finishes (exit status 0), it stops with an error, or the node takes no time, as the "
                "number of ns is too large. Without replay-only in the system file this does not hold for "
                "communication.", ("aborts", "hangs", "runs"))),
    Rule("late-communication", ERROR, "Communication begins 2^45 us, a year, after the start or later.",
         "Check the unit of durations: they are in microseconds.", *_both(*_network(_HANGS))),
    Rule("beyond-double", WARNING, "A rank with communication goes on for more than 104 days (2^53 ns).",
         "Check the unit of durations, or cut the graph into parts.",
         *_both("The rank never finishes (exit status 0) if something ends at a ns that a double does not hold, as its "
                "end is lost." + _NETWORK, ("hangs", "runs"))),
    Rule("no-duration", WARNING, "A node has a duration_micros of 0.", "Nothing: each such node adds 1 ns.",
         "The node takes 1 ns.", ("runs",),
         "The node takes 1 ns. Computation without num_ops is left out, but not what follows it.", ("lacks", "runs")),
    Rule("wide-fan", WARNING, "Thousands of nodes are ready at the same time.",
         "Let nodes of a thread or stream depend on each other, one after the other.",
         *_both("It is slow: 4,000 such nodes take 3 s, 20,000 more than 5 min.", ("runs",))),
    Rule("start-order", WARNING, "The order of the ids is not that of the recorded starts.",
         "Number the nodes by their start, if the simulator is to choose as the recording did.",
         *_both("It takes another order: of the nodes that are ready, the lowest id goes first.", ("runs",))),
    ),
    "Attributes": (
    Rule("cpu-kind", ERROR, "is_cpu_op has a kind of value that cannot be converted.", "Write it as bool_val.",
         *_THROWS, "It reads false.", ("runs",)),
    Rule("kind-throws", ERROR, "An attribute of communication has a kind of value that cannot be converted.",
         "Write integers as int64_val, and pg_name as string_val.", *_network(_THROWS),
         "It reads 0, of comm_src and comm_dst it stops with an error." + _NETWORK, ("aborts", "runs")),
    Rule("kind-zero", ERROR, "An attribute has another kind of integer than the reader of 2024 takes.",
         "Write comm_size and comm_type as int64_val, comm_src, comm_dst and comm_tag as int32_val, is_cpu_op as "
         "bool_val.", "It converts the value.", ("runs",),
         "It reads 0 (is_cpu_op: a node of the GPU, comm_size: 0 bytes), of comm_src and comm_dst it stops with an "
         "error." + _NETWORK, ("aborts", "runs")),
    Rule("attribute-twice", ERROR, "A node has an attribute twice, with two values.", "Write each attribute once.",
         "It reads the first value.", ("runs",), "It reads the last value.", ("runs",), known_from="source"),
    Rule("no-comm-type", ERROR, "A collective has no comm_type.",
         "Say which collective it is, by its number in Chakra's schema.", *_network(_THROWS),
         "It takes the type 0 (ALL_REDUCE) or garbage.", ("runs",)),
    Rule("no-comm-size", ERROR, "Communication has no comm_size.", "Write how many bytes it moves.", *_network(_THROWS),
         "It moves 0 bytes.", ("runs",)),
    Rule("no-peer", ERROR, "A SEND has no comm_dst, or a RECV no comm_src.", "Write the rank at the other end.",
         *_network(_THROWS), *_network(_ABORTS)),
    Rule("no-tag", ERROR, "A SEND or RECV has no comm_tag.", "Write its tag, 0 where there are none.",
         *_network(_THROWS), "It takes the tag 0.", ("runs",)),
    Rule("foreign-end", ERROR, "The comm_src of a SEND, or the comm_dst of a RECV, is another rank than its own.",
         "Write the rank of the file there, or leave it out.", *_network(_THROWS), *_HARMLESS),
    Rule("involved-dim", ERROR, "involved_dim is no bool_list.",
         "Write it as bool_list, with a value for each dimension of the network, or leave it out.",
         *_both(*_network(_FAILS))),
    Rule("no-dimension", ERROR, "involved_dim is false for all dimensions, and there is no pg_name.",
         "Set the dimensions over which it communicates to true, or leave involved_dim out.", *_network(_HANGS),
         "The rank never finishes (exit status 0), unless there is a groups file." + _NETWORK, ("hangs", "runs")),
    ),
    "Collectives and groups": (
    Rule("unsupported", ERROR, "The simulated network does not have this collective.",
         "Write it as one that it has: ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER or ALL_TO_ALL.", *_network(_THROWS),
         *_network(_HANGS)),
    Rule("broadcast", WARNING, "There is a BROADCAST, which the network does not simulate.",
         "Nothing, if its recorded duration will do; else write it as another collective.",
         *_both("It takes its duration_micros, and ranks do not wait for each other." + _NETWORK, ("runs",))),
    Rule("empty-gather", ERROR, "An ALL_GATHER has the size 0.", "Leave it out, or write it as a computation node.",
         *_both(*_network(_HANGS))),
    Rule("tiny-gather", ERROR, "An ALL_GATHER has less than 4 bytes for each rank.",
         "Set preferred-dataset-splits to 1 in the system file, as graphlink astra does.",
         *_both("It runs forever and takes "
                "more and more memory, if that is less than preferred-dataset-splits." + _NETWORK, ("aborts", "runs"))),
    Rule("small-gather", WARNING, "An ALL_GATHER has less than 64 bytes for each rank.",
         "Set preferred-dataset-splits to 1 in the system file, as graphlink astra does.",
         *_both("It runs forever if preferred-dataset-splits is larger.", ("aborts", "runs")), known_from="derived"),
    Rule("size-zero", WARNING, "A collective has the size 0.",
         "Nothing, if it stands for a barrier: it takes its steps.",
         *_both("It takes the time of its steps." + _NETWORK, ("runs",))),
    Rule("negative-size", ERROR, "A comm_size is below 0.", "Write how many bytes are moved.",
         *_both(*_network(_HANGS))),
    Rule("group-of-one", ERROR, "A collective has a group of one rank.",
         "Write it as a computation node: nothing is moved.", *_both(*_network(_HANGS))),
    Rule("group-text", ERROR, "A pg_name is no number.",
         "Write the decimal number of the group, as it stands in the groups file.", *_network(_THROWS), *_IGNORES),
    Rule("group-prefix", ERROR, "A pg_name begins with a number and goes on.", "Write the number of the group alone.",
         "It reads the number alone.", ("runs",), *_IGNORES),
    Rule("group-huge", ERROR, "A pg_name is above 2^31 - 1.", "Number the groups from 1.", *_network(_ABORTS),
         *_IGNORES),
    Rule("group-zero", WARNING, 'A pg_name is "0" or empty, which means all ranks.',
         "Nothing, if all ranks are meant; else number the groups from 1.", "It takes all ranks.", ("runs",),
         *_IGNORES),
    Rule("group-unknown", ERROR, "A pg_name is not in the groups file.",
         "Add the group and its ranks to comm_group.json.", *_network(_FAILS), *_IGNORES),
    Rule("no-groups", ERROR, "A collective names a group, and there is no groups file.",
         "Write comm_group.json beside the graphs, or name it with --groups.", *_network(_FAILS), *_IGNORES,
         known_from="derived"),
    Rule("outside-group", ERROR, "A rank is not in the group of its collective.",
         "Correct the group in comm_group.json, or the pg_name.", *_network(_ABORTS),
         "It takes another group, or the rank never finishes (exit status 0)." + _NETWORK, ("hangs", "runs")),
    Rule("groups-path", ERROR, 'The path of the groups file contains "empty".',
         'Rename its folder: the simulator takes "empty" for no file.',
         "It ignores the file, and ends with exit status 1 at the first group." + _NETWORK, ("aborts",),
         "It ignores the file.", ("runs",)),
    Rule("groups-file", ERROR, "The groups file cannot be used.", 'Write it as JSON: {"1": [0, 1], "2": [2, 3]}.',
         "It stops with an error if the file is no JSON or a group no list, else it ends with exit status 1 at the "
         "first group.", ("aborts", "runs"),
         "It stops with an error if the file is no JSON, else no harm.", ("aborts", "runs"), known_from="derived"),
    Rule("groups-key", ERROR, "A key in the groups file is no number above 0.", "Number the groups from 1.", *_ABORTS,
         *_HARMLESS),
    Rule("groups-high", WARNING, "A key in the groups file is above 499.",
         "Number the groups from 1 to 499, where there are so few.",
         *_both("Ids are meant to stay within 1 to 499.", ("runs",)), known_from="source"),
    Rule("group-beyond", ERROR, "A group names a rank that the run does not have.",
         "Add the file of that rank, or take it out of the group.",
         *_both("It stops with an error, or the rank never finishes (exit status 0)." + _NETWORK, ("aborts", "hangs"))),
    Rule("group-twice", ERROR, "A group lists a rank twice.", "List each rank once.", *_both(*_network(_HANGS))),
    Rule("unchained", WARNING, "Two collectives of a group have no order: data_deps do not say which comes first.",
         "Let the later one depend on the earlier one, on each rank.",
         *_both("The rank never finishes (exit status 0) if ranks start them in different orders: the lower id goes "
                "first only where both are ready.", ("hangs", "runs")), known_from="derived"),
    Rule("legacy-ids", WARNING, "Ids of collectives are below the number of collectives of all ranks.",
         "Begin the ids of all nodes above that number, as graphlink does.", *_HARMLESS,
         "It stops with an error or a segfault, or the rank never finishes (exit status 0), if the id is the number of "
         "the rank's next collective, which begins as this one ends." + _NETWORK, ("aborts", "hangs", "runs")),
    Rule("legacy-group", WARNING, "A rank uses several groups.",
         "Use the reader of 2026 (feeder_v3), which knows groups.", *_HARMLESS,
         "It takes one group that holds the rank for all of them. It may stop with an error, or the rank never "
         "finishes (exit status 0).", ("aborts", "hangs", "runs")),
    ),
    "Messages": (
    Rule("to-itself", ERROR, "A SEND or RECV has the own rank at both ends.",
         "Leave it out, or write it as a computation node.", *_both(*_network(_ABORTS))),
    Rule("no-such-rank", ERROR, "The other end of a SEND or RECV is no rank of the run.",
         "Add the file of that rank, or correct the number.", *_both(*_network(_ABORTS))),
    Rule("negative-tag", ERROR, "A comm_tag is below 0.", "Use tags from 0.", *_both(*_network(_ABORTS))),
    Rule("empty-send", ERROR, "A SEND has the size 0.", "Leave it and its RECV out, or write at least 1 byte.",
         *_both(*_network(_ABORTS))),
    Rule("no-send", ERROR, "A RECV has no SEND of its tag, source and size.",
         "Write the SEND on the other rank, or take the RECV out.",
         *_both("The rank never finishes (exit status 0), as the receiver waits." + _NETWORK, ("hangs",))),
    Rule("no-recv", WARNING, "A SEND has no RECV of its tag, target and size.",
         "Write the RECV on the other rank, if it is to wait.",
         *_both("It does not notice, and ends the node after the transfer.", ("runs",))),
    ),
    "Over the ranks": (
    Rule("missing-rank", ERROR, "The file of a rank is missing.", "Write a file for each rank, from 0 on.",
         *_both(*_FAILS)),
    Rule("alone", WARNING, "There is a single rank, and the network needs two.",
         "Add a second rank with one computation node, as graphlink astra does.",
         *_both("It cannot run one rank alone: its network needs two.", ("aborts",))),
    Rule("fewer-ranks", WARNING, "GlobalMetadata names more ranks than there are files.",
         "Link the other ranks, too, or scale the run: graphlink scale.",
         *_both("It runs only with a file for each rank.", ("runs",)), known_from="derived"),
    Rule("order-differs", ERROR, "Ranks of a group run other collectives, or other sizes, at the same place.",
         "Check that all recordings are of the same steps of one run, then link them together.",
         *_both("The rank never finishes (exit status 0), as both sides wait." + _NETWORK, ("hangs",))),
    Rule("rank-circle", ERROR, "Communication of several ranks waits in a circle, or behind one.",
         "Change the order of one of the messages or collectives that are printed below.",
         "All ranks of the circle wait forever (exit status 0), however long a node takes." + _NETWORK, ("hangs",),
         "They wait forever (exit status 0), unless the circle needs ctrl_deps or several groups of a rank." + _NETWORK,
         ("hangs", "runs"), known_from="derived"),
    Rule("misses-one", ERROR, "Ranks of a group run different numbers of collectives.",
         "Check that all recordings are of the same steps of one run, then link them together.",
         *_both("The rank never finishes (exit status 0), as the others wait." + _NETWORK, ("hangs",))),
    Rule("slot-deadlock", ERROR, "Ranks start collectives of several groups in orders that contradict each other.",
         "Let the collectives depend on each other in the same order on all ranks.",
         "The ranks wait forever (exit status 0), however long a node takes: a rank starts no collective before its "
         "last one ends." + _NETWORK, ("hangs",),
         "The ranks wait forever (exit status 0), or it takes another group." + _NETWORK, ("hangs", "runs")),
    Rule("slot-order", WARNING,
         "By ids or recorded times, ranks start collectives of several groups in orders that contradict each other, or "
         "a SEND behind a collective, where communication is quick.",
         "Let them depend on each other in the same order on all ranks.",
         "If they start so, they wait "
         "forever (exit status 0): a rank starts no collective before its last one ends." + _NETWORK, ("hangs", "runs"),
         "If they start so, they wait forever (exit status 0), or it takes another group." + _NETWORK,
         ("hangs", "runs")),
    ),
}  # fmt: skip
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
    """The findings in a set of rank files: errors, then what no simulator runs, then all else, as in ``RULES``."""

    ranks: tuple[int, ...]
    nodes: int
    errors: int
    warnings: int
    verdicts: tuple[Verdict, ...]


class Judged(Written, frozen=True, kw_only=True):
    """The output of ``graphlink check --json``: a run per prefix, or the one graph by its file's name."""

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
        found.sort(key=lambda v: (v.rule.grade != ERROR, "runs" in v.rule.head_ends))
        errors = sum(v.rule.grade == ERROR for v in found)
        return Judgement(tuple(ranks), nodes, errors, len(found) - errors, tuple(found))
