"""The values that options may have, in commands, in the library and in files. Every command loads this, so it imports
nothing that takes long.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

ASTRA_SIM: Final = "astra-sim"  # a target, and a machine
CHAKRA: Final = "chakra"
FOLDED: Final = "launches"  # of ``--host``, and of the graph's ``host`` attribute
CHOICES: Final[dict[str, tuple[str, ...]]] = {  # of options that have one of these values; without a value the first
    "sync": ("both", "hta", "cuda"),
    "target": (ASTRA_SIM, CHAKRA),
    "host": ("full", FOLDED),
    "timeline": ("recorded", "both", "none"),
    "comm_time": ("recorded", "transfer"),
    "engine": ("pool", "ray"),
}
LATENCY_NS: Final = 20_000  # a launch, a call or the start of an op that takes longer waited for something
HTA_LIMIT: Final = 2_000_000  # events of a window
FORMATS: Final = ("parquet", "arrow", "csv")
IDEAL: Final = "ideal"
RANKS: Final = "ranks"
COUPLED: Final = "coupled"
MACHINES: Final = (IDEAL, ASTRA_SIM, RANKS, COUPLED)
JOINED: Final = (RANKS, COUPLED)  # replay all ranks at once
Sort = Literal["host", "gap", "kernel", "comm", "copy", "delay"]  # of nodes, as ``replay.workload.Work`` names them
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
MOST_GB_PER_S: Final = 1e9
MOST_US: Final = 1e9
