"""What would be lacking in a recording made here: by PyTorch, by what is installed, by environment variables. Nothing is started."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from graphlink.capture.support import Support
from graphlink.doctor.records import Finding, Kind, Level

POOLS: Final = (
    "GROUP_API", "COLL_API", "P2P_API", "KERNEL_LAUNCH", "GROUP", "COLL", "P2P", "PROXY_CTRL", "PROXY_DETACH", "CE_COLL", "CE_SYNC",
    "CE_BATCH",
)  # fmt: skip
ENOUGH: Final = 100_000  # events of a kind, that hold some steps of any run
_COLL, _P2P, _PROXY_OP, _PROXY_STEP, _KERNEL = 2, 4, 8, 16, 64  # bits of the example plugin's event mask
WANTED_MASK: Final = 95  # group, collective, P2P, proxy op, proxy step, kernel channel
INSPECTOR_BYTES: Final = 8192  # messages below are left out by default


def _kind(name: str, level: Level, lacks: str, costs: str, record: str, *, by_capture: bool = False) -> Kind:
    return Kind(f"env-{name}", level, lacks, costs, record, by_capture)


# By name of the features of ``graphlink.capture.support``.
FEATURES: Final[dict[str, Kind]] = {
    "torch": _kind(
        "no-torch", Level.LOST, "no PyTorch that records", "neither an execution trace nor a Kineto trace", "pip install 'torch>=2.3'"
    ),
    "kineto": _kind("no-kineto", Level.LOST, "no Kineto", "no times: there is no graph", "a PyTorch built with USE_KINETO=1"),
    "execution_trace": _kind(
        "no-et",
        Level.LOST,
        "no execution trace",
        "nodes lack schema, tensors and scope; communication may stay unknown",
        "pip install -U torch",
    ),
    "all_threads": _kind(
        "no-all-threads",
        Level.LOST,
        "host ops of threads that the step did not start are not recorded",
        "their time is gaps, and what they launch has no op",
        "pip install -U torch (_ExperimentalConfig(profile_all_threads=True))",
    ),
    "device": _kind(
        "no-device",
        Level.NOTE,
        "no GPU that PyTorch can record",
        "the graph is of the host alone: right for a run on the CPU",
        "a GPU, and a PyTorch built for it",
    ),
    "cuda_sync": _kind(
        "no-cuda-sync",
        Level.INFERRED,
        "no rows that tell what a synchronisation call waited for",
        "all waits are inferred from when things ended",
        "pip install -U torch (_ExperimentalConfig(enable_cuda_sync_events=True)); on ROCm nothing yet",
    ),
    "event_records": _kind(
        "no-event-records",
        Level.INFERRED,
        "rows of event waits will not name the cudaEventRecord",
        "waits of streams and of the host for events are inferred from when things ended",
        "a PyTorch built for CUDA 12.8 or older, or with kineto pull request 1552",
    ),
    "process_groups": _kind(
        "no-groups",
        Level.LOST,
        "Kineto will not list process groups",
        "members of groups come from the execution trace alone, or stay unknown",
        "pip install -U torch",
    ),
    "flight_recorder": _kind(
        "no-flight-recorder",
        Level.NOTE,
        "no Flight Recorder",
        "a collective that is missing on a rank, and members of groups, are told by the traces alone",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
    ),
    "nccl_proxy": _kind(
        "no-nccl-proxy",
        Level.NOTE,
        "no start and stop of NCCL's proxy profiler",
        "what a collective waited for (GPU, peer, wire) is not split",
        "a libnccl with NCCL pull request 1210, built with NCCL_PROXY_PROFILER_ENABLED",
    ),
    "nccl_plugin": _kind(
        "no-nccl-plugin",
        Level.NOTE,
        "no profiler plugin of NCCL",
        "algorithm, protocol and channels of collectives are unknown, and their time is not split",
        "NCCL_PROFILER_PLUGIN=<libnccl-profiler-example.so of NCCL's ext-profiler>",
    ),
}
NO_NSYS = _kind(
    "no-nsys",
    Level.NOTE,
    "nsys is not on PATH",
    "no export of nsys beside or in place of Kineto",
    "NVIDIA Nsight Systems, and nsys on PATH",
)
MASK = _kind(
    "nccl-mask",
    Level.LOST,
    "NCCL_PROFILER_PLUGIN is set, but NCCL_PROFILE_EVENT_MASK is not, or lacks collectives",
    "the plugin's code takes 0 in its place and records nothing",
    f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}",
)
KERNELS = _kind(
    "nccl-kernel-events",
    Level.LOST,
    "NCCL_PROFILE_EVENT_MASK lacks kernel channel events (64)",
    "the dump's clock is not tied to the GPU's, and a collective ends where it was enqueued",
    f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}",
)
STEPS = _kind(
    "nccl-proxy-steps",
    Level.LOST,
    "NCCL_PROFILE_EVENT_MASK lacks proxy ops and steps (8 and 16)",
    "a collective's time is not split into GPU, peer and wire",
    f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}",
)
RINGS = _kind(
    "nccl-rings",
    Level.LOST,
    "rings of the NCCL plugin are small: 8 events of a kind (16 of proxy control) by its code",
    "only the last few groups of a run survive",
    " ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in POOLS),
)
DUMP = _kind(
    "nccl-dump-file",
    Level.LOST,
    "NCCL_PROFILE_DUMP_FILE is not set",
    "the plugin writes no file, but where exampleProfilerStart names one",
    "NCCL_PROFILE_DUMP_FILE=out/nccl (a file a communicator and rank)",
)
TIMING = _kind(
    "flight-timing",
    Level.NOTE,
    "TORCH_NCCL_ENABLE_TIMING is not set",
    "entries of the Flight Recorder have no duration_ms",
    "TORCH_NCCL_ENABLE_TIMING=1",
)
VERBOSE = _kind(
    "inspector-verbose",
    Level.LOST,
    "NCCL_INSPECTOR_DUMP_VERBOSE is not 1",
    "lines of the inspector have no times of events: they are joined with nothing",
    "NCCL_INSPECTOR_DUMP_VERBOSE=1",
)
SMALL = _kind(
    "inspector-min-size",
    Level.LOST,
    f"the inspector leaves out messages below {INSPECTOR_BYTES} bytes",
    "small collectives are matched with nothing, and order no longer tells the others",
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0",
)
REQUIRED = _kind(
    "inspector-kernel-timing",
    Level.LOST,
    "the inspector leaves out events without GPU timing",
    "such collectives are not there, and nothing says so",
    "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0",
)
INTERVAL = _kind(
    "inspector-interval",
    Level.LOST,
    "the inspector writes at the end only",
    "what exceeds its rings (1024 collectives) is lost",
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=100000",
)
KINDS: Final = (*FEATURES.values(), NO_NSYS, MASK, KERNELS, STEPS, RINGS, DUMP, TIMING, VERBOSE, SMALL, REQUIRED, INTERVAL)


def environment_lacking(support: Support, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what a recording made here would lack. Variables of what is not turned on are not looked at."""
    passed_over = () if support.has("device") else ("cuda_sync", "event_records")
    for feature in support.features:
        kind = FEATURES.get(feature.name)
        if kind is not None and not feature.available and feature.name not in passed_over:
            yield Finding(kind, told=(feature.found,), record=feature.how or "")
    if shutil.which("nsys", path=environ.get("PATH")) is None:
        yield Finding(NO_NSYS)
    yield from _plugin(environ)
    if environ.get("NCCL_INSPECTOR_ENABLE") == "1":
        yield from _inspector(environ)
    if support.has("device") and support.has("flight_recorder") and environ.get("TORCH_NCCL_ENABLE_TIMING", "0") in ("", "0"):
        yield Finding(TIMING)


def _plugin(environ: Mapping[str, str]) -> Iterator[Finding]:
    if not environ.get("NCCL_PROFILER_PLUGIN"):
        return
    mask = _number(environ, "NCCL_PROFILE_EVENT_MASK", 0)
    if not mask & (_COLL | _P2P):
        yield Finding(MASK)
    else:
        if not mask & _KERNEL:
            yield Finding(KERNELS)
        if not mask & _PROXY_OP or not mask & _PROXY_STEP:
            yield Finding(STEPS)
    small = [pool for pool in POOLS if _number(environ, f"NCCL_PROFILE_{pool}_POOL_SIZE", 0) < ENOUGH]
    if small:
        yield Finding(RINGS, record=" ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in small))
    if not environ.get("NCCL_PROFILE_DUMP_FILE"):
        yield Finding(DUMP)


def _inspector(environ: Mapping[str, str]) -> Iterator[Finding]:
    for kind, lacking in (
        (VERBOSE, environ.get("NCCL_INSPECTOR_DUMP_VERBOSE", "0") != "1"),
        (SMALL, _number(environ, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", INSPECTOR_BYTES) > 0),
        (REQUIRED, _number(environ, "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", 1) != 0),
        (INTERVAL, _number(environ, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1) < 0),
    ):
        if lacking:
            yield Finding(kind)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """As C's ``atoi`` and ``strtol`` of base 0 read it; the default where it is no number."""
    try:
        return int(environ.get(name, str(default)), 0)
    except ValueError:
        return default
