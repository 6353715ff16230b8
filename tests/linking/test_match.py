from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from graphlink.errors import InputError
from graphlink.linking.match import match_hosts
from graphlink.linking.provenance import is_op
from graphlink.model import NOWHERE, HostMatch, HostTrace, ProcessGroup, Trace
from tests.build import Host, Node, build_et, build_trace

YEAR_2024_US = 1_716_000_000_000_000


def pairs(trace: Trace, et: HostTrace, match: HostMatch) -> dict[str, int]:
    """Name of each matched Kineto row and its order -> rf_id of its ET node."""
    return {
        f"{trace.strings[trace.host.name[row]]}@{trace.host.order[row]}": int(et.rf_id[node])
        for row, node in enumerate(match.et)
        if node != NOWHERE
    }


def hosts(names: Iterable[str], tid: int = 1, first_order: int = 0, with_ids: bool = False) -> list[Host]:
    """Rows of 1 us, one after another; ids from 1."""
    return [
        Host(name, i, i + 1, tid, order=first_order + i, rf_id=i + 1 if with_ids else 0) for i, name in enumerate(names)
    ]


def nodes(names: Iterable[str], tid: int = 1, first_id: int = 1) -> list[Node]:
    return [Node(name, first_id + i, tid) for i, name in enumerate(names)]


def test_without_an_et_nothing_is_matched() -> None:
    match = match_hosts(build_trace(hosts("aab")), None)
    assert (match.method, match.et.tolist()) == ("kineto", [NOWHERE] * 3)
    assert match.only_kineto == {"a": 2, "b": 1}


def test_ids_match_rows_of_equal_names() -> None:
    trace, et = build_trace(hosts("abc", with_ids=True)), build_et(nodes("abc"))
    match = match_hosts(trace, et)
    assert match.method == "rf_id"
    assert pairs(trace, et, match) == {"a@0": 1, "b@1": 2, "c@2": 3}
    assert (match.only_kineto, match.only_et, match.warnings) == ({}, {}, ())


def test_a_constant_id_means_that_there_are_none() -> None:
    rows = [row._replace(rf_id=5) for row in hosts("abc")]
    assert match_hosts(build_trace(rows), build_et(nodes("abc"))).method == "order"


def test_an_et_without_ids_is_matched_by_order() -> None:
    trace = build_trace(hosts("abcb", with_ids=True))
    et = build_et(Node(name, 0, id=7 + k) for k, name in enumerate("abcbd"))
    match = match_hosts(trace, et)
    assert match.method == "order"
    assert [int(et.id[node]) for node in match.et] == [7, 8, 9, 10]
    assert match.only_et == {"d": 1}, "the root is no op"


@pytest.mark.parametrize("lacking", ["kineto", "et", "both"])
def test_what_has_no_id_is_matched_by_order_between_those_that_have(lacking: str) -> None:
    rows, ops = hosts("aabaabca", with_ids=True), nodes("aabaabca")
    if lacking != "et":
        rows = [row._replace(rf_id=0 if k in (0, 1, 4) else row.rf_id) for k, row in enumerate(rows)]
    if lacking != "kineto":
        ops = [op._replace(rf_id=0 if k in (4, 7) else op.rf_id, id=10 + k) for k, op in enumerate(ops)]
    trace, et = build_trace(rows), build_et(ops)
    match = match_hosts(trace, et)
    began = sorted(np.flatnonzero(is_op(et)).tolist(), key=et.id.__getitem__)
    assert (match.method, match.only_kineto, match.only_et) == ("rf_id", {}, {})
    assert [match.et.tolist()[row] for row in trace.host.order.argsort()] == began
    assert any("no record-function id: matched by order" in text for text in match.warnings)


def test_few_ids_of_another_name_stay_unmatched() -> None:
    trace, et = build_trace(hosts("abcdefgX", with_ids=True)), build_et(nodes("abcdefgh"))
    match = match_hosts(trace, et)
    assert "X@7" not in pairs(trace, et, match)
    assert (match.only_kineto, match.only_et) == ({"X": 1}, {"h": 1})
    assert any("another name" in w for w in match.warnings)


def test_many_ids_of_another_name_are_two_runs() -> None:
    rows = hosts("abcdefgh", with_ids=True)
    with pytest.raises(InputError, match="two runs: 8 ids are in both, but only 4") as error:
        match_hosts(build_trace(rows, pid=7), build_et(nodes("abcdWXYZ"), pid=8))
    assert "id 5 is 'W' in the ET, 'e' in Kineto; pid (ET 8, Kineto 7)" in str(error.value)


def test_threads_pair_by_what_they_hold_and_rows_by_order_not_time() -> None:
    main = [Host("a", 5, 6, 70, order=10), Host("b", 5, 6, 70, order=9), Host("c", 7, 8, 70, order=12)]
    other = hosts("cab", tid=80, first_order=0)
    trace, et = build_trace([*main, *other]), build_et([*nodes("bac", tid=2, first_id=10), *nodes("cab", tid=1)])
    match = match_hosts(trace, et)
    assert match.method == "order"
    assert pairs(trace, et, match) == {"b@9": 10, "a@10": 11, "c@12": 12, "c@0": 1, "a@1": 2, "b@2": 3}


def test_names_of_one_side_are_dropped_and_counted() -> None:
    trace = build_trace(hosts(["ProfilerStep#1", "a", "b"]))
    et = build_et(nodes(["## process_group:init ##", "a", "b"]))
    match = match_hosts(trace, et)
    assert pairs(trace, et, match) == {"a@1": 2, "b@2": 3}
    assert match.only_kineto == {"ProfilerStep#1": 1}
    assert match.only_et == {"## process_group:init ##": 1}
    assert match.warnings == ()


@pytest.mark.parametrize(("sizes", "asked"), [(True, [5, 2, 7]), (False, [2, 5, 7])])
def test_what_a_thread_of_gloos_ran_is_matched_by_name_sizes_and_turn(sizes: bool, asked: list[int]) -> None:
    """The ET has it on the thread that asked, in the place where it did."""
    ops = ["c10d::allreduce_", "gloo:all_reduce"]
    names = [*ops, "a", *ops, *ops, "b", "gloo:broadcast", "gloo:broadcast"]
    inputs = {2: "[[8]]", 5: "[[64]]", 7: "[[8]]", 9: "[[8]]", 10: "[[8]]"}
    et = build_et(node._replace(shapes=inputs.get(node.rf_id, "")) for node in nodes(names))
    ran = [("all_reduce", "[[64]]"), ("all_reduce", "[[8]]"), ("all_reduce", "[ [8]]"), ("broadcast", "[[8]]")]
    rows = [
        Host(f"gloo:{kind}", k, k + 2, 8 + k % 2, order=100 + k, shapes=shapes if sizes else "")
        for k, (kind, shapes) in enumerate(ran)
    ]
    trace = build_trace([*hosts(name for name in names if "gloo" not in name), *rows])
    match = match_hosts(trace, et)
    found = pairs(trace, et, match)
    assert [found.pop(f"gloo:all_reduce@{100 + k}") for k in range(3)] == asked
    assert sorted(found.values()) == [1, 3, 4, 6, 8]
    assert (match.only_kineto, match.only_et) == ({"gloo:broadcast": 1}, {"gloo:broadcast": 2}), "which is not known"


def test_a_row_of_gloos_on_the_thread_that_asked_is_matched() -> None:
    trace = build_trace(hosts(["c10d::recv_", "gloo:recv", "a"]))
    et = build_et(nodes(["c10d::recv_", "gloo:recv", "a"]))
    assert pairs(trace, et, match_hosts(trace, et)) == {"c10d::recv_@0": 1, "gloo:recv@1": 2, "a@2": 3}


def test_an_et_of_one_iteration_goes_where_the_sequence_numbers_agree() -> None:
    step = ["fw", "bw", "opt"]
    rows = [row._replace(seq_id=i // 3) if i % 3 == 0 else row for i, row in enumerate(hosts(step * 5))]
    trace = build_trace(rows)
    et = build_et([node._replace(seq_id=2) if node.name == "fw" else node for node in nodes(step)])
    match = match_hosts(trace, et)
    assert pairs(trace, et, match) == {"fw@6": 1, "bw@7": 2, "opt@8": 3}
    assert match.warnings == ("the ET covers 3 of 15 Kineto host rows: fewer iterations or a shorter window",)


@pytest.mark.parametrize(
    ("missing", "note"),
    [
        (
            {3, 4},
            "2 host rows between others are not in the ET: PyTorch writes no node of an op that an exception ended",
        ),
        ({3, 4, 7}, "3 host rows between others"),  # of two ops
        ({3, 4, 5}, "the ET covers 5 of 8 Kineto host rows: fewer iterations or a shorter window"),
    ],
)
def test_ops_that_an_exception_ended_have_no_node_in_the_et(missing: set[int], note: str) -> None:
    spans = [(0, 5), (1, 4), (10, 15), (20, 25), (21, 24), (30, 35), (40, 45), (50, 55)]
    rows = [Host("ab"[i in (1, 4)], *span, rf_id=i + 1, order=i) for i, span in enumerate(spans)]
    trace = build_trace(rows)
    et = build_et([Node("ab"[i in (1, 4)], i + 1) for i in range(8) if i not in missing])
    (warning,) = match_hosts(trace, et).warnings
    assert warning.startswith(note)


def test_an_et_that_fits_in_several_places_says_so() -> None:
    step = [f"op{i}" for i in range(20)]
    trace = build_trace(hosts(step * 2))
    match = match_hosts(trace, build_et(nodes(step)))
    assert len(match.only_kineto) == 20
    assert any("several places" in w for w in match.warnings)


def test_a_kineto_window_inside_the_et_is_matched() -> None:
    trace, et = build_trace(hosts("cde")), build_et(nodes("abcdecf"))
    match = match_hosts(trace, et)
    assert pairs(trace, et, match) == {"c@0": 3, "d@1": 4, "e@2": 5}
    assert any("are not in the Kineto trace's window" in w for w in match.warnings)


def test_another_order_is_refused_with_the_first_mismatch() -> None:
    with pytest.raises(InputError, match="position 2: ET has 'd', Kineto 'c'"):
        match_hosts(build_trace(hosts("abcd", tid=9)), build_et(nodes("abdc")))


def test_a_kineto_trace_of_one_thread_of_several_is_no_other_run() -> None:
    trace = build_trace(hosts("abcab", tid=9))
    et = build_et([*nodes("abcab"), *nodes("aaabbb", tid=2, first_id=10), *nodes("cccab", tid=3, first_id=20)])
    match = match_hosts(trace, et)
    assert sorted(pairs(trace, et, match).values()) == [1, 2, 3, 4, 5]
    assert any("11 of 16 ET nodes are not in the Kineto trace's window" in warning for warning in match.warnings)


def test_nothing_in_common_is_refused() -> None:
    with pytest.raises(InputError, match="no host operator"):
        match_hosts(build_trace(hosts("abc")), build_et(nodes("xyz")))


@pytest.mark.parametrize(
    ("of_kineto", "of_et"), [((), (7,)), ((3, 17, 18), ()), ((2, 30), (0, 11, 39)), ((12,), (13,))]
)
def test_rows_that_one_side_lacks_stay_alone(of_kineto: tuple[int, ...], of_et: tuple[int, ...]) -> None:
    """No two neighbours of those are of one name: which of two is lost nobody knows."""
    names = [f"op{k * k % 11}" for k in range(40)]
    kineto = [k for k in range(40) if k not in of_kineto]
    in_et = [k for k in range(40) if k not in of_et]
    trace, et = build_trace(hosts(names[k] for k in kineto)), build_et(nodes(names[k] for k in in_et))
    match = match_hosts(trace, et)
    assert match.method == "order"
    both = set(kineto) & set(in_et)
    assert pairs(trace, et, match) == {f"{names[k]}@{kineto.index(k)}": 1 + in_et.index(k) for k in both}
    assert sum(match.only_kineto.values()) == len(of_et)
    assert sum(match.only_et.values()) == len(of_kineto)
    said = f"has {len(of_kineto)} nodes that thread 1 lacks, and lacks {len(of_et)} of its rows"
    assert any(said in warning for warning in match.warnings)


def test_a_thread_goes_with_the_one_that_lacks_fewest_of_its_rows() -> None:
    names = [f"op{k * k % 11}" for k in range(40)]
    trace = build_trace([*hosts([*names[3:], *names[:6]], tid=7), *hosts(names[1:], tid=8, first_order=100)])
    match = match_hosts(trace, build_et(nodes([*names[:9], *names[10:]])))
    assert any("that thread 8 lacks" in warning for warning in match.warnings)


def test_threads_that_lack_many_rows_of_each_other_are_of_two_runs() -> None:
    names = [f"op{k * k % 11}" for k in range(40)]
    with pytest.raises(InputError, match="only 0 of 30 ET nodes are in the Kineto trace in the same order"):
        match_hosts(build_trace(hosts(names[::2] + names)), build_et(nodes(names[5:35:2] + names[1:30:2])))


def test_a_small_thread_that_fits_nowhere_is_left_and_named() -> None:
    trace = build_trace([*hosts("abcabc", tid=70), *hosts("ab", tid=80)])
    match = match_hosts(trace, build_et([*nodes("abcabc"), *nodes("ba", tid=3, first_id=50)]))
    assert match.only_et == {"b": 1, "a": 1}
    assert any("1 ET thread (2 nodes) without a Kineto thread that fits" in w for w in match.warnings)


def test_names_compare_as_the_newest_writer_spells_them() -> None:
    assert match_hosts(build_trace(hosts(["a/b c"])), build_et(nodes(["a\\b\n c"]))).only_kineto == {}


def test_what_differs_of_the_run_is_a_warning() -> None:
    rows = [
        row._replace(start=row.start + YEAR_2024_US, end=row.end + YEAR_2024_US) for row in hosts("ab", with_ids=True)
    ]
    trace = build_trace(rows, pid=1, process_groups=(ProcessGroup("0", size=2),))
    same = build_et(nodes("ab"), pid=1, recorded_at="2024-05-17 22:40:00", process_groups=(ProcessGroup("0", size=2),))
    assert match_hosts(trace, same).warnings == ()
    other = build_et(nodes("ab"), pid=2, recorded_at="2024-04-17 02:40:00", process_groups=(ProcessGroup("0", size=1),))
    text = "\n".join(match_hosts(trace, other).warnings)
    assert "pid (ET 2, Kineto 1)" in text
    assert "date (ET 2024-04-17, Kineto 2024-05-18)" in text
    assert "size of process group '0' (ET 1, Kineto 2)" in text
