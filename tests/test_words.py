"""Docstrings of functions begin with a verb in the imperative: what a function does is the first thing that its reader
learns.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "graphlink"
VERBS = (
    "Account Add Adopt Align Analyse Append Apply Assign Attribute Begin Bound Bring Build Carry Catch Check Choose "
    "Classify Climb "
    "Collect Compare Compile Compute Convert Copy Count Cut Decide Declare Decode Dedent Delay Describe Divide Do Draw Drop "
    "Encode End "
    "Estimate Exclude Explain Fetch Fill Find Fit Flatten Follow Format Gather Give Go Group Guess Have Identify Infer "
    "Join Judge "
    "Keep Lay Leave Let Link List Lock Make Map Mark Match Measure Merge Move Multiply Name Note Number Open Order "
    "Pair Parse Pass "
    "Pause Pickle Place Plan Play Predict Print Put Raise Read Reduce Refuse Remove Renumber Repeat Replace Replay "
    "Report Resolve "
    "Restore Return Run Scale Search Select Send Set Settle Silence Simulate Solve Sort Split Start Strip Sum "
    "Summarise Take Tell "
    "Time Turn Wait Walk Warn Write Yield"
)


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    other = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {words[:40]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "testing" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (words := ast.get_docstring(node))
        if words.split()[0].rstrip(",:;") not in VERBS.split()
    ]
    assert not other, "no verb of VERBS first (a new one may be added): " + "; ".join(other)


def test_verbs_are_sorted() -> None:
    assert VERBS.split() == sorted(set(VERBS.split()))
