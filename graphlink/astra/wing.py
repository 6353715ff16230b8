"""All that knows ASTRA-sim: its rules, its input files, its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from graphlink.wings import Made, Verb, Wing


class Hooks(Wing):
    verbs = (
        Verb(
            130,
            "check",
            "DIR|FILE.et",
            "say what ASTRA-sim would make of any Chakra graph",
            "astra.verb_check:check",
            tells=("check",),
        ),
        Verb(
            150,
            "astra",
            "DIR",
            "write what ASTRA-sim needs beside the graphs, with the network that the run shows",
            "astra.verb_astra:astra",
        ),
        Verb(
            170,
            "simulate",
            "DIR",
            "run an ASTRA-sim that is there, judge it, and compare with recording and replay",
            "astra.verb_simulate:simulate",
        ),
    )
    schemas = {"check": "check_rules:Judged", "astra": "files:Prepared", "simulate": "simulate:Simulated"}

    def of_graphs(self, found: Sequence[Path], own: Mapping[int, Path]) -> Made:
        if not found:
            return Made()
        from graphlink.astra.compare import compare

        compared, warnings = compare(found, own)
        return Made({"compared": compared}, tuple(warnings))
