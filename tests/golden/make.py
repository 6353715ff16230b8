"""Makes the dumps of ``tests/golden/dumps``: runs the command line on small recordings, and takes outputs as text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from tests.golden.calls import call, working_in
from tests.golden.dumps import readable, shortened
from tests.golden.simulated import SIMULATED

ROOT: Final = Path(__file__).resolve().parents[2]
DUMPS: Final = ROOT / "tests" / "golden" / "dumps"


class Run(NamedTuple):
    """A recording, and the commands by name, in turn. ``other``: a second recording, for commands on two; ``wide``:
    each command on a wide terminal, too."""

    recording: str
    commands: dict[str, str]
    other: str = ""
    wide: bool = True


_ALWAYS: Final = {
    "link": "in -o out",
    "doctor": "doctor in",
    "show": "show out",
    "show-v": "show -v out",
    "show-node": "show out/trace.0.et --node 106",
    "critical-path": "critical-path out",
    "idle": "idle out",
    "advice": "advice out",
    "ops": "ops out",
    "replay": "replay out --scale host=0.5",
    "replay-list": "replay out --list",
    "report": "report out -o report.html --svg charts",
    "check": "check out",
}
_RANKS: Final = {
    "critical-path-across": "critical-path out --across",
    "astra": "astra out -o astra",
    "replay-ranks": "replay out --machine ranks --together",
}
RUNS: Final = {
    "demo": Run(
        "fixtures/demo",
        _ALWAYS
        | {
            "replay-kernel": "replay out --scale kernel=0.5 --launch-cost 2 -v",
            "replay-sync": "replay out --remove-sync all --machine ideal",
            "replay-astra": "replay out --machine astra-sim",
            "replay-file": "replay out/trace.0.et --bandwidth 10",
            "critical-path-across": "critical-path out --across",
            "export": "export out --format csv -o tables",
            "link-all": "link in -o out-all --linked --timeline both --target chakra",
            "link-step": "link in -o out-step --step 2 --host launches --sync cuda --gap-us 5 --no-timeline",
            "ops-whole": "ops out --rank 0 --whole-names --top 3",
            "idle-rank": "idle out --rank 0 --top 3",
        },
    ),
    "ddp": Run(
        "fixtures/real/ddp",
        _ALWAYS
        | _RANKS
        | {
            "job": "link in -o jobs --rank-job --no-timeline",
            "join": "join jobs --comm-time transfer",
            "scale": "scale out -o scaled --data-parallel 8 --jobs 1",
            "replay-buckets": "replay out --buckets 4 --bucket-bandwidth 0.1",
        },
        wide=False,
    ),
    "pipeline": Run(
        "fixtures/real/pipeline",
        _ALWAYS
        | _RANKS
        | {
            "bubbles": "bubbles out",
            "bubbles-schedule": "bubbles out --schedule zb-h1 --input-share 0.5 --compare compared.svg --et schedule",
            "bubbles-gpipe": "bubbles out --schedule gpipe --microbatches 8",
            "scale": "scale out -o scaled --microbatches 8 --jobs 1",
        },
        wide=False,
    ),
    "straggler": Run(
        "fixtures/real/pairs/straggler/1",
        {
            "link": "in -o out --no-timeline",
            "link-gone": "other -o gone --no-timeline",
            "critical-path-across": "critical-path out --across",
            "advice": "advice out",
            "diff": "diff out gone -o diff.html",
            "diff-back": "diff gone out --fail-on 3%",
        },
        "fixtures/real/pairs/straggler-gone/1",
    ),
    "nsys": Run("nsys", _ALWAYS | _RANKS, wide=False),
    "nccl": Run("nccl", _ALWAYS | _RANKS, wide=False),
    "paddle": Run(
        "paddle",
        {
            "link": "link --paddle-logs in -o out",
            "show": "show out",
            "bubbles": "bubbles out",
            "report": "report out -o report.html",
        },
    ),
}
TEXT_ONLY: Final = {"job"}  # takes no --json
ONCE: Final = {"job", "join"}  # cannot be repeated
FORCED: Final = ("in", "link", "other", "astra", "export", "scale")  # write again only so
VERBS: Final = (
    *("link", "join", "show", "replay", "critical-path", "idle", "advice", "ops", "diff"),
    *("report", "bubbles", "export", "check", "doctor", "astra", "scale", "simulate", "mcp"),
)
ERRORS: Final = {
    "nothing": "",
    "no verb": "replya out",
    "no folder": "absent --out out",
    "no option": "idle out --tpo 3",
    "no value": "replay out --scale",
    "late verb": "in idle",
    "not a factor": "replay in --scale kernel=fast",
    "not a number": "ops in --top many",
    "no run": "idle in",
    "no graph": "show in/absent.et",
    "no pair": "link --et in/et_0.json --out out",
    "no trace": "link in/notes.txt --out out",
    "broken trace": "link in/broken.json --out out",
    "broken graph": "check in/broken.et",
    "no format": "export in",
    "wrong machine": "replay in --machine mine",
    "no schedule": "bubbles in --schedule zigzag",
    "no second": "diff in",
    "a URL": "idle s3://bucket/out",
    "json over an input": "link in -o out --json in/kineto_0.json",
    "both quiet and verbose": "link in -q -v",
    "no regex": "link in --range-rule (",
}


CASES: Final = (*RUNS, "help", "errors")


def dumps(case: str, folder: Path, *, whole: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each dump of a case, working in an empty folder; ``whole``: long ones, too."""
    with working_in(folder):
        pairs = _helps() if case == "help" else _errors() if case == "errors" else _run(RUNS[case])
        for name, text in pairs:
            text = text.replace(str(folder.resolve()), "<here>")
            yield f"{name}.txt", text if whole else shortened(text)


def differences(case: str, folder: Path) -> list[str]:
    """Return for each dump of a case that differs from the one in git the first line that does."""
    made = dict(dumps(case, folder))
    kept = {
        file.relative_to(DUMPS / case).as_posix(): file.read_text(encoding="utf-8")
        for file in (DUMPS / case).rglob("*.txt")
    }
    told = []
    for name in sorted(made.keys() | kept.keys()):
        if name not in made or name not in kept:
            told.append(f"{case}/{name}: {'is no longer made' if name in kept else 'is new'}")
        elif made[name] != kept[name]:
            lines = enumerate(zip_longest(kept[name].split("\n"), made[name].split("\n"), fillvalue="(no line)"), 1)
            told.append(next(f"{case}/{name}:{n}\n  was {was}\n  is  {now}" for n, (was, now) in lines if was != now))
    return told


def _run(run: Run) -> Iterator[tuple[str, str]]:
    """Run each command at 80 columns with ``--json``, and where it is asked at 160; then yield what is in the files."""
    _fill(run.recording, Path("in"))
    if run.other:
        _fill(run.other, Path("other"))
    Path("data").mkdir()
    for name, command in run.commands.items():
        words = [*command.split(), *(["--jobs", "1"] if " -o out" in command or name in ("job", "join") else [])]
        data = [] if name in TEXT_ONLY else ["--json", f"data/{name}.json"]
        ran = call([*words, *data], 80)
        if ran.status not in (0, 1, 4):
            raise AssertionError(f"{command}: {ran.text()}")
        yield f"{name}.80", _visible(ran.text())
        if run.wide and name not in ONCE:
            force = ["--force"] if words[0] in FORCED else []
            yield f"{name}.160", _visible(call([*words, *force], 160).text())
    made = sorted(file for file in Path().rglob("*") if file.is_file() and file.parts[0] not in ("in", "other"))
    for file in made:
        yield file.as_posix(), readable(file)


def _fill(recording: str, folder: Path) -> None:
    folder.mkdir()
    if recording in SIMULATED:
        with redirect_stdout(StringIO()):
            SIMULATED[recording](folder)
        return
    for file in (ROOT / recording).iterdir():
        shutil.copyfile(file, folder / file.name)


def _visible(text: str) -> str:
    return text.replace("\x1b", "<esc>")


def _helps() -> Iterator[tuple[str, str]]:
    for verb in VERBS:
        for width in (80, 160):
            yield f"{verb}.{width}", call([verb, "--help"], width).out


def _errors() -> Iterator[tuple[str, str]]:
    _fill("fixtures/demo", Path("in"))
    Path("in/notes.txt").write_text("nothing\n")
    Path("in/broken.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X", ')
    Path("in/broken.et").write_bytes(b"\x05abc")
    told = (f"$ graphlink {command}\n{call(command.split()).text()}" for command in ERRORS.values())
    yield "errors", "\n".join(told)
