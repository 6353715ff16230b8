"""``graphlink critical-path --across``: the path over all ranks of a run, from its graphs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from graphlink.cli.critical import ms, percent, short
from graphlink.cli.out import plain

if TYPE_CHECKING:
    from graphlink.replay.across import CriticalAcross


def over_ranks(folder: Path) -> CriticalAcross:
    """Return the path over the ranks whose graphs a folder holds.

    Raises:
        InputError: the folder holds no graphs, or one cannot be read.
        UsageError: it holds the graphs of several runs.
    """
    from graphlink.replay.across import across
    from graphlink.replay.folder import graph_files, load, load_groups

    return across(load(graph_files(folder)), load_groups(folder))


def report(found: CriticalAcross, top: int) -> str:
    """The report, with ``top`` lines a table."""
    blocks = [_head(found), _shares(found), _ranks(found), _hops(found, top), _families(found, top)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(found: CriticalAcross) -> list[str]:
    count, nodes = len(found.ranks), f"{len(found.nodes.id):,} of {found.nodes_all:,} nodes"
    lines = [f"{count} rank{'s' * (count != 1)}: critical path {ms(found.length_ns)} ms, {nodes}"]
    if found.before_ns:
        lines.append(f"  It begins on rank {found.nodes.rank[0]}, whose recording began {ms(found.before_ns)} ms after the first.")
    if found.measured_ns is not None:
        error = "" if found.error_pct is None else f", {found.error_pct:+.3f} % (self-consistency)"
        lines.append(f"  Measured over all ranks {ms(found.measured_ns)} ms{error}.")
    return lines + [f"  {plain(line)}." for line in (*found.stuck, *(f"Note: {note}" for note in found.notes))]


def _shares(found: CriticalAcross) -> list[str]:
    lines = [f"{'share':<13}  {'on the path':>20}"]
    return lines + [f"{name:<13}  {ms(ns):>11} ms  {percent(ns, found.length_ns):>6}" for name, ns in found.share_ns.items()]


def _ranks(found: CriticalAcross) -> list[str]:
    lines = [f"{'rank':<13}  {'on the path':>20}  {'nodes':>9}  of which"]
    for rank in sorted(found.ranks, key=lambda r: (-r.ns, r.rank)):
        parts = ", ".join(f"{name} {ms(ns)}" for name, ns in rank.share_ns.items() if ns)
        if rank.nodes:
            lines.append(f"{rank.rank:<13}  {ms(rank.ns):>11} ms  {percent(rank.ns, found.length_ns):>6}  {rank.nodes:>9,}  {parts}")
    off = sum(not rank.nodes for rank in found.ranks)
    return [*lines, f"nothing of the path runs on the {off} other{'s' * (off > 1)}"] if off else lines


def _hops(found: CriticalAcross, top: int) -> list[str]:
    if not found.hops:
        return ["the path stays on one rank"]
    lines = ["where the path changes ranks (how long the one rank waited for the other)"]
    for hop in found.hops[:top]:
        late = f"{short(hop.other_name)} ({hop.other_id})"
        before = f"before that {ms(hop.stretch_ns)} ms of path, most in {short(hop.most)} ({ms(hop.most_ns)} ms)"
        lines.append(f"  {ms(hop.waited_ns):>11}  rank {hop.rank} waits in {hop.what} for {late} of rank {hop.other_rank}; {before}")
    left = found.hops[top:]
    return [*lines, f"  ... and {len(left):,} more, none above {ms(left[0].waited_ns)} ms"] if left else lines


def _families(found: CriticalAcross, top: int) -> list[str]:
    whole = found.length_ns
    head = ["families (nodes of one name)", f"  {'on path':>11}  {'':>7}  {'share':<13}  {'nodes':>8}  name"]
    return head + [
        f"  {ms(f.ns):>11}  {percent(f.ns, whole):>7}  {f.share:<13}  {f.nodes:>8,}  {short(f.name)}" for f in found.families[:top]
    ]
