"""Numbers and choices on the command line, for ``argparse``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Final

from graphlink.choices import CHOICES, MOST_GB_PER_S


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


gigabytes_per_s: Final = between(1e-6, MOST_GB_PER_S, "bandwidth in GB/s")
latency_ns: Final = between(0, 1e9, "time in ns")


def add_choice(parser: argparse.ArgumentParser | argparse._ArgumentGroup, name: str, help_text: str) -> None:
    """Add an option of ``CHOICES``, without which the first of them holds."""
    words = CHOICES[name]
    parser.add_argument(f"--{name.replace('_', '-')}", choices=words, default=words[0], help=help_text)
