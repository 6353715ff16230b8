"""The grammar of the command line: one entry a verb, options that are promises, and what was probably meant."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from graphlink.cli.parser import SHORT_HELP, parse, parser_of
from graphlink.cli.verbs import VERBS
from graphlink.errors import UsageError
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
ROOT = Path(__file__).parents[2]
JOINING = "--comm-time --keep-unmatched --same-run"
RUNNING = "--jobs --engine -q --quiet -v --verbose"
OPTIONS = {
    "link": f"""--version --et --kineto --nsys --nccl --paddle-logs --nvidia-smi --megatron-log --rank --strict --step --sync
    --hta-limit --gap-us --host --target --range-rule -o --out --name --linked --timeline --no-timeline --force
    --rank-job --resume --partial {JOINING} {RUNNING}""",
    "join": f"--strict --force {JOINING} {RUNNING}",
    "show": "--node -v --verbose",
    "replay": """--advice --machine --rank -v --verbose --list --top --together --runs --scale --remove-sync --bandwidth --launch-cost --what-if
    --cuda-graph --buckets --bucket-bandwidth --dataloader-workers --cores --prefetch-factor""",
    "critical-path": "--across --rank --top",
    "bubbles": "--top --compare --schedule --microbatches --chunks --input-share --memory --weight-memory --et",
    "check": "--groups",
    "idle": "--rank --top",
    "advice": "--rank --top",
    "diff": "--anyway --markdown --fail-on -o --out --top",
    "ops": "--rank --top --whole-names",
    "export": "--format -o --out --rank --table --force",
    "report": "-o --out --png --svg",
    "doctor": "--env",
    "astra": "-o --out --topology --bandwidth --latency --replay-only --force",
    "scale": """-o --out --data-parallel --pipeline --microbatches --layout --bandwidth --latency --seed --no-spread --jobs
    --engine --force""",
    "mcp": "",
    "simulate": "--astra-sim --reader --topology --bandwidth --latency --sweep --timeout --jobs --svg -v --verbose",
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_options_are_these(verb: str) -> None:
    given = {option for action in parser_of(VERBS[verb])._actions for option in action.option_strings}
    assert given == {"-h", "--help", "--json", *OPTIONS[verb].split()}


def test_each_verb_has_a_line_in_the_help_and_a_row_in_the_docs(graphlink: Run) -> None:
    shown = graphlink("--help").out
    page = (ROOT / "docs" / "command-line.md").read_text()
    for verb in VERBS.values():
        assert re.search(rf"^  {verb.name} {re.escape(verb.takes)} +{re.escape(verb.does)}$", shown, re.MULTILINE), (
            verb.name
        )
        assert verb.does in SHORT_HELP
    assert set(re.findall(r"^\| `graphlink ([a-z-]+) ", page, re.MULTILINE)) == set(VERBS)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "link"])
def test_the_help_of_a_verb_names_what_it_takes(graphlink: Run, verb: str) -> None:
    ran = graphlink(verb, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert " ".join(ran.out.split()).startswith(f"usage: graphlink {verb} ")


def test_alone_it_prints_the_short_help_and_is_wrong_usage(graphlink: Run) -> None:
    ran = graphlink()
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("usage: graphlink DIR|FILE ... [options]\n       graphlink VERB DIR [options]\n")
    assert len(re.findall(r"^  graphlink ", ran.err, re.MULTILINE)) == 2  # examples


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("reply", "replay"),
        ("Replay", "replay"),
        ("dotcor", "doctor"),
        ("bubble", "bubbles"),
        ("critical_path", "critical-path"),
        ("criticalpath", "critical-path"),
        ("chek", "check"),
        ("help", "--help"),
        ("version", "--version"),
    ],
)
def test_a_verb_that_does_not_exist_is_asked_for(
    graphlink: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = graphlink(typed, "DIR")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == f"graphlink: {typed}: there is no such verb, file or folder"
    assert f"did you mean {meant}?" in ran.err


def test_what_is_there_and_what_is_like_no_verb_is_no_verb(
    graphlink: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphlink-out").mkdir()
    (tmp_path / "graphlink-out" / "summary.json").write_text(
        '{"graphlink": "0.1.0", "files": []}'
    )  # outputs, which are not in the way yet
    for name in ("tracks", "checkpoints", "run_7/traces"):
        ran = graphlink(name)
        assert (ran.status, "there is no such file or folder" in ran.err) == (1, True)
    (tmp_path / "reply").mkdir()
    assert parse(["reply"]).folder == ["reply"]
    assert parse(["s3://bucket/replay"]).verb == "link"


def test_a_verb_comes_first(graphlink: Run, tmp_path: Path) -> None:
    ran = graphlink(tmp_path, "replay")
    assert (ran.status, ran.out) == (2, "")
    assert f"graphlink replay {tmp_path}" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["traces", "--outt", "out"], "did you mean --out?"),
        (["replay", "--sclae=kernel=2"], "did you mean --scale?"),  # before it is missed that nothing is named
        (["check", "out", "--zzz"], "see graphlink check --help"),
        (["show", "a", "b"], "unrecognized arguments: b"),
        (["replay", "out", "--machine", "idael"], "idael"),
    ],
)
def test_an_option_that_does_not_exist_is_asked_for(graphlink: Run, words: list[str], said: str) -> None:
    ran = graphlink(*words)
    assert (ran.status, ran.out) == (2, "")
    assert said in ran.err
    assert len(ran.err.splitlines()) <= 5


def test_a_value_may_look_like_an_option_where_it_cannot_be_one() -> None:
    assert parse(["replay", "out", "--remove-sync", "--like this"]).remove_sync == ["--like this"]
    assert parse(["traces", "--", "--odd"]).folder == ["traces", "--odd"]


def test_no_verb_but_link_and_join_takes_urls() -> None:
    assert parse(["join", "s3://bucket/out"]).out == "s3://bucket/out"
    for words in (
        ["check", "s3://bucket/out"],
        ["doctor", "s3://bucket/out"],
        ["link", "traces", "--json", "s3://bucket/x.json"],
    ):
        with pytest.raises(UsageError, match="of this machine only"):
            parse(words)
