"""All that knows ASTRA-sim."""

from __future__ import annotations

from typing import Final

READERS: Final = ("head", "legacy")  # versions of ASTRA-sim: of 2026, of 2024
TOPOLOGIES: Final = ("ring", "switch", "fully-connected")
