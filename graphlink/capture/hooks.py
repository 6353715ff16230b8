"""Other recorders that are started, stopped and dumped with the window: NCCL's proxy profiler and example plugin, Flight Recorder, nsys.

None of them is needed. Each says what it did; what one cannot do never stops the recording.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from graphlink.capture.files import part_of, put
from graphlink.capture.place import Place
from graphlink.capture.support import FLIGHT_DUMPS, nccl_hooks, plugin_library
from graphlink.errors import GraphlinkError, UsageError

# of NCCL's example plugin: group 1, collective 2, P2P 4, proxy op 8, proxy step 16, kernel channel 64
EVENT_MASK = 1 | 2 | 4 | 8 | 16 | 64
NCCL_SUCCESS = 0


class HookError(GraphlinkError):
    """A library refused."""


@dataclass(frozen=True, slots=True)
class Did:
    """``action``: find, start, stop or dump. ``outcome``: what came of it, in words."""

    hook: str
    action: str
    ok: bool
    outcome: str


class Hook(Protocol):
    """``find`` says what the hook will use, or raises ``HookError``; then each of the three once, in this order."""

    def find(self) -> str: ...
    def start(self, folder: Path, place: Place) -> str: ...
    def stop(self) -> str: ...
    def dump(self, folder: Path, place: Place) -> str: ...


class ProxyProfiler:
    """NCCL pull request 1210: ``ncclProfilerEnable``, ``ncclProfilerDisable``, ``ncclProfilingDump`` of the loaded NCCL."""

    def find(self) -> str:
        path = nccl_hooks()
        if path is None:
            raise HookError("no loaded NCCL library has ncclProfilerEnable")
        self._library = ctypes.CDLL(str(path))
        return str(path)

    def start(self, folder: Path, place: Place) -> str:
        return self._call("ncclProfilerEnable")

    def stop(self) -> str:
        return self._call("ncclProfilerDisable")

    def dump(self, folder: Path, place: Place) -> str:
        path = folder / f"nccl_proxy_{place.rank}.json"
        put(path, lambda part: self._call("ncclProfilingDump", os.fsencode(part)))
        return path.name

    def _call(self, name: str, *arguments: bytes) -> str:
        result = getattr(self._library, name)(*arguments)
        if result != NCCL_SUCCESS:
            raise HookError(f"{name} returned {result}")
        return name


class ExamplePlugin:
    """NCCL's example profiler plugin: ``exampleProfilerStart`` and ``exampleProfilerStop``; it writes when a communicator is destroyed."""

    def find(self) -> str:
        path = plugin_library()
        if path is None:
            raise HookError("NCCL_PROFILER_PLUGIN is not set, or names no library that can be found")
        self._library = ctypes.CDLL(str(path))
        if not hasattr(self._library, "exampleProfilerStart"):
            raise HookError(f"{path} has no exampleProfilerStart")
        return str(path)

    def start(self, folder: Path, place: Place) -> str:
        mask = int(os.environ.get("NCCL_PROFILE_EVENT_MASK") or "0", 0) or EVENT_MASK
        self._files = folder.resolve() / "nccl_plugin"
        self._library.exampleProfilerStart(ctypes.c_int(mask), ctypes.c_char_p(os.fsencode(self._files)))
        return f"exampleProfilerStart({mask}, {self._files})"

    def stop(self) -> str:
        self._library.exampleProfilerStop()
        return "exampleProfilerStop"

    def dump(self, folder: Path, place: Place) -> str:
        return f"{self._files.name}_*.json, when NCCL destroys the communicators"


class FlightRecorder:
    """What PyTorch keeps of the last collectives of NCCL, as JSON where it can, else as the pickle that it makes."""

    def find(self) -> str:
        import torch

        module = getattr(torch._C, "_distributed_c10d", None)
        name = next((name for name in FLIGHT_DUMPS if hasattr(module, name)), None)
        if name is None:
            raise HookError("this PyTorch has no Flight Recorder")
        self._dump: Any = getattr(module, name)
        self._json = name.endswith("_json")
        return name

    def start(self, folder: Path, place: Place) -> str:
        return "records always"

    def stop(self) -> str:
        self._bytes: bytes = self._dump()
        return f"{len(self._bytes):,} bytes"

    def dump(self, folder: Path, place: Place) -> str:
        if b"profiling_name" not in self._bytes:
            return "nothing: it holds no collective"
        path = folder / f"flight_recorder_{place.rank}.{'json' if self._json else 'pickle'}"
        if self._json:
            put(path, lambda part: part.write_bytes(self._bytes))
        else:
            part = part_of(path)
            part.write_bytes(self._bytes)
            part.replace(path)
        return path.name


class Nsys:
    """nsys records from ``cudaProfilerStart`` to ``cudaProfilerStop`` (``--capture-range=cudaProfilerApi``)."""

    def find(self) -> str:
        import torch

        if not torch.cuda.is_available():
            raise HookError("no CUDA device is visible")
        return "cudaProfilerApi"

    def start(self, folder: Path, place: Place) -> str:
        import torch

        torch.cuda.profiler.start()
        return "cudaProfilerStart"

    def stop(self) -> str:
        import torch

        torch.cuda.profiler.stop()
        return "cudaProfilerStop"

    def dump(self, folder: Path, place: Place) -> str:
        return "nsys writes its own file"


HOOKS: dict[str, type[Hook]] = {"nccl": ProxyProfiler, "plugin": ExamplePlugin, "flight_recorder": FlightRecorder, "nsys": Nsys}
DEFAULT = ("nccl", "plugin", "flight_recorder")  # not nsys: it and Kineto cannot have CUPTI both


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """UsageError where there is no such hook."""
    unknown = [name for name in names if name not in HOOKS]
    if unknown:
        raise UsageError(f"no hook is called {unknown[0]!r}", todo=f"take of {', '.join(HOOKS)}")
    return tuple(names)


class Hooks:
    """All hooks of a window, one after the other. ``did``: in the order of what happened."""

    def __init__(self, names: Sequence[str]):
        self._hooks: list[tuple[str, Hook]] = [(name, HOOKS[name]()) for name in names]
        self.did: list[Did] = []
        self._started = False

    def start(self, folder: Path, place: Place) -> None:
        self._started = True
        self._each("find", lambda hook: hook.find())
        self._each("start", lambda hook: hook.start(folder, place))

    def stop(self) -> None:
        if self._started:
            self._each("stop", lambda hook: hook.stop())

    def dump(self, folder: Path, place: Place) -> None:
        self._each("dump", lambda hook: hook.dump(folder, place))

    def _each(self, action: str, do: Callable[[Hook], str]) -> None:
        """Of each hook that has not failed yet."""
        did = [_did(name, action, hook, do) for name, hook in self._hooks]
        self._hooks = [hook for hook, done in zip(self._hooks, did, strict=True) if done.ok]
        self.did += did


def _did(name: str, action: str, hook: Hook, do: Callable[[Hook], str]) -> Did:
    try:
        return Did(name, action, True, do(hook))
    except Exception as error:  # noqa: BLE001  whatever a foreign library or its binding does, the recording goes on
        return Did(name, action, False, f"{error}")
