"""The communicator groups file of ASTRA-sim, ``{"1": [0, 1], "2": [2, 3]}``: keys are positive decimals, values global
ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from graphlink.astra.check_rules import Findings
from graphlink.errors import InputError

Groups = dict[int, tuple[int, ...]]  # usable ones by id, members as listed

HIGHEST_KEY: Final = 499


def read_groups(path: Path, findings: Findings) -> Groups:
    """Return the groups of the file at ``path``; keys and lists that ASTRA-sim cannot use are findings and left out.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise InputError(f"cannot be read: {problem.strerror}", path=path) from None
    if "empty" in str(path):
        findings.add("groups-path", 1, [str(path)])
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        findings.add("groups-file", 1, [f"{path.name}: no JSON: {problem}"])
        return {}
    if not isinstance(document, dict):
        findings.add("groups-file", 1, [f"{path.name}: no object of groups"])
        return {}
    groups = {}
    for key, ranks in document.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 19 and int(key) > 0):
            findings.add("groups-key", 1, [f'"{key[:40]}"'])
        elif not (isinstance(ranks, list) and ranks and all(type(r) is int and r >= 0 for r in ranks)):
            findings.add("groups-file", 1, [f'group "{key}": no list of ranks'])
        else:
            findings.add("groups-high", int(key) > HIGHEST_KEY, [f'"{key}"'])
            groups[int(key)] = tuple(ranks)
    return groups
