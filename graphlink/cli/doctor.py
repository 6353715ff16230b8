"""``graphlink doctor``: what a recording lacks, what that costs in the graph, and the line that would record it."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.cli.out import plain, tell
from graphlink.errors import InputError, UsageError

if TYPE_CHECKING:
    from graphlink.doctor.diagnose import Given
    from graphlink.doctor.records import Finding
    from graphlink.nccl.read.read import DumpHead

MOST_TOLD: Final = 8  # lines of what else was said of a finding
WIDTH: Final = 8


def doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 the files could be read, 1 they could not, 2 wrong usage; docs/doctor.md lists the findings"
    parser.add_argument(
        "what",
        nargs="*",
        metavar="FILE|DIR",
        help="Kineto traces, execution traces, nsys exports and side files of NCCL, or folders of them, told by content and paired by "
        "rank; of a folder that graphlink wrote, the recordings that it was made from",
    )
    parser.add_argument("--env", action="store_true", help="before recording: what this PyTorch and this environment would not record")


def doctor(arguments: argparse.Namespace) -> int:
    """Prints the findings; 0.

    Raises:
        InputError: there is no such file or folder, it cannot be read, or it is no recording.
        UsageError: nothing to look at was named; files cannot be paired.
    """
    from graphlink.doctor.diagnose import as_file, diagnose
    from graphlink.doctor.environment import Here, environment_lacking
    from graphlink.doctor.records import merged

    if bool(arguments.what) == arguments.env:
        raise UsageError("name recordings, or give --env", todo="graphlink doctor DIR; graphlink doctor --env; see graphlink doctor --help")
    ranks: list[int] = []
    if arguments.env:
        from graphlink.capture.support import support

        here = Here(support(os.environ), os.environ)
        subject, findings = [here.versions], merged(environment_lacking(here))
    else:
        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            subject = arguments.what
            ranks, findings = diagnose(_given(arguments.what, Path(folder)))
    tell(arguments.json, as_file(subject, ranks, findings), lambda: text(subject, ranks, findings))
    return 0


def _given(names: Sequence[str], scratch: Path) -> Given:
    """Folders and files as the main job pairs them. Traces of nsys exports lie in ``scratch`` then."""
    from graphlink.doctor.diagnose import Given
    from graphlink.engine.engines import RunsOn
    from graphlink.run.discover.inputs import by_kind, of_files, of_folders, unfold
    from graphlink.run.discover.nsys import ranks_of
    from graphlink.run.discover.pairing import NOT_RECORDED, WITHOUT_ET
    from graphlink.run.discover.side_files import Paired, pair

    paths = list(dict.fromkeys(path for named in unfold(names) for path in _recordings_of(named)))
    folders = {path: _inside(path) for path in paths if path.is_dir()}
    files = by_kind([path for path in paths if path not in folders])
    searched = [str(path) for path, inside in folders.items() if not inside.hosts and (not inside.dumps or inside.others)]
    parts = [of_folders(searched, None, same_run=True)] if searched else []
    bare = tuple(path for inside in folders.values() for path in inside.hosts)
    if files.devices:  # a single pair is one as given; more are paired by rank
        parts.append(of_files(list(map(str, files.devices)), list(map(str, files.hosts)), None, same_run=True))
    else:
        bare = (*bare, *files.hosts)
    ranks = [one for part in parts for one in part.ranks]
    inside = {dump.path: dump for part in parts for dump in part.dumps} | {d.path: d for found in folders.values() for d in found.dumps}
    paired = pair(list(inside.values()), files.dumps, ranks) if ranks else Paired((), ())
    exports = [*files.exports, *(export for part in parts for export in part.exports)]
    of_exports = ranks_of(exports, None, scratch, RunsOn(None)) if exports else []
    said = [*(text for part in parts for text in (*part.warnings, *part.missing)), *paired.missing]
    return Given(
        ranks=(*paired.ranks, *of_exports),
        bare=bare,
        dumps=tuple(dict.fromkeys([*(dump.path for dump in files.dumps), *inside])),
        found=frozenset(inside),
        passed_over=tuple(text for text in said if not text.startswith(WITHOUT_ET) and not text.endswith(NOT_RECORDED)),
    )


def _recordings_of(path: Path) -> Sequence[Path]:
    """The recordings that a folder of outputs was made from; else ``path`` itself, as where recordings lie beside the outputs.

    Raises:
        InputError: they are gone.
    """
    from graphlink.read import kinds
    from graphlink.read.looks import looks_like
    from graphlink.report import summary
    from graphlink.run.discover.inputs import is_looked_into, own_outputs

    own = own_outputs(path) if path.is_dir() else frozenset()
    if not own:
        return [path]
    others = [file for file in path.iterdir() if file.is_file() and file.name not in own and is_looked_into(file.name)]
    if any(looks_like(file) in (kinds.KINETO.name, kinds.ET.name, kinds.NSYS.name) for file in others):
        return [path]
    inputs = [rank.inputs for rank in summary.load(path / "summary.json").ranks]
    named = dict.fromkeys(name for one in inputs for name in (one.kineto, one.nsys, one.et) if name is not None)
    found = {name: place for name in named for place in (path.parent / name, Path(name)) if place.exists()}
    gone = [name for name in named if name not in found]
    if gone or not named:
        raise InputError(
            "holds what graphlink made, and recordings that it was made from are gone",
            path=path,
            where=", ".join(gone[:MOST_TOLD]) + (f", ... ({len(gone)} in all)" if len(gone) > MOST_TOLD else ""),
            todo="graphlink doctor RECORDINGS, where they are now",
        )
    return [found[name] for name in named]


@dataclass(frozen=True, slots=True)
class _Inside:
    """Side files in a folder, whether there are others that may be recordings, and ``hosts``: its execution traces, where it has no
    recording of a device beside them."""

    dumps: list[DumpHead]
    others: bool
    hosts: list[Path]


def _inside(folder: Path) -> _Inside:
    from graphlink.read.source import unreadable
    from graphlink.run.discover.inputs import is_looked_into
    from graphlink.run.discover.side_files import heads_of, may_be_side_file

    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as problem:
        raise unreadable(folder, problem) from None
    dumps = heads_of([path for path in files if may_be_side_file(path.name)])
    of_dumps = {dump.path for dump in dumps}
    others = [path for path in files if path not in of_dumps and is_looked_into(path.name)]
    return _Inside(dumps, bool(others), _lone_hosts(others))


def _lone_hosts(paths: Sequence[Path]) -> list[Path]:
    from graphlink.read import kinds
    from graphlink.read.looks import looks_like

    hosts = []
    for path in paths:
        kind = looks_like(path)
        if kind in (kinds.KINETO.name, kinds.NSYS.name):
            return []
        if kind == kinds.ET.name:
            hosts.append(path)
    return hosts


def text(names: Sequence[str], ranks: Sequence[int], findings: Sequence[Finding]) -> str:
    """A block a finding: what is lacking, what it costs, what would record it."""
    of = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
    head = f"{plain(of)}: {_ranks(ranks)}: " if ranks else f"{plain(of)}: "
    if not findings:
        return head + "nothing is missing"
    levels = [finding.kind.level.name.lower() for finding in findings]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in dict.fromkeys(levels))
    return head + "\n".join([counts, *(_block(finding, ranks) for finding in findings)])


def _block(finding: Finding, ranks: Sequence[int]) -> str:
    kind = finding.kind
    where = f" ({_ranks(finding.ranks)})" if finding.ranks and tuple(finding.ranks) != tuple(ranks) else ""
    lines = [f"\n{kind.level.name.lower()}: {finding.lacks}{where} [{kind.name}]", f"  {'costs':{WIDTH}}{finding.costs}"]
    if finding.parts:
        lines.append(f"  {'of them':{WIDTH}}{_parts(finding.parts)}")
    lines += [f"  {'said':{WIDTH}}{plain(said)}" for said in finding.told[:MOST_TOLD]]
    if len(finding.told) > MOST_TOLD:
        lines.append(f"  {'':{WIDTH}}... ({len(finding.told)} in all)")
    lines.append(f"  {'record':{WIDTH}}{finding.record}")
    if kind.by_capture:
        lines.append(f"  {'':{WIDTH}}(graphlink.capture does)")
    return "\n".join(lines)


def _parts(parts: dict[str, int]) -> str:
    from graphlink.doctor.records import MOST_PARTS

    listed = ", ".join(f"{count:,} x {plain(name)}" for name, count in list(parts.items())[:MOST_PARTS])
    return listed + (f", ... ({len(parts)} names)" if len(parts) > MOST_PARTS else "")


def _ranks(ranks: Sequence[int]) -> str:
    """``ranks 0-3, 6``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    listed = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
