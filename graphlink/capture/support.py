"""Features that this PyTorch, this CUDA and this environment can record; what is missing, and how to get it.

Told by what is there (names, arguments, environment), not by version numbers, but where a fault of a version cannot be
seen otherwise. Nothing is started, and no CUDA context is made.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLDEST = (2, 3)  # PyTorch that records ET and Kineto together
UNRESOLVED_SINCE = (12, 9)  # CUDA from which on Kineto does not collect event records (kineto pull request 1552)
NSYS_SESSION = "NSYS_PROFILING_SESSION_ID"  # set by nsys in the programs that it runs
FLIGHT_BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # newer name first
FLIGHT_DUMPS = (
    "_dump_fr_trace_json",
    "_dump_nccl_trace_json",
    "_dump_nccl_trace",
)  # JSON where there is; the last gives a pickle


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that can be recorded or not. ``how``: the line that would record it, None where it is available or out
    of reach.
    """

    name: str
    available: bool
    gives: str  # to the graph
    found: str  # here: a version, a setting, or what is missing
    how: str | None = None


@dataclass(frozen=True, slots=True)
class Support:
    """``versions``: name to version, of what is installed."""

    versions: dict[str, str]
    features: tuple[Feature, ...]

    @property
    def versions_line(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())

    def has(self, name: str) -> bool:
        """Tell whether the feature is available."""
        return any(feature.available for feature in self.features if feature.name == name)


def version_of(text: str | None) -> tuple[int, int]:
    """Return major and minor of ``2.13.0+cpu``; (0, 0) where there is none."""
    parts = [part for part in (text or "").split("+")[0].split(".")[:2] if part.isdigit()]
    return (int(parts[0]), int(parts[1])) if len(parts) == 2 else (0, 0)


def support(environ: Mapping[str, str] = os.environ) -> Support:
    """Return all features in the order in which they are listed. Imports PyTorch where it is installed."""
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    if importlib.util.find_spec("torch") is None:
        missing = Feature(
            "torch",
            False,
            "the recording: execution trace and Kineto trace",
            "PyTorch is not installed",
            "pip install '.[capture]' in a clone of graphlink",
        )
        return Support(versions, (missing,))
    import torch

    versions["torch"] = str(torch.__version__)
    for name, version in (("cuda", torch.version.cuda), ("rocm", getattr(torch.version, "hip", None))):
        if version:
            versions[name] = str(version)
    return Support(versions, (*_recorder(torch), *_device(torch), *_communication(torch, environ)))


def config_fields(torch: Any) -> frozenset[str]:
    """Return the arguments that ``_ExperimentalConfig`` of this PyTorch takes, read from the signature in its docstring
    (it is a C++ type)."""
    config = getattr(torch._C._profiler, "_ExperimentalConfig", None)
    words = (
        (config.__init__.__doc__ or "").split(") ->")[0].replace("(", " ").replace(",", " ").split() if config else []
    )
    return frozenset(word.removesuffix(":") for word in words if word.endswith(":"))


def mapped_libraries(*starts: str) -> list[Path]:
    """Return the shared libraries that this process has loaded, of which the file name begins so (Linux; elsewhere
    none).
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5] for line in maps.read_text(errors="replace").splitlines() if line.count("/")}
    return sorted(Path(path) for path in paths if path.startswith("/") and Path(path).name.startswith(starts))


def plugin_library(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Find the profiler plugin that NCCL has loaded: ``NCCL_PROFILER_PLUGIN`` is a path, or X for
    ``libnccl-profiler-X.so``.
    """
    name = environ.get("NCCL_PROFILER_PLUGIN", "")
    if not name or Path(name).is_file():
        return Path(name) if name else None
    return next(iter(mapped_libraries(f"libnccl-profiler-{name}.so")), None)


def _feature(name: str, gives: str, there: bool, found: str, missing: str, how: str | None) -> Feature:
    """Return a feature that is there as ``found``, or that is ``missing`` and recorded by what ``how`` says."""
    return Feature(name, there, gives, found if there else missing, None if there else how)


def _recorder(torch: Any) -> list[Feature]:
    version, newer = str(torch.__version__), "pip install -U torch"
    return [
        _feature(
            "torch",
            "the recording",
            version_of(version) >= OLDEST,
            f"PyTorch {version}",
            f"PyTorch {version}",
            "pip install 'torch>=2.3'",
        ),
        _feature(
            "kineto",
            "times of host ops and of device work",
            bool(torch.autograd.kineto_available()),
            f"Kineto in PyTorch {version}",
            "this PyTorch was built without Kineto",
            "a PyTorch built with USE_KINETO=1",
        ),
        _feature(
            "execution_trace",
            "shapes, tensors, autograd's order and parameters of communication",
            hasattr(torch.profiler, "ExecutionTraceObserver"),
            "ExecutionTraceObserver",
            f"PyTorch {version} has no ExecutionTraceObserver",
            newer,
        ),
        _feature(
            "all_threads",
            "host ops of threads that the step did not start",
            "profile_all_threads" in config_fields(torch),
            "_ExperimentalConfig(profile_all_threads)",
            f"PyTorch {version} records the threads of the step alone",
            newer,
        ),
    ]


def _device(torch: Any) -> list[Feature]:
    rocm = bool(getattr(torch.version, "hip", None))
    kind = "ROCm" if rocm else "CUDA"
    built = torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities()
    there = built and bool(torch.cuda.is_available())
    exact = there and not rocm and "enable_cuda_sync_events" in config_fields(torch)
    absent = f"no {kind} device is visible" if built else "this PyTorch was built for the CPU"
    no_rows = absent if not there else "this PyTorch cannot turn them on: waits are inferred"
    if rocm:
        no_rows = "ROCm writes no such rows: waits are inferred"
    return [
        _feature(
            "device",
            "kernels, copies, launches, streams",
            there,
            f"{torch.cuda.device_count()} {kind} device(s)",
            absent,
            "a GPU, and a PyTorch built for it",
        ),
        _feature(
            "cuda_sync",
            "what each synchronisation call waited for, exactly",
            exact,
            "_ExperimentalConfig(enable_cuda_sync_events)",
            no_rows,
            "pip install -U torch" if there and not rocm else None,
        ),
        _feature(
            "event_records",
            "which record a stream or the host waited for",
            exact and version_of(torch.version.cuda) < UNRESOLVED_SINCE,
            f"CUDA {torch.version.cuda}",
            f"CUDA {torch.version.cuda}: Kineto does not collect event records since 12.9" if exact else no_rows,
            "a PyTorch built for CUDA 12.8 or older; else such waits are inferred" if exact else None,
        ),
        _feature(
            "cuspy",
            "what nodes of CUDA graphs wait for, counters of the GPU, and event waits of CUDA 12.9 and newer",
            there and not rocm and hasattr(torch.profiler, "CuspyConfig"),
            "torch.profiler.CuspyConfig: graphlink.capture(folder, cuspy=True)",
            "Kineto alone records the GPU" if there else absent,
            "PyTorch 2.15 and newer with cupti-python and libcupti 13.3" if there and not rocm else None,
        ),
    ]


def _communication(torch: Any, environ: Mapping[str, str]) -> list[Feature]:
    module = getattr(torch._C, "_distributed_c10d", None)
    dump = next((name for name in FLIGHT_DUMPS if hasattr(module, name)), None)
    size = next((environ[name] for name in FLIGHT_BUFFERS if name in environ), None)
    nccl, plugin = nccl_hooks(), plugin_library(environ)
    return [
        _feature(
            "process_groups",
            "which ranks a collective is of",
            bool(torch.distributed.is_available()) and hasattr(torch.profiler._KinetoProfile, "_get_distributed_info"),
            "torch.distributed",
            "this PyTorch writes no distributedInfo",
            "pip install -U torch",
        ),
        _feature(
            "flight_recorder",
            "enqueue times and states of NCCL's collectives, and which one a rank lacks",
            dump is not None and size != "0",
            f"torch._C._distributed_c10d.{dump}",
            "its buffer is 0" if dump else "this PyTorch has none",
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000" if dump else "pip install -U torch",
        ),
        _feature(
            "nccl_proxy",
            "what the proxy of a collective waited for: GPU, peer, wire",
            nccl is not None,
            f"{nccl} has ncclProfilerEnable",
            "no loaded NCCL library has ncclProfilerEnable (NCCL pull request 1210)",
            "a libnccl with NCCL pull request 1210, built with NCCL_PROXY_PROFILER_ENABLED",
        ),
        _feature(
            "nccl_plugin",
            "algorithm, protocol and channels of a collective, and the steps of its proxy",
            plugin is not None,
            f"{plugin}",
            "NCCL_PROFILER_PLUGIN is not set, or names no library that can be found",
            "NCCL_PROFILER_PLUGIN=<libnccl-profiler-example.so of NCCL's ext-profiler>",
        ),
        _feature(
            "nsys",
            "a recording by nsys of the same window",
            NSYS_SESSION in environ,
            "this program runs under nsys",
            "this program does not run under nsys",
            "nsys profile --capture-range=cudaProfilerApi ...",
        ),
    ]


def nccl_hooks() -> Path | None:
    """Find the loaded NCCL (or RCCL) library that has the start and stop of NCCL pull request 1210."""
    import ctypes

    for path in mapped_libraries("libnccl.so", "librccl.so", "libnccl-"):
        if hasattr(ctypes.CDLL(str(path)), "ncclProfilerEnable"):
            return path
    return None
