"""Training steps that get their batches from a DataLoader: made by the main thread itself, or by workers, which no
recording shows.

All durations come from the seed and the batch alone, so the same steps with other workers are the truth of a what-if.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulator.build import ThreadBuilder
from tests.simulator.program import Await, Host, Program, Signal, Thread

_OWN = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_OF_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


@dataclass(frozen=True, slots=True)
class Loading:
    """``windows`` times the same ``batches``, of ``batch_ns`` each on average (from half to one and a half of it).

    Each step copies its batch to the device, waiting for the copy with ``blocking``, runs ``kernels`` and waits for the
    device at its end: in every step, or with ``blocking`` in the last of the window. ``handing_ns``: what a batch of a
    worker takes to be received.
    """

    seed: int = 0
    batches: int = 6
    batch_ns: int = 2_000_000
    kernels: int = 12
    blocking: bool = False
    workers: int = 0
    prefetch: int = 2
    windows: int = 1
    handing_ns: int = 20_000
    name: str = ""  # of the range around it; "" = as PyTorch names it


def loading_program(what: Loading) -> Program:
    """Return the program: a main thread, and one a worker."""
    main = ThreadBuilder("python", random.Random(what.seed))
    for k in range(what.windows * what.batches):
        with main.op(f"ProfilerStep#{k}", annotation=True):
            _load(main, what, k)
            main.rng = random.Random(f"{what.seed} step {k % what.batches}")
            _compute(main, what, k)
    return Program((main.thread(), *(_worker(what, i) for i in range(what.workers))), seed=what.seed)


def _making_ns(what: Loading, k: int) -> int:
    return round(what.batch_ns * random.Random(f"{what.seed} {k % what.batches}").uniform(0.5, 1.5))


def _load(main: ThreadBuilder, what: Loading, k: int) -> None:
    with main.op(what.name or (_OF_WORKERS if what.workers else _OWN), annotation=True):
        if what.workers:
            main.actions += [Await(f"batch {k}", what.handing_ns), Signal(f"taken {k}")]
            return
        for part in range(3):
            with main.op("aten::stack"):
                main.host(_making_ns(what, k) * (part + 1) // 6)


def _compute(main: ThreadBuilder, what: Loading, k: int) -> None:
    with main.op("aten::to"), main.op("aten::copy_"):
        main.launch(7, main.between(20_000, 200_000), kind="gpu_memcpy", blocking=what.blocking)
    for _ in range(what.kernels):
        with main.op("aten::mm"):
            main.launch(7, main.between(20_000, 200_000))
    if not what.blocking or (k + 1) % what.batches == 0:
        with main.op("aten::item"):
            main.stream_sync(7)


def _worker(what: Loading, index: int) -> Thread:
    builder = ThreadBuilder(f"worker_{index}", random.Random(0))
    for k in range(index, what.windows * what.batches, what.workers):
        if k >= what.workers * what.prefetch:
            builder.actions.append(Await(f"taken {k - what.workers * what.prefetch}", 0))
        builder.actions += [Host(_making_ns(what, k)), Signal(f"batch {k}")]
    return builder.thread()
