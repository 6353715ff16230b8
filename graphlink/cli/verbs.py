"""The verbs of ``graphlink``: each is one entry. What is heavy is imported by what runs it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from graphlink.cli.advice import advice, advice_options
from graphlink.cli.astra import astra, astra_options
from graphlink.cli.bubbles import bubbles, bubbles_options
from graphlink.cli.check import check, check_options
from graphlink.cli.critical import critical, critical_options
from graphlink.cli.diff import diff, diff_options
from graphlink.cli.doctor import doctor, doctor_options
from graphlink.cli.export import export, export_options
from graphlink.cli.idle import idle, idle_options
from graphlink.cli.link import join, join_options, link, link_options
from graphlink.cli.ops import ops, ops_options
from graphlink.cli.replay import replay, replay_options
from graphlink.cli.report import report, report_options
from graphlink.cli.scale import scale, scale_options
from graphlink.cli.show import show, show_options
from graphlink.cli.simulate import simulate, simulate_options


@dataclass(frozen=True, slots=True)
class Verb:
    """``graphlink NAME TAKES``. ``does``: a line of help; ``options``: adds those of the verb but ``--json``; ``run``:
    the exit status.

    ``urls``: what it is given may lie on other file systems.
    """

    name: str
    takes: str
    does: str
    options: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    urls: bool = False


_ALL: Final = (
    Verb(
        "link",
        "DIR|FILE ...",
        "link execution and Kineto traces into graphs: the main job, also without the word",
        link_options,
        link,
        urls=True,
    ),
    Verb(
        "join",
        "DIR",
        "join the ranks that link --rank-job left in DIR, and publish their files there",
        join_options,
        join,
        urls=True,
    ),
    Verb(
        "show",
        "DIR|FILE.et",
        "print the summary of an earlier run, or a node of a graph with its edges",
        show_options,
        show,
    ),
    Verb("replay", "DIR|FILE.et", "replay graphs, compare with the recording, ask what if", replay_options, replay),
    Verb(
        "critical-path",
        "DIR",
        "print the critical path of a rank or over all ranks, and what would be gained",
        critical_options,
        critical,
    ),
    Verb("idle", "DIR", "print what each GPU was busy with, and why it was idle", idle_options, idle),
    Verb(
        "advice",
        "DIR",
        "print what would make a run end earlier, with the gain that a replay computes",
        advice_options,
        advice,
    ),
    Verb(
        "ops",
        "DIR",
        "print which operations the device time goes to, and whether they use tensor cores",
        ops_options,
        ops,
    ),
    Verb("diff", "A B", "compare two runs: is the second better, and what was changed", diff_options, diff),
    Verb(
        "report", "DIR", "write a page for the browser: what the other verbs print, with charts", report_options, report
    ),
    Verb(
        "bubbles",
        "DIR",
        "print where the bubbles of a pipeline come from, and what another schedule would give",
        bubbles_options,
        bubbles,
    ),
    Verb("export", "DIR", "write the tables of a run as parquet, arrow or csv files", export_options, export),
    Verb("check", "DIR|FILE.et", "say what ASTRA-sim would make of any Chakra graph", check_options, check),
    Verb(
        "doctor",
        "DIR|FILE ...",
        "say what a recording lacks, what that costs, and how to record it",
        doctor_options,
        doctor,
    ),
    Verb(
        "astra",
        "DIR",
        "write what ASTRA-sim needs beside the graphs, with the network that the run shows",
        astra_options,
        astra,
    ),
    Verb(
        "scale",
        "DIR",
        "make graphs of more ranks from those that were recorded, and predict their time",
        scale_options,
        scale,
    ),
    Verb(
        "simulate",
        "DIR",
        "run an ASTRA-sim that is there, judge it, and compare with recording and replay",
        simulate_options,
        simulate,
    ),
)
VERBS: Final = {verb.name: verb for verb in _ALL}
