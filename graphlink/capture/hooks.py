"""Other recorders that are started, stopped and dumped with the window: NCCL's proxy profiler and example plugin,
Flight Recorder, nsys.

None of them is needed. Each says what it did; what one cannot do never stops the recording.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from graphlink.capture.files import put
from graphlink.capture.support import FLIGHT_DUMPS, nccl_hooks, plugin_library
from graphlink.errors import GraphlinkError, UsageError

# of NCCL's example plugin: group 1, collective 2, P2P 4, proxy op 8, proxy step 16, kernel channel 64
EVENT_MASK = 1 | 2 | 4 | 8 | 16 | 64
NCCL_SUCCESS = 0

# Resumed four times, it finds what it will use, starts, stops and dumps into the folder, and says each time what it
# did; with the last it is sent the rank.
Hook: TypeAlias = Generator[str, Any, None]


@dataclass(frozen=True, slots=True)
class Did:
    """``action``: find, start, stop or dump. ``outcome``: what came of it, in words."""

    hook: str
    action: str
    ok: bool
    outcome: str


def _proxy_profiler(folder: Path) -> Hook:
    """Return the hook of NCCL pull request 1210: ``ncclProfilerEnable``, ``ncclProfilerDisable``, ``ncclProfilingDump``
    of the loaded NCCL."""
    path = nccl_hooks()
    if path is None:
        raise GraphlinkError("no loaded NCCL library has ncclProfilerEnable")
    library = ctypes.CDLL(str(path))

    def call(name: str, *arguments: bytes) -> str:
        result = getattr(library, name)(*arguments)
        if result != NCCL_SUCCESS:
            raise GraphlinkError(f"{name} returned {result}")
        return name

    yield str(path)
    yield call("ncclProfilerEnable")
    rank = yield call("ncclProfilerDisable")
    dump = folder / f"nccl_proxy_{rank}.json"
    put(dump, lambda part: call("ncclProfilingDump", os.fsencode(part)))
    yield dump.name


def _example_plugin(folder: Path) -> Hook:
    """Return the hook of NCCL's example profiler plugin: ``exampleProfilerStart`` and ``exampleProfilerStop``; it
    writes when a communicator is destroyed."""
    path = plugin_library()
    if path is None:
        raise GraphlinkError("NCCL_PROFILER_PLUGIN is not set, or names no library that can be found")
    library = ctypes.CDLL(str(path))
    if not hasattr(library, "exampleProfilerStart"):
        raise GraphlinkError(f"{path} has no exampleProfilerStart")
    yield str(path)
    mask = int(os.environ.get("NCCL_PROFILE_EVENT_MASK") or "0", 0) or EVENT_MASK
    files = folder.resolve() / "nccl_plugin"
    library.exampleProfilerStart(ctypes.c_int(mask), ctypes.c_char_p(os.fsencode(files)))
    yield f"exampleProfilerStart({mask}, {files})"
    library.exampleProfilerStop()
    yield "exampleProfilerStop"
    yield f"{files.name}_*.json, when NCCL destroys the communicators"


def _flight_recorder(folder: Path) -> Hook:
    """Return the hook that writes what PyTorch keeps of the last collectives of NCCL, as JSON where it can, else as the
    pickle that it makes."""
    import torch

    module = getattr(torch._C, "_distributed_c10d", None)
    name = next((name for name in FLIGHT_DUMPS if hasattr(module, name)), None)
    if name is None:
        raise GraphlinkError("this PyTorch has no Flight Recorder")
    yield name
    yield "records always"
    entries: bytes = getattr(module, name)()
    rank = yield f"{len(entries):,} bytes"
    if b"profiling_name" in entries:
        dump = folder / f"flight_recorder_{rank}.{'json' if name.endswith('_json') else 'pickle'}"
        put(dump, lambda part: part.write_bytes(entries))
        yield dump.name
    else:
        yield "nothing: it holds no collective"


def _nsys(folder: Path) -> Hook:
    """Return the hook of nsys, which records from ``cudaProfilerStart`` to ``cudaProfilerStop``
    (``--capture-range=cudaProfilerApi``).
    """
    import torch

    if not torch.cuda.is_available():
        raise GraphlinkError("no CUDA device is visible")
    yield "cudaProfilerApi"
    torch.cuda.profiler.start()
    yield "cudaProfilerStart"
    torch.cuda.profiler.stop()
    yield "cudaProfilerStop"
    yield "nsys writes its own file"


HOOKS: dict[str, Callable[[Path], Hook]] = {
    "nccl": _proxy_profiler,
    "plugin": _example_plugin,
    "flight_recorder": _flight_recorder,
    "nsys": _nsys,
}
DEFAULT = ("nccl", "plugin", "flight_recorder")  # not nsys: it and Kineto cannot have CUPTI both


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Raise UsageError where there is no such hook."""
    unknown = [name for name in names if name not in HOOKS]
    if unknown:
        raise UsageError(f"no hook is called {unknown[0]!r}", todo=f"take of {', '.join(HOOKS)}")
    return tuple(names)


def resume(hooks: dict[str, Hook], action: str, rank: int | None = None) -> list[Did]:
    """Have each hook do its next action, and say what came of it. One that fails is taken out of ``hooks``."""
    did = []
    for name, hook in list(hooks.items()):
        try:
            did.append(Did(name, action, True, hook.send(rank)))
        except Exception as error:  # noqa: BLE001, PERF203  whatever a foreign library or its binding does, the recording goes on
            del hooks[name]
            did.append(Did(name, action, False, f"{error}"))
    return did
