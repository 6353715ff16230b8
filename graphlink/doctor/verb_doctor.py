"""``graphlink doctor``: what a recording lacks, what that costs in the graph, and the line that would record it."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.capture.support import Support
from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import flag
from graphlink.cli.out import tell
from graphlink.doctor.kinds import ENOUGH, INSPECTOR_BYTES, POOLS
from graphlink.doctor.records import Finding
from graphlink.errors import UsageError
from graphlink.records import Lines, Table, counted, first_few

if TYPE_CHECKING:
    from graphlink.doctor.records import Diagnosis, Told

MOST_TOLD: Final = 8  # lines of what else was reported of a finding
MOST_PARTS: Final = 6  # names that a text lists
_COLL, _P2P, _PROXY_OP, _PROXY_STEP, _KERNEL = 2, 4, 8, 16, 64  # bits of the example plugin's event mask


# By name of the features of ``graphlink.capture.support``.
RECORDERS: Final = ("kineto", "cuspy")  # which of them there are is said first
FEATURES: Final = {
    "torch": "env-no-torch",
    "kineto": "env-no-kineto",
    "execution_trace": "env-no-et",
    "all_threads": "env-no-all-threads",
    "device": "env-no-device",
    "cuda_sync": "env-no-cuda-sync",
    "event_records": "env-no-event-records",
    "cuspy": "env-no-cuspy",
    "process_groups": "env-no-groups",
    "flight_recorder": "env-no-flight-recorder",
    "nccl_proxy": "env-no-nccl-proxy",
    "nccl_plugin": "env-no-nccl-plugin",
}


DOCTOR_OPTIONS: Final = VerbOptions(
    (
        Option(
            "what",
            nargs="*",
            metavar="FILE|DIR",
            help="Kineto traces, execution traces, nsys exports and side files of NCCL, or folders of them, recognised "
            "by content and paired by rank; of a folder that graphlink wrote, the recordings that it was made from",
        ),
        flag(
            "--env",
            help="before recording: what this PyTorch and this environment would not record",
        ),
    ),
    epilog="exit status: 0 the files could be read, 1 they could not, 2 wrong usage; docs/doctor.md lists the findings",
)


def doctor(arguments: argparse.Namespace) -> int:
    """Print the findings; 0.

    Raises:
        InputError: there is no such file or folder, it cannot be read, or it is no recording.
        UsageError: nothing to examine was named; files cannot be paired.
    """
    if bool(arguments.what) == arguments.env:
        raise UsageError(
            "name recordings, or give --env",
            todo="graphlink doctor DIR; graphlink doctor --env; see graphlink doctor --help",
        )
    if arguments.env:
        from graphlink.capture.support import support
        from graphlink.doctor.records import Diagnosis, merged

        here = support(os.environ)
        recorders = [feature.found for feature in here.features if feature.available and feature.name in RECORDERS]
        subject = "; ".join([here.versions_line, *recorders])
        found = Diagnosis(subject=[subject], ranks=[], findings=merged(environment_lacking(here, os.environ)))
    else:
        from graphlink.doctor.diagnose import diagnose, given

        with tempfile.TemporaryDirectory(prefix="graphlink-") as folder:
            found = diagnose(arguments.what, given(arguments.what, Path(folder)))
    tell(arguments.json, found, lambda: text(found))
    return 0


def text(found: Diagnosis) -> Lines:
    """Return a block per finding: what is lacking, what it costs, what would record it."""
    names, ranks, findings = found.subject, found.ranks, found.findings
    head = f"{first_few(names, 3)}: {f'{_ranks(ranks)}: ' if ranks else ''}"
    if not findings:
        return [f"{head}nothing is missing"]
    counts = Counter(finding.level for finding in findings)
    lines = [
        head
        + ", ".join(counted(count, level) if level == "note" else f"{count} {level}" for level, count in counts.items())
    ]
    return [*lines, *(line for finding in findings for line in _block(finding, ranks))]


def _block(finding: Told, ranks: Sequence[int]) -> Lines:
    where = f" ({_ranks(finding.ranks)})" if finding.ranks and finding.ranks != ranks else ""
    rows = [("costs", finding.costs), *([("of them", _parts(finding.parts))] if finding.parts else [])]
    rows += [("said", said) for said in finding.told[:MOST_TOLD]]
    if len(finding.told) > MOST_TOLD:
        rows.append(("", f"... ({len(finding.told)} in all)"))
    rows += [("record", finding.record), *([("", "(graphlink.capture does)")] if finding.by_capture else [])]
    return ["", f"{finding.level}: {finding.lacks}{where} [{finding.name}]", Table(rows)]


def _parts(parts: dict[str, int]) -> str:
    listed = ", ".join(f"{count:,} x {name}" for name, count in list(parts.items())[:MOST_PARTS])
    return listed + (f", ... ({len(parts)} names)" if len(parts) > MOST_PARTS else "")


def _ranks(ranks: Sequence[int]) -> str:
    """Format rank numbers as ``ranks 0-3, 6``."""
    import numpy as np

    runs = np.split(ranks, np.flatnonzero(np.diff(ranks) > 1) + 1)
    listed = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' * (len(ranks) > 1)} {listed}"


def environment_lacking(support: Support, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what a recording made here would lack. Variables of what is not turned on are not looked at."""
    passed_over = () if support.has("device") else ("cuda_sync", "event_records", "cuspy")
    for feature in support.features:
        if feature.name in FEATURES and not feature.available and feature.name not in passed_over:
            yield Finding(FEATURES[feature.name], told=(feature.found,), record=feature.how or "")
    timed = environ.get("TORCH_NCCL_ENABLE_TIMING", "0") not in ("", "0")
    plugin, inspector = bool(environ.get("NCCL_PROFILER_PLUGIN")), environ.get("NCCL_INSPECTOR_ENABLE") == "1"
    mask = _number(environ, "NCCL_PROFILE_EVENT_MASK", 0)
    masked = not mask & (_COLL | _P2P)
    for kind, lacking in (
        ("env-no-nsys", shutil.which("nsys", path=environ.get("PATH")) is None),
        ("env-nccl-mask", plugin and masked),
        ("env-nccl-kernel-events", plugin and not masked and not mask & _KERNEL),
        ("env-nccl-proxy-steps", plugin and not masked and not (mask & _PROXY_OP and mask & _PROXY_STEP)),
        ("env-nccl-dump-file", plugin and not environ.get("NCCL_PROFILE_DUMP_FILE")),
        ("env-inspector-verbose", inspector and environ.get("NCCL_INSPECTOR_DUMP_VERBOSE", "0") != "1"),
        (
            "env-inspector-min-size",
            inspector and _number(environ, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", INSPECTOR_BYTES) > 0,
        ),
        ("env-inspector-kernel-timing", inspector and _number(environ, "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", 1) != 0),
        (
            "env-inspector-interval",
            inspector and _number(environ, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1) < 0,
        ),
        ("env-flight-timing", support.has("device") and support.has("flight_recorder") and not timed),
    ):
        if lacking:
            yield Finding(kind)
    small = [pool for pool in POOLS if _number(environ, f"NCCL_PROFILE_{pool}_POOL_SIZE", 0) < ENOUGH]
    if plugin and small:
        yield Finding("env-nccl-rings", record=" ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in small))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Parse a number as C's ``atoi`` and ``strtol`` of base 0 do; the default where it is no number."""
    try:
        return int(environ.get(name, str(default)), 0)
    except ValueError:
        return default
