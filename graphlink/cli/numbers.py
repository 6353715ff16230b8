"""Numbers on the command line, for ``argparse``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def count(text: str) -> int:
    """Return a whole number from 0."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0")
    return int(text)


def at_least_one(text: str) -> int:
    """Return a whole number from 1."""
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def between(least: float, most: float, what: str) -> Callable[[str], float]:
    """Return a function that parses a number from ``least`` to below ``most``; ``what`` names it in the error."""

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < most:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}")
        return value

    return number
