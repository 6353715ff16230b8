"""``graphlink critical-path``: what holds a rank or the run up, and what would be gained."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import asdict, replace

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import RUN_DIR, at_least_one, count, flag, rank_files, run_folder
from graphlink.cli.out import tell
from graphlink.errors import InputError, UsageError
from graphlink.figures import Column, column, columns, table
from graphlink.graph import path_file as path
from graphlink.graph.families import PYTHON, family_of
from graphlink.graph.gains import FamilyGain, OpGain
from graphlink.graph.path_file import PathFile
from graphlink.graph.syncpoints import SyncPointGain
from graphlink.output_names import SUMMARY
from graphlink.records import Lines, Table, counted, joined, ms, percent, share_word, shortened
from graphlink.replay.across import AcrossFamily, CriticalAcross, across, share_gains
from graphlink.replay.folder import graph_files, load, load_groups
from graphlink.replay.path_words import family_words, gap_ns, sentences, share_rows, stretches
from graphlink.replay.whatif import told_ranks
from graphlink.report.summary import load as load_summary

STRETCHES: Final = 10
GAINS: Final = ("share", "on the path", "", "gain if it took no time", "")
FEW: Final = 8  # ranks that a line names
_ABOUT: Final = (
    "A gain is what would be saved if that thing alone took no time. It is no share, and gains never add up."
)


CRITICAL_OPTIONS: Final = VerbOptions(
    (
        RUN_DIR,
        flag(
            "--across",
            help="the path over all ranks instead of that of one: where a rank waited, it goes on at the rank that "
            "arrived late",
        ),
        Option(
            "--rank", type=count, metavar="R", help="which rank (default: the one with most of the path over all ranks)"
        ),
        Option(
            "--top",
            type=at_least_one,
            default=20,
            metavar="N",
            help="gains of each sort to print, of the 100 that a run keeps (default 20)",
        ),
    ),
    epilog=_ABOUT,
)


def critical(arguments: argparse.Namespace) -> int:
    """Print the path of a rank, or over all ranks; 0.

    Raises:
        InputError: there is no critical path, or none of that rank, or no graphs; a file cannot be read.
        UsageError: ``--rank`` and ``--across`` are both given, or the folder holds the
            graphs of several runs.
    """
    folder = run_folder(arguments.dir)
    if arguments.across:
        if arguments.rank is not None:
            raise UsageError("--across is over all ranks: leave --rank out")
        files, groups = load(graph_files(folder)), load_groups(folder)
        found = across(files, groups)
        if not found.stuck:
            found = replace(found, gain_ns=share_gains(files, groups))
        tell(arguments.json, found, lambda: report_across(found, arguments.top))
    else:
        _of_a_rank(arguments, folder)
    return 0


def _of_a_rank(arguments: argparse.Namespace, folder: Path) -> None:
    files, first, others = rank_files(folder, "critical_path", None), list[str](), list[str]()
    chosen = next(iter(files)) if arguments.rank is None else arguments.rank
    if chosen not in files:
        some = ", ".join(map(str, [*files][:20]))
        raise InputError(f"has no critical path of rank {chosen}: its ranks are {some}", path=folder)
    if arguments.rank is None and len(files) > 1:
        lengths = {rank: path.length_ns(file) for rank, file in files.items()}
        run = load_summary(folder / SUMMARY).run if (folder / SUMMARY).exists() else None
        over = Counter({int(rank): ns for rank, ns in run.replay.path_rank_ns.items()} if run and run.replay else {})
        chosen = max(lengths, key=lambda rank: (over[rank], lengths[rank]))
        if over[chosen]:
            part = percent(over[chosen], over.total())
            first = [f"Rank {chosen} decides most when the run ends: it has {part} of the path over all ranks.", ""]
        others = [
            "",
            "ranks  " + ", ".join(f"{rank}: {ms(ns)} ms" for rank, ns in lengths.items()) + "; --rank chooses",
            "Each path is of a rank alone, with its waits for others; --across shows what delayed all of them.",
        ]
    file = path.load(files[chosen])
    tell(arguments.json, file, lambda: [*first, *report(file, arguments.top), *others])


def report(file: PathFile, top: int) -> Lines:
    """Return the report of a rank, with ``top`` lines a table."""
    whole, gains = file.length_ns, file.gains
    head = [
        f"rank {file.rank}: critical path {ms(whole)} ms, {len(file.nodes.id):,} of {len(file.slack_ns):,} nodes",
        *(f"  {line}" for line in sentences(file)),
        *(f"  Note: {note}." for note in file.notes),
    ]
    family_names = column("name", "word", [family_words(gain) for gain in gains.families[:top]])
    families = ("on_path_ns", "share", "count", family_names)
    ops = ("on_path_ns", "share", "id", column("op", "word", [_op(gain) for gain in gains.ops[:top]]))
    calls = [_sync(gain) for gain in gains.sync_points[:top]]
    syncs = ("id", column("call, and the device op that it waited for", "word", calls))
    listed = (
        ("ops", OpGain, gains.ops, gains.ops_others_at_most_ns, ops),
        (
            "families (nodes of one name, ops with their parts; counted are those with work)",
            FamilyGain,
            gains.families,
            gains.families_others_at_most_ns,
            families,
        ),
        (
            "sync points (as if the call did not wait)",
            SyncPointGain,
            gains.sync_points,
            gains.sync_points_others_at_most_ns,
            syncs,
        ),
    )
    return joined([head, [_shares(file)], *(_gains(top, whole, *of_sort) for of_sort in listed), _stretches(file)])


def _op(gain: OpGain) -> str:
    about = [
        *([PYTHON] if family_of(gain.name) == PYTHON else []),
        *([f"{len(gain.nodes)} parts"] if len(gain.nodes) > 1 else []),
    ]
    return shortened(gain.name) + (f" ({', '.join(about)})" if about else "")


def _sync(gain: SyncPointGain) -> str:
    call = f"{gain.call or '(call unknown)'} in {shortened(family_of(gain.name))}"
    return f"{call}, for {gain.waited_for} {shortened(gain.waited_for_name)}"


def _shares(file: PathFile) -> Table:
    whole = file.length_ns
    rows = share_rows(asdict(file.share_ns), whole, gap_ns(file, file.nodes.cost_ns), asdict(file.gains.shares))
    return Table([*rows], GAINS, "<>>>>", indent=0)


def _gains(
    top: int, whole: int, title: str, record: type, gains: Sequence[Any], others_ns: int, names: Sequence[str | Column]
) -> Lines:
    """Return a table of gains, with what these ``names`` say of each."""
    if not gains:
        return [f"{title}: none gains anything"]
    share = column("", "part", [(gain.gain_ns, whole) for gain in gains[:top]])
    shown = columns(record, gains[:top], "gain_ns", share, *names)
    left = max(others_ns, gains[top].gain_ns if len(gains) > top else 0)
    return [title, table(shown), f"  no other gains more than {ms(left)} ms" if left else "  no other gains anything"]


def _stretches(file: PathFile) -> Lines:
    """Return the longest runs of the path of one share."""
    title = f"longest stretches of one share (times of the replay, of {ms(file.length_ns)} ms)"
    rows = [
        (
            ms(one.ns),
            percent(one.ns, file.length_ns),
            share_word(one.share),
            f"from {ms(one.from_ns)}",
            (f"node {one.first}" if one.count == 1 else f"nodes {one.first} to {one.last} ({one.count:,})")
            + f", most {shortened(one.most)}{f' before {shortened(one.before)}' * bool(one.before)} {ms(one.most_ns)}",
        )
        for one in stretches(file, STRETCHES)
    ]
    return [title, Table(rows, align=">><<<")] if rows else [f"{title}: none"]


def report_across(found: CriticalAcross, top: int) -> Lines:
    """Return the report of the path over all ranks, with ``top`` lines a table."""
    whole = found.length_ns
    families = found.families[:top]
    share = column("", "part", [(family.ns, whole) for family in families])
    names = column("name", "word", [family_words(family) for family in families])
    return joined(
        [
            _head(found),
            _across_shares(found),
            _ranks(found),
            _hops(found, top),
            [
                "families (nodes of one name, ops with their parts; graphlink replay DIR --scale NAME=0 tells what one "
                "gains)",
                table(columns(AcrossFamily, families, "ns", share, "share", "nodes", names)),
            ],
        ]
    )


def _head(found: CriticalAcross) -> list[str]:
    nodes = f"{len(found.nodes.id):,} of {found.nodes_all:,} nodes"
    lines = [f"{counted(len(found.ranks), 'rank')}: critical path {ms(found.length_ns)} ms, {nodes}"]
    if found.before_ns:
        first = f"{ms(found.before_ns)} ms before the recording of rank {found.nodes.rank[0]} began"
        lines.append(
            f"  The replay of all ranks takes {ms(found.before_ns + found.length_ns)} ms: {first}, then "
            f"{ms(found.length_ns)} ms of path."
        )
    if found.measured_ns is not None:
        error = "" if found.error_pct is None else f", {found.error_pct:+.3f} % (self-consistency)"
        lines.append(f"  Measured over all ranks {ms(found.measured_ns)} ms{error}.")
    return lines + [f"  {line}." for line in (*found.stuck, *(f"Note: {note}" for note in found.notes))]


def _across_shares(found: CriticalAcross) -> Lines:
    """Return the shares of the path over all ranks, beside what all of a sort on all ranks would gain."""
    nodes, whole, gain = found.nodes, found.length_ns, None if found.gain_ns is UNSET else found.gain_ns
    gaps_ns = gap_ns(found, [end - start for start, end in zip(nodes.start_ns, nodes.end_ns, strict=True)])
    rows = share_rows(found.share_ns, whole, gaps_ns, gain)
    return [Table([*rows], GAINS if gain else GAINS[:2], "<>>>>", indent=0)]


def _ranks(found: CriticalAcross) -> Lines:
    rows = [
        (
            f"{rank.rank}",
            f"{ms(rank.ns)} ms",
            percent(rank.ns, found.length_ns),
            f"{rank.nodes:,}",
            ", ".join(f"{share_word(name)} {ms(ns)}" for name, ns in rank.share_ns.items() if ns),
        )
        for rank in sorted(found.ranks, key=lambda r: (-r.ns, r.rank))
        if rank.nodes
    ]
    table = Table(rows, ("rank", "on the path", "", "nodes", "of which"), "<>>><", indent=0)
    off = [rank.rank for rank in found.ranks if not rank.nodes]
    where = told_ranks(off) if len(off) <= FEW else f"the {len(off):,} others"
    return [table, f"nothing of the path runs on {where}"] if off else [table]


def _hops(found: CriticalAcross, top: int) -> Lines:
    if not found.hops:
        return ["the path stays on one rank"]
    rows = [
        (
            ms(hop.waited_ns),
            f"rank {hop.rank} waits in {hop.what} for {shortened(hop.other_name)} ({hop.other_id}) of rank "
            f"{hop.other_rank}; before that {ms(hop.stretch_ns)} ms of path, most in {shortened(hop.most)} "
            f"({ms(hop.most_ns)} ms)",
        )
        for hop in found.hops[:top]
    ]
    left = found.hops[top:]
    more = [f"  ... and {len(left):,} more, none above {ms(left[0].waited_ns)} ms"] if left else []
    return ["where the path changes ranks", Table(rows, ("waited ms", ""), "><"), *more]
