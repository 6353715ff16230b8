"""Each rule of docs/check.md on the real ASTRA-sim, where it lies beside the project: what is said of a graph is what
happens to it.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chakra.schema.protobuf import et_def_pb2 as pb

from graphlink.astra.check_rules import RULES
from graphlink.astra.files import Dimension, memory_json, network_yml, system_json
from graphlink.astra.ranks import judge, runs_of
from tests.astra.et_files import coll, encoded, framed, node, recv, send, written
from tests.e2e.conftest import SIMULATORS

CPU_S = 2  # none of these graphs takes a tenth of it
BROADCAST = {"comm_type": pb.BROADCAST}
GOOD = [node(0), node(1, data=[0])]
PAIR = {"1": [0, 1], "2": [1, 0]}


@dataclass(frozen=True)
class Case:
    """Rank files that break one rule; ``raw``: bytes in the place of rank 1's file, ``system``: other keys of the
    system file.
    """

    rule: str
    ranks: Sequence[Sequence[Any]]
    groups: Mapping[str, object] | str | None = None
    raw: bytes | None = None
    splits: int = 1
    name: str = "trace.1.et"
    folder: str = "run"


@dataclass(frozen=True)
class Outcome:
    """``what``: aborts, hangs (a rank has not finished, exit status 0), lacks (all have finished, nodes were left out)
    or runs.
    """

    what: str
    said: str = field(compare=False)


def simulate(case: Case, folder: Path, reader: str, *, replay_only: bool) -> Outcome:
    config = folder / f"{reader}-{replay_only}"
    config.mkdir()
    ranks = len(case.ranks)
    system = system_json(1, replay_only=replay_only).replace(
        b'"preferred-dataset-splits": 1', b'"preferred-dataset-splits": %d' % case.splits
    )
    (config / "system.json").write_bytes(system)
    (config / "network.yml").write_bytes(network_yml((Dimension("Switch", max(ranks, 2), 50e9, 1000.0, ()),)))
    (config / "memory.json").write_bytes(memory_json())
    graphs = folder / case.folder
    options = [
        f"--{what}-configuration={config / file}"
        for what, file in (("system", "system.json"), ("network", "network.yml"))
    ]
    options += [
        f"--remote-memory-configuration={config / 'memory.json'}",
        f"--workload-configuration={graphs / 'trace'}",
    ]
    if (graphs / "comm_group.json").exists():
        options.append(f"--comm-group-configuration={graphs / 'comm_group.json'}")
    limited = ["bash", "-c", f'ulimit -t {CPU_S} -c 0; exec "$@"', "run", SIMULATORS / f"AstraSim_{reader}"]
    ran = subprocess.run(
        [*limited, *options, "--logging-folder=log"], cwd=config, capture_output=True, errors="replace", check=False
    )
    said = ran.stdout + ran.stderr
    if ran.returncode:
        return Outcome("aborts", said)
    if len(set(re.findall(r"sys\[(\d+)\] finished", ran.stdout))) < ranks:
        return Outcome("hangs", said)
    done = sum(
        len(re.findall("callback,sys->id", log.read_text(errors="replace"))) for log in config.glob("log/log*.log")
    )
    return Outcome("runs" if done >= sum(map(len, case.ranks)) else "lacks", said)


def twice(*, size: int) -> Any:
    out = coll(0)
    out.attr.add(name="comm_size", int64_val=size)
    return out


def both(*nodes: Any) -> list[list[Any]]:
    return [list(nodes), list(nodes)]


def one_more(*nodes: Any) -> list[list[Any]]:
    return [list(nodes), GOOD]


def message(**attributes: Any) -> list[list[Any]]:
    return [[send(0, **attributes), node(1, data=[0])], [recv(0), node(1, data=[0])]]


END = node(1, data=[0])
CASES = [
    Case("no-metadata", [GOOD, GOOD], raw=framed(*(n.SerializeToString() for n in GOOD))),
    Case("no-version", [GOOD, GOOD], raw=encoded(GOOD, version="")),
    Case("broken", [GOOD, GOOD], raw=encoded(GOOD) + b"\x03\xff\xff\xff"),
    Case("cut-off", [GOOD, [*GOOD, node(2, data=[1])]], raw=encoded([*GOOD, node(2, data=[1])])[:-2]),
    Case("empty-message", [GOOD, GOOD], raw=encoded([node(5), node(6, data=[5])]) + b"\0"),
    Case("no-nodes", [GOOD, []]),
    Case("file-name", [GOOD, GOOD], name="trace.01.et"),
    Case("other-rank", [GOOD, GOOD], raw=encoded(GOOD, rank=0)),
    Case("parents-late", both(node(1, data=[0]), node(0))),
    Case("dangling-data", both(node(0), node(1, data=[0, 9]))),
    Case("dangling-ctrl", both(node(0), node(1, data=[0], ctrl=[9]))),
    Case("duplicate-id", both(node(0), node(1, data=[0]), node(1, data=[0]))),
    Case("duplicate-data", both(node(0), node(1, data=[0, 0]))),
    Case("self-data", both(node(0), node(1, data=[0, 1]))),
    Case("self-ctrl", both(node(0), node(1, data=[0], ctrl=[1]))),
    Case("no-start", one_more(node(0, data=[1]), node(1, data=[0]))),
    Case("cycle", one_more(node(5), node(0, data=[1]), node(1, data=[0]))),
    Case("cycle-mixed", one_more(node(5), node(0, ctrl=[1]), node(1, data=[0]))),
    Case("ctrl-alone", both(node(0), node(1), node(2, data=[0], ctrl=[1]))),
    Case("metadata-node", both(node(0, pb.METADATA_NODE), END)),
    Case("metadata-node", both(node(0), node(1, pb.METADATA_NODE, data=[0]))),
    Case("memory-node", both(node(0, pb.MEM_LOAD_NODE), END)),
    Case("memory-node", both(node(0), node(1, pb.MEM_STORE_NODE, data=[0]))),
    Case("invalid-node", both(node(0, pb.INVALID_NODE), END)),
    Case("invalid-node", both(node(0), node(1, pb.INVALID_NODE, data=[0]), node(2, data=[1]))),
    Case("invalid-node", both(node(0), node(1, pb.INVALID_NODE, data=[0]))),
    Case("unknown-type", both(node(0), node(1, 12, data=[0]))),
    Case("comm-on-cpu", both(coll(0, is_cpu_op=True), END)),
    Case("comm-on-cpu", both(node(0), coll(1, [0], is_cpu_op=True), node(2, data=[1]))),
    Case("cpu-statistics", both(node(0, is_cpu_op=True), END)),
    Case("last-node", [[node(0, is_cpu_op=True), send(1, [0])], [recv(0), END]]),
    Case("maybe-last", [[node(0, is_cpu_op=True), send(1, [0]), node(2, data=[0])], [recv(0), END]]),
    Case("no-duration", both(node(0), node(1, data=[0], micros=0))),
    *(
        Case("long-duration", one_more(node(0), node(1, data=[0], micros=2**p), node(2, data=[1])))
        for p in (47, 54, 63)
    ),
    Case("long-duration", one_more(node(0), node(1, data=[0], micros=2**64 - 5), node(2, data=[1]))),
    Case("start-order", both(node(0, start_ns=5), node(1, data=[0], start_ns=9), node(2, data=[0], start_ns=7))),
    Case("cpu-kind", both(node(0, is_cpu_op=("float_val", 1.0)), END)),
    Case("cpu-kind", both(node(0), node(1, data=[0], is_cpu_op=("float_val", 1.0)))),
    Case("kind-throws", both(coll(0, comm_size=("string_val", "4096")), END)),
    Case("kind-throws", both(coll(0, pg_name=("int32_val", 1)), END), groups=PAIR),
    Case("kind-throws", both(node(0), coll(1, [0], comm_type=("float_val", 1.0)), node(2, data=[1]))),
    Case("kind-zero", both(coll(0, comm_size=("uint64_val", 4096)), END)),
    Case("kind-zero", message(comm_dst=("int64_val", 1))),
    Case("attribute-twice", both(twice(size=16), END)),
    Case("no-comm-type", both(coll(0, comm_type=None), END)),
    Case("no-comm-size", both(node(0), coll(1, [0], comm_size=None), node(2, data=[1]))),
    Case("no-comm-size", one_more(coll(0, comm_size=None, **BROADCAST), END)),
    Case("no-peer", message(comm_dst=None)),
    Case("no-tag", message(comm_tag=None)),
    Case("foreign-end", message(comm_src=1)),
    Case("involved-dim", both(coll(0, involved_dim=("int32_val", 1)), END)),
    Case("involved-dim", both(coll(0, pg_name="1", involved_dim=("int32_val", 1)), END), groups=PAIR),
    Case("no-dimension", both(coll(0, involved_dim=("bool_list", [False, False])), END)),
    Case("unsupported", both(coll(0, comm_type=pb.BARRIER), END)),
    Case("unsupported", both(node(0), coll(1, [0], comm_type=77), node(2, data=[1]))),
    Case("broadcast", both(coll(0, **BROADCAST), END)),
    Case("empty-gather", both(coll(0, comm_type=pb.ALL_GATHER, comm_size=0), END)),
    Case("tiny-gather", both(coll(0, comm_type=pb.ALL_GATHER, comm_size=2), END)),
    Case("tiny-gather", both(coll(0, comm_type=pb.ALL_GATHER, comm_size=2), END), splits=4),
    Case("small-gather", both(coll(0, comm_type=pb.ALL_GATHER, comm_size=16), END), splits=32),
    Case("size-zero", both(coll(0, comm_size=0), END)),
    Case("size-zero", both(coll(0, comm_size=0, comm_type=pb.ALL_TO_ALL), END)),
    Case("negative-size", both(coll(0, comm_size=-1), END)),
    Case("group-of-one", one_more(coll(0, pg_name="1"), END), groups={"1": [0]}),
    Case("group-text", both(coll(0, pg_name="dp_group"), END), groups=PAIR),
    Case("group-prefix", both(coll(0, pg_name="1abc"), END), groups=PAIR),
    Case("group-huge", both(coll(0, pg_name="4294967296"), END), groups=PAIR),
    Case("group-zero", both(coll(0, pg_name="0"), END), groups=PAIR),
    Case("group-unknown", both(coll(0, pg_name="7"), END), groups=PAIR),
    Case("group-unknown", one_more(coll(0, pg_name="7", **BROADCAST), END), groups=PAIR),
    Case("no-groups", both(coll(0, pg_name="7"), END)),
    Case("outside-group", [[coll(0, pg_name="1"), END], GOOD, GOOD], groups={"1": [1, 2]}),
    Case("groups-path", both(coll(0, pg_name="1"), END), groups=PAIR, folder="nonempty"),
    *(
        Case("groups-file", both(coll(0, pg_name="1"), END), groups=text)
        for text in ("{", "[]", '{"1": "all"}', '{"1": []}')
    ),
    *(Case("groups-key", [GOOD, GOOD], groups={key: [0, 1]}) for key in ("0", "x", "-1")),
    Case("groups-high", both(coll(0, pg_name="600"), END), groups={"600": [0, 1]}),
    Case("group-beyond", one_more(coll(0, pg_name="1"), END), groups={"1": [0, 7]}),
    Case("group-twice", both(coll(0, pg_name="1"), END), groups={"1": [0, 1, 1]}),
    Case("unchained", both(coll(0), coll(1), node(2, data=[0, 1]))),
    Case("legacy-group", [[coll(0, pg_name="1"), coll(1, [0], pg_name="2"), node(2, data=[1])]] * 2, groups=PAIR),
    Case("to-itself", message(comm_dst=0)),
    Case("no-such-rank", message(comm_dst=5)),
    Case("negative-tag", message(comm_tag=-4)),
    Case("empty-send", message(comm_size=0)),
    Case("no-send", [GOOD, [recv(0), END]]),
    Case("no-recv", [[send(0), END], GOOD]),
    Case("fewer-ranks", [GOOD, GOOD], raw=encoded(GOOD, rank=1, world_size=4)),
    Case("order-differs", [[coll(0), END], [coll(0, comm_size=64), END]]),
    Case("order-differs", [[coll(0), END], [coll(0, comm_type=pb.ALL_GATHER), END]]),
    Case("misses-one", one_more(coll(0), END)),
    Case(
        "rank-circle",
        [
            [recv(0, comm_src=1), send(1, [0], comm_dst=1), node(2, data=[1])],
            [recv(0), send(1, [0], comm_dst=0), node(2, data=[1])],
        ],
    ),
    Case(
        "slot-deadlock",
        [[coll(0, pg_name=a), coll(1, pg_name=b), node(2, data=[0, 1])] for a, b in ("12", "21")],
        groups=PAIR,
    ),
    Case(
        "slot-order",  # by recorded times: what stands first waits for longer
        [
            [node(0, micros=50), coll(1, [0], pg_name="1"), coll(2, pg_name="2"), node(3, data=[1, 2])],
            [coll(0, pg_name="1"), node(1, micros=5), coll(2, [1], pg_name="2"), node(3, data=[0, 2])],
        ],
        groups=PAIR,
    ),
]
UNTRIED = {
    "compressed": "read from its source",
    "missing-rank": "and alone: there is nothing to count",
    "alone": "the network takes two",
    "ctrl-undecided": "takes more nodes than a test",
    "wide-fan": "takes minutes",
    "legacy-ids": "measured: tests/astra",
    "late-communication": "measured: tests/astra",
    "beyond-double": "measured: tests/astra",
}  # rules that have no case here, and why


def made(case: Case, folder: Path) -> Path:
    graphs = folder / case.folder
    graphs.mkdir()
    groups = case.groups if not isinstance(case.groups, str) else None
    written(graphs, *case.ranks, groups=groups)
    if isinstance(case.groups, str):
        (graphs / "comm_group.json").write_text(case.groups)
    if case.raw is not None:
        (graphs / "trace.1.et").write_bytes(case.raw)
    if case.name != "trace.1.et":
        shutil.move(graphs / "trace.1.et", graphs / case.name)
    return graphs


def found_in(folder: Path) -> set[str]:
    return {verdict.rule.key for run in runs_of(folder) for verdict in judge(run, None).verdicts}


BOTH = pytest.mark.parametrize("reader", ["head", pytest.param("legacy", marks=pytest.mark.long)], indirect=True)


@BOTH
@pytest.mark.parametrize("case", CASES, ids=[f"{i}-{case.rule}" for i, case in enumerate(CASES)])
def test_what_a_rule_says_is_what_happens(tmp_path: Path, reader: str, case: Case) -> None:
    found = found_in(made(case, tmp_path))
    assert case.rule in found
    for replay_only in (False, True):
        outcome = simulate(case, tmp_path, reader, replay_only=replay_only)
        ends = {rule: {*RULES[rule].ends(reader, replay_only=replay_only)} for rule in found}
        allowed = set.union(*ends.values())
        allowed &= ends[case.rule] | (allowed - {"runs"} if len(found) > 1 else set())
        assert outcome.what in allowed, (replay_only, found, outcome.said[-500:])


def test_every_rule_is_tried() -> None:
    assert {case.rule for case in CASES} | UNTRIED.keys() == RULES.keys()


@BOTH
@pytest.mark.parametrize(
    ("what", "ranks", "groups"),
    [
        ("missing on a rank", [[coll(0, **BROADCAST), END], GOOD], None),
        (
            "in another order",
            [
                [coll(0, **BROADCAST), coll(1, [0]), node(2, data=[1])],
                [coll(0), coll(1, [0], **BROADCAST), node(2, data=[1])],
            ],
            None,
        ),
        ("in a group of one", one_more(coll(0, pg_name="1", **BROADCAST), END), {"1": [0]}),
        ("outside its group", one_more(coll(0, pg_name="1", **BROADCAST), END), {"1": [1]}),
        ("of ranks beyond", one_more(coll(0, pg_name="1", **BROADCAST), END), {"1": [0, 7]}),
        ("of a rank twice", one_more(coll(0, pg_name="1", **BROADCAST), END), {"1": [0, 0, 1]}),
        ("of a negative size", one_more(coll(0, comm_size=-5, **BROADCAST), END), None),
        ("in no dimension", one_more(coll(0, involved_dim=("bool_list", [False]), **BROADCAST), END), None),
    ],
)
def test_a_broadcast_couples_nobody(
    tmp_path: Path, reader: str, what: str, ranks: list[list[Any]], groups: dict[str, object] | None
) -> None:
    case = Case("broadcast", ranks, groups)
    assert found_in(made(case, tmp_path)) == {"broadcast"}, what
    assert simulate(case, tmp_path, reader, replay_only=False).what == "runs"


def of_two_groups(seed: int) -> Case:
    """Two ranks, collectives of two groups, each group in the same order on both; of most seeds behind computation of
    random length.
    """
    chance = random.Random(seed)
    ranks: list[list[Any]] = []
    for _ in range(2):
        nodes: list[Any] = []
        last: dict[str, list[int]] = {"1": [], "2": []}
        order = ["1", "1", "2", "2"]
        chance.shuffle(order)
        for group in order:
            before: list[int] = []
            if seed % 4:
                nodes.append(
                    node(
                        len(nodes),
                        data=last[group] if chance.random() < 0.5 else [],
                        micros=chance.choice((1, 1_000, 100_000)),
                    )
                )
                before = [len(nodes) - 1]
            nodes.append(coll(len(nodes), sorted({*before, *last[group]}), pg_name=group))
            last[group] = [len(nodes) - 1]
        nodes.append(node(len(nodes), data=sorted({n for ids in last.values() for n in ids})))
        ranks.append(nodes)
    return Case("slot-order", ranks, PAIR)


@pytest.mark.parametrize(
    "sweep", [range(24), pytest.param(range(24, 1_000), marks=pytest.mark.long)], ids=["few", "many"]
)
def test_slots_that_deadlock_are_found(tmp_path: Path, sweep: range) -> None:
    """Errors hang, whatever the network. What hangs is found, but where the network's times make another order than
    those recorded.
    """
    binary = SIMULATORS / "AstraSim_head"
    if not binary.exists() or subprocess.run([binary], capture_output=True, check=False).returncode == 127:
        pytest.skip(f"{binary} is absent or does not start")
    seen = {"slot-deadlock": 0, "slot-order": 0, "hangs": 0}
    missed: list[int] = []
    for seed in sweep:
        folder = tmp_path / str(seed)
        folder.mkdir()
        case = of_two_groups(seed)
        found = found_in(made(case, folder))
        outcome = simulate(case, folder, "head", replay_only=False)
        if found & {"slot-deadlock", "rank-circle"}:
            assert outcome.what == "hangs", seed
        if outcome.what == "hangs":
            missed += [] if found & {"slot-deadlock", "slot-order", "rank-circle"} else [seed]
            seen["hangs"] += 1
        for key in found & seen.keys():
            seen[key] += 1
        shutil.rmtree(folder)
    print(f"of {len(sweep)} runs: {seen}, missed {missed}")
    assert len(missed) <= seen["hangs"] / 100
    assert min(seen.values()) > 0
