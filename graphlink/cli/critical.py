"""``graphlink critical-path``: what holds a rank up, and what would be gained from whom."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from graphlink.cli.numbers import count
from graphlink.cli.out import plain, tell
from graphlink.errors import InputError, UsageError

if TYPE_CHECKING:
    from graphlink.graph.path_file import PathFile

MOST: Final = 100  # gains of a sort that a run keeps
STRETCHES: Final = 10
_NAME: Final = 60  # characters of a name that are shown
_ABOUT: Final = """Gains are recomputed, each as if that thing alone took no time. They are no shares of the path, and never add up."""


def critical_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ABOUT
    parser.add_argument("what", metavar="DIR", help="output folder of an earlier run")
    parser.add_argument(
        "--across",
        action="store_true",
        help="instead: the path over all ranks, from one that waited to the one that came late",
    )
    parser.add_argument("--rank", type=count, metavar="R", help="which rank (default: the one with the longest path)")
    parser.add_argument("--top", type=count, default=20, metavar="N", help=f"gains of each sort to print, at most {MOST} (default 20)")


def critical(arguments: argparse.Namespace) -> int:
    """Prints the path of a rank, or over all ranks; 0.

    Raises:
        InputError: there is no critical path, or none of that rank, or no graphs.
        UsageError: ``--top`` is out of range, or ``--rank`` and ``--across`` are both given.
    """
    if not 1 <= arguments.top <= MOST:
        raise UsageError(f"--top {arguments.top}: from 1 to {MOST}")
    folder = Path(arguments.what)
    if not folder.is_dir():
        raise InputError("is no folder" if folder.exists() else "there is no such folder", path=folder)
    if arguments.across:
        if arguments.rank is not None:
            raise UsageError("--across is over all ranks: leave --rank out")
        from graphlink.cli import across

        found = across.over_ranks(folder)
        tell(arguments.json, found, lambda: across.report(found, arguments.top))
    else:
        _of_a_rank(arguments, folder)
    return 0


def _of_a_rank(arguments: argparse.Namespace, folder: Path) -> None:
    from graphlink.graph import path_file as path

    files = {int(rank): p for p in folder.glob("critical_path.*.json") if (rank := p.name.split(".")[1]).isdecimal()}
    if not files:
        raise InputError("holds no critical_path.<rank>.json", path=folder, todo="name the folder that an earlier run wrote with --out")
    if arguments.rank is not None and arguments.rank not in files:
        some = ", ".join(str(r) for r in sorted(files)[:20])
        raise InputError(f"has no critical path of rank {arguments.rank}: its ranks are {some}", path=folder)
    chosen, others = arguments.rank, ""
    if chosen is None:
        lengths = {rank: path.length_ns(file) for rank, file in sorted(files.items())} if len(files) > 1 else dict.fromkeys(files, 0)
        chosen = max(lengths, key=lambda rank: lengths[rank])
        if len(files) > 1:
            others = "\n\nranks  " + ", ".join(f"{rank}: {ms(ns)} ms" for rank, ns in lengths.items()) + "; --rank chooses"
    file = path.load(files[chosen])
    tell(arguments.json, file, lambda: report(file, arguments.top) + others)


def report(file: PathFile, top: int) -> str:
    """The report of a rank, with ``top`` lines a table."""
    whole, gains = file.length_ns, file.gains
    blocks = [
        [
            f"rank {file.rank}: critical path {ms(whole)} ms, {len(file.nodes.id):,} of {len(file.slack_ns):,} nodes",
            *(f"  {line}" for line in sentences(file)),
            *(f"  Note: {note}." for note in file.notes),
        ],
        _shares(file),
        _table(
            "ops",
            gains.ops_others_at_most_ns,
            [(g.gain_ns, g.on_path_ns, f"{g.share:<13}  {g.id:>8}  {short(g.name)}{_parts(len(g.nodes))}") for g in gains.ops],
            ("share          node      op", top, whole),
        ),
        _table(
            "families (nodes of one name; counted are those with work)",
            gains.families_others_at_most_ns,
            [(g.gain_ns, g.on_path_ns, f"{g.share:<13}  {g.count:>8,}  {short(g.name)}") for g in gains.families],
            ("share             nodes  name", top, whole),
        ),
        _table(
            "sync points (as if the call did not wait)",
            gains.sync_points_others_at_most_ns,
            [
                (
                    g.gain_ns,
                    None,
                    f"{g.id:>8}  {g.call or '(call unknown)'} in {short(g.name)}, for {g.waited_for} {short(g.waited_for_name)}",
                )
                for g in gains.sync_points
            ],
            ("    node  call, and the device op that it waited for", top, whole),
        ),
        _stretches(file),
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def sentences(file: PathFile) -> list[str]:
    """What the path says, in words."""
    import msgspec

    whole = file.length_ns
    if not whole:
        return ["Nothing on it takes any time."]
    share, gain = msgspec.structs.asdict(file.share_ns), msgspec.structs.asdict(file.gains.shares)
    most, best = max(share, key=lambda k: share[k]), max(gain, key=lambda k: gain[k])
    part, saved = percent(share[most], whole), percent(gain[most], whole)
    said = f"Most of the path is {most} ({part})" if 2 * share[most] > whole else f"The largest share of the path is {most} ({part})"
    if 2 * gain[most] < share[most]:
        said += f", but without it the rank would end only {saved} earlier: other work waits right behind."
    else:
        said += f"; without it the rank would end {saved} earlier."
    out = [said]
    if best != most:
        out.append(f"The share that gains most is {best}: {percent(gain[best], whole)}, at {percent(share[best], whole)} of the path.")
    if file.gains.families:
        top = file.gains.families[0]
        out.append(f"The one name that gains most is {short(top.name)} ({top.count:,} nodes with work): {percent(top.gain_ns, whole)}.")
    if file.gains.sync_points:
        sync = file.gains.sync_points[0]
        out.append(f"No single synchronisation holds the rank up by more than {percent(sync.gain_ns, whole)}.")
    else:
        out.append("No synchronisation call alone holds the rank up.")
    return out


def _shares(file: PathFile) -> list[str]:
    import msgspec

    share, gain, whole = msgspec.structs.asdict(file.share_ns), msgspec.structs.asdict(file.gains.shares), file.length_ns
    lines = [f"{'share':<13}  {'on the path':>20}  {'gain if it took no time':>24}"]
    lines += [
        f"{name:<13}  {ms(ns):>11} ms  {percent(ns, whole):>6}  {ms(gain[name]):>15} ms  {percent(gain[name], whole):>6}"
        for name, ns in share.items()
    ]
    return lines


def _table(title: str, others_ns: int, rows: list[tuple[int, int | None, str]], shape: tuple[str, int, int]) -> list[str]:
    head, top, whole = shape
    if not rows:
        return [f"{title}: none gains anything"]
    with_path = rows[0][1] is not None
    lines = [title, f"  {'gain':>11}  {'':>7}  {'on path':>11}  {head}" if with_path else f"  {'gain':>11}  {'':>7}  {head}"]
    for gain, on_path, text in rows[:top]:
        middle = f"{ms(on_path):>11}  " if on_path is not None else ""
        lines.append(f"  {ms(gain):>11}  {percent(gain, whole):>7}  {middle}{text}")
    left = max(others_ns, rows[top][0] if len(rows) > top else 0)
    lines.append(f"  no other gains more than {ms(left)} ms" if left else "  no other gains anything")
    return lines


def _stretches(file: PathFile) -> list[str]:
    """Runs of the path of one share, the longest ones."""
    import numpy as np

    nodes, lines = file.nodes, [f"longest stretches of one share (times of the replay, of {ms(file.length_ns)} ms)"]
    share, cost, name = np.array(nodes.share, np.int64), np.array(nodes.cost_ns, np.int64), np.array(nodes.name, np.int64)
    starts = np.flatnonzero(np.diff(share, prepend=-1))
    if not len(starts):
        return [f"{lines[0]}: none"]
    stops = np.append(starts[1:], len(share))
    end = np.cumsum(cost)
    length = end[stops - 1] - end[starts] + cost[starts]
    for k in np.argsort(-length, kind="stable")[:STRETCHES].tolist():
        low, high = int(starts[k]), int(stops[k])
        codes, place = np.unique(name[low:high], return_inverse=True)
        by_name = np.zeros(len(codes), np.int64)
        np.add.at(by_name, place, cost[low:high])
        main = int(by_name.argmax())
        ids = f"node {nodes.id[low]}" if high - low == 1 else f"nodes {nodes.id[low]} to {nodes.id[high - 1]} ({high - low:,})"
        lines.append(
            f"  {ms(int(length[k])):>11}  {percent(int(length[k]), file.length_ns):>7}  {file.shares[int(share[low])]:<13}  "
            f"from {ms(int(end[low] - cost[low]))}  {ids}, most {short(file.names[int(codes[main])])} {ms(int(by_name[main]))}"
        )
    return lines


def _parts(count: int) -> str:
    return f" ({count} parts)" if count > 1 else ""


def short(text: str) -> str:
    """A name that fits: kernels' names run over hundreds of characters, and differ at both ends."""
    text = plain(text)
    return text if len(text) <= _NAME else f"{text[: _NAME - 20]}...{text[-17:]}"


def ms(ns: int) -> str:
    return f"{ns / 1e6:,.3f}"


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"
