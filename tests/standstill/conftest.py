"""See ``tests/one_clock.py``."""

from tests.one_clock import _one_clock as _one_clock
