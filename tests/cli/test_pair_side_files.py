"""Which side files of NCCL are found, of which ranks they are, and how it is said."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from graphlink.errors import InputError
from graphlink.nccl.read.records import Communicator, DumpHead
from graphlink.nccl.side_files import given, pair
from graphlink.read.kinds import DumpKind
from graphlink.run.discover.inputs import of_folders
from graphlink.run.job import Inputs
from tests.cli.conftest import Ran
from tests.tiny_traces import info, kineto

Run = Callable[..., Ran]


def ranks(folder: Path, world: int | None, count: int | None = None, told: bool = True) -> list[Inputs]:
    """Kineto traces whose pids are 100 + rank."""
    numbers = range(count or world or 1)
    return [
        Inputs(
            kineto=kineto(folder / f"k{r}.json", info(r, world) if told else None, pid=100 + r),
            expected_rank=r if told or world else None,
        )
        for r in numbers
    ]


def head(
    name: str,
    *members: tuple[str, int | None],
    rank: int | None = None,
    pid: int | None = None,
    host: str = "",
    sizes: dict[str, int] | None = None,
) -> DumpHead:
    communicators = tuple((Communicator(key, size=(sizes or {}).get(key)), own) for key, own in members)
    return DumpHead(Path(name), DumpKind.PLUGIN, rank, pid, host, communicators)


def paired(given_ranks: Iterable[Inputs], *dumps: DumpHead) -> list[list[str]]:
    """By rank the names of its files; all files are of some."""
    found = pair((), dumps, list(given_ranks))
    assert found.missing == ()
    return [[path.name for path in one.nccl] for one in found.ranks]


def test_the_own_rank_comes_before_the_name_and_that_before_the_process(tmp_path: Path) -> None:
    two = ranks(tmp_path, 2)
    assert paired(two, head("d_rank_1", rank=0, pid=101)) == [["d_rank_1"], []]
    assert paired(two, head("nccl_trace_rank_1", pid=100), head("x_rank0.json", pid=101)) == [
        ["x_rank0.json"],
        ["nccl_trace_rank_1"],
    ]
    assert paired(two, head("rank_1/d.json", pid=100)) == [[], ["d.json"]]
    assert paired(two, head("a", ("7", 0), pid=101)) == [[], ["a"]]


def test_a_process_tells_only_where_no_other_has_its_number(tmp_path: Path) -> None:
    two = ranks(tmp_path, 2)
    found = pair((), [head("a", pid=100, host="n0"), head("b", pid=100, host="n1")], two)
    assert [one.nccl for one in found.ranks] == [(), ()]
    assert found.missing == (
        "left aside, as nothing tells of which rank these side files of NCCL are, or they are of other processes: a, b",
    )
    assert paired(two, head("a", pid=100, host="n0"), head("c", pid=100, host="n0")) == [["a", "c"], []]
    same = [Inputs(kineto=kineto(tmp_path / f"s{r}.json", info(r, 2), pid=5), expected_rank=r) for r in range(2)]
    assert len(pair((), [head("a", pid=5)], same).missing) == 1


def test_a_rank_in_a_communicator_of_all_is_a_global_rank(tmp_path: Path) -> None:
    four = ranks(tmp_path, 4)
    # "9" is seen with all four ranks; "8" says its size; "7" may be half of the run, and "6" is of two
    dumps = [head(f"w{r}", ("9", r)) for r in range(4)]
    assert paired(four, *dumps) == [["w0"], ["w1"], ["w2"], ["w3"]]
    assert paired(four, head("s", ("8", 2), sizes={"8": 4})) == [[], [], ["s"], []]
    assert len(pair((), [head("h", ("7", 0)), head("i", ("7", 1))], four).missing) == 1
    assert len(pair((), [head("t", ("6", 1), sizes={"6": 2})], four).missing) == 1


def test_a_file_of_several_ranks_of_a_process_goes_to_each(tmp_path: Path) -> None:
    one = head("all", *(("9", r) for r in range(4)))
    assert paired(ranks(tmp_path, 4), one) == [["all"]] * 4
    found = pair((), [one], ranks(tmp_path, 4))
    assert [r.members for r in found.ranks] == [(("9", (0, 1, 2, 3)),)] * 4


def test_what_nothing_tells_of_is_that_of_a_single_rank(tmp_path: Path) -> None:
    single = ranks(tmp_path, 4, 1)
    assert paired(single, head("a", ("7", 3)), head("b")) == [["a", "b"]]
    found = pair((), [head("mine", rank=0), head("other", rank=3)], single)
    assert [path.name for path in found.ranks[0].nccl] == ["mine"]
    assert found.missing == (
        "left aside, as no Kineto trace is of the rank and process of these side files of NCCL: other",
    )
    unknown = ranks(tmp_path, None, 1, told=False)  # nothing tells its number
    assert paired(unknown, head("x_rank_3")) == [["x_rank_3"]]


def test_a_file_of_another_process_is_not_joined_but_where_it_says_the_rank(tmp_path: Path) -> None:
    single, two = ranks(tmp_path, 4, 1), ranks(tmp_path, 2)
    assert paired(single, head("own", pid=100)) == [["own"]]
    assert paired(single, head("d_rank_0", pid=777), head("e", rank=0, pid=778)) == [["d_rank_0", "e"]]
    assert len(pair((), [head("other", ("7", 0), pid=101)], single).missing) == 1
    assert len(pair((), [head("w", ("9", 0), pid=777, sizes={"9": 2})], two).missing) == 1  # a rank 0, of another run


def test_the_files_of_all_ranks_tell_the_members_of_a_communicator(tmp_path: Path) -> None:
    dumps = [
        head(f"d_rank_{r}", ("70", r // 2), ("71" if r % 2 else "72", r // 2)) for r in range(4)
    ]  # of "70" ranks are there twice
    dumps.append(head("f_rank_1", ("5", 0), ("6", 0), sizes={"6": 2}))  # others may have been in "5", and were in "6"
    dumps.append(head("g_rank_2", ("4", 1)))
    found = pair((), dumps, ranks(tmp_path, 4))
    assert [dict(one.members) for one in found.ranks] == [
        {"72": (0, 2)},
        {"71": (1, 3)},
        {"72": (0, 2)},
        {"71": (1, 3)},
    ]
    some = pair((), dumps[:3], ranks(tmp_path, 4))
    assert [one.members for one in some.ranks] == [()] * 4  # the file of the last rank may be missing


def plugin(path: Path, rank: int = 0, key: int = 5) -> Path:
    begin = {"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": 1.5}
    arguments = {"CommHash": key, "Rank": rank, "Count": 4, "Datatype": "ncclFloat32", "SeqNum": 0, "nChannels": 1}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "[\n" + ",\n".join(json.dumps(e) for e in ({**begin, "args": arguments}, {**begin, "ph": "e"})) + ",\n{}]"
    )
    return path


def test_side_files_in_a_folder_are_told_by_content(tmp_path: Path) -> None:
    kineto(tmp_path / "kineto_0.json", info(0, 2))
    kineto(tmp_path / "kineto_1.json", info(1, 2))
    (tmp_path / "nccl_trace_rank_1").write_bytes(plugin(tmp_path / "x_rank_0.json").read_bytes())
    (tmp_path / "dump.log.gz").write_bytes(gzip.compress(plugin(tmp_path / "x_rank_0.json").read_bytes()))
    (tmp_path / "README").write_text("none")
    (tmp_path / "notes.txt").write_text("none")
    (tmp_path / "rank_7.json").write_text("[]")
    found = of_folders([str(tmp_path)], None)
    assert [dump.path.name for dump in found.dumps] == ["dump.log.gz", "nccl_trace_rank_1", "x_rank_0.json"]
    assert found.missing == (
        f"left aside, by their beginning neither traces nor side files of NCCL: {tmp_path / 'rank_7.json'}",
    )


def test_of_a_side_file_that_is_cut_the_name_is_told(tmp_path: Path) -> None:
    """A crash cuts what was being written, and packed it cannot even be opened."""
    kineto(tmp_path / "kineto_0.json", info(0, 1))
    packed = gzip.compress(plugin(tmp_path / "x_rank_0.json").read_bytes())
    (tmp_path / "h-pid5.log.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "flight_recorder_0.json").write_text('{"entries":[{"record_id":0,')
    found = of_folders([str(tmp_path)], None)
    assert [dump.path.name for dump in found.dumps] == ["x_rank_0.json"]
    (told,) = found.missing
    assert "flight_recorder_0.json" in told and "h-pid5.log.gz" in told


@pytest.mark.parametrize("beside", [True, False])
def test_they_may_lie_in_a_folder_beside_that_of_the_traces(tmp_path: Path, beside: bool) -> None:
    kineto(tmp_path / "traces" / "kineto_0.json", info(0, 1))
    plugin(tmp_path / "nccl" / "d.json" if beside else tmp_path / "d.json")
    found = of_folders([str(tmp_path)], None)
    assert ([one.kineto.name for one in found.ranks if one.kineto], [dump.path.name for dump in found.dumps]) == (
        ["kineto_0.json"],
        ["d.json"],
    )
    assert found.missing == ()


def test_named_folders_and_files_must_hold_some(tmp_path: Path) -> None:
    one, other = plugin(tmp_path / "in" / "a.json"), plugin(tmp_path / "in" / "b.json")
    (tmp_path / "in" / "c.json").write_text("{}")
    assert [h.path for h in given([tmp_path / "in", one])] == [one, other]
    (tmp_path / "empty").mkdir()
    for path, what in (
        (tmp_path / "empty", "holds no side file of NCCL"),
        (tmp_path / "in" / "c.json", "is no side file of NCCL"),
        (tmp_path / "gone", "there is no such file"),
        (kineto(tmp_path / "k.json"), "is a Kineto trace, not a side file"),
    ):
        with pytest.raises(InputError, match=what):
            given([path])


def test_what_is_of_no_rank_is_a_warning_and_with_strict_an_error(graphlink: Run, traces: Path, tmp_path: Path) -> None:
    plugin(tmp_path / "nccl" / "lost.json")
    command = (traces, "--nccl", tmp_path / "nccl", "--out", tmp_path / "out", "--jobs", "1")
    refused = graphlink(*command, "--strict")
    assert refused.status == 1
    assert "lost.json" in refused.err
    ran = graphlink(*command)
    assert ran.status == 0
    (warning,) = json.loads((tmp_path / "out" / "summary.json").read_text())["warnings"]
    assert warning.endswith("lost.json")


@pytest.mark.parametrize(("flag", "word"), [("--kineto", "--nccl"), ("--et", "--nccl")])
def test_a_side_file_under_the_flag_of_a_trace_is_refused(
    graphlink: Run, traces: Path, tmp_path: Path, flag: str, word: str
) -> None:
    dump = plugin(tmp_path / "d.json")
    names = {"--kineto": traces / "kineto_0.json", "--et": traces / "et_0.json", flag: dump}
    ran = graphlink(*(part for pair in names.items() for part in pair), "--out", tmp_path / "out")
    assert ran.status == 1
    assert f"{dump}: is a side file of NCCL" in ran.err
    assert word in ran.err


@pytest.mark.parametrize("other", [["--nsys", "a.sqlite"], ["--paddle-logs", "logs"]])
def test_side_files_are_for_kineto_traces(graphlink: Run, other: list[str]) -> None:
    assert graphlink(*other, "--nccl", "a.json").status == 2


def test_a_damaged_file_is_an_error_where_it_is_named_and_a_warning_where_it_is_found(
    graphlink: Run, traces: Path, tmp_path: Path
) -> None:
    for path in traces.iterdir():
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    damaged = tmp_path / "run" / "nccl_trace_rank_1"
    damaged.write_bytes(b"\x80\x02cos\nsystem\n(S'touch /tmp/profiling_name'\ntR.")
    ran = graphlink(tmp_path / "run", "--out", tmp_path / "out", "--jobs", "1", "--no-timeline")
    assert ran.status == 0, ran.err
    first, second = json.loads((tmp_path / "out" / "summary.json").read_text())["ranks"]
    assert ("nccl" in first, "nccl" in second) == (False, False)
    assert [text for text in second["warnings"] if text.startswith(f"{damaged} is left out: ")]
    named = graphlink(
        tmp_path / "run", "--nccl", damaged, "--out", tmp_path / "out", "--jobs", "1", "--no-timeline", "--force"
    )
    assert named.status == 3
    assert str(damaged) in named.err
