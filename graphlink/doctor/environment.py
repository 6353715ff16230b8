"""What would be lacking in a recording made here: by PyTorch, by what is installed, by environment variables. Nothing is started."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from graphlink.capture.support import Support
from graphlink.doctor.records import Finding, Kind

POOLS: Final = (
    "GROUP_API", "COLL_API", "P2P_API", "KERNEL_LAUNCH", "GROUP", "COLL", "P2P", "PROXY_CTRL", "PROXY_DETACH", "CE_COLL", "CE_SYNC",
    "CE_BATCH",
)  # fmt: skip
ENOUGH: Final = 100_000  # events of a kind, that hold some steps of any run
_COLL, _P2P, _PROXY_OP, _PROXY_STEP, _KERNEL = 2, 4, 8, 16, 64  # bits of the example plugin's event mask
WANTED_MASK: Final = 95  # group, collective, P2P, proxy op, proxy step, kernel channel
INSPECTOR_BYTES: Final = 8192  # messages below are left out by default

ENOUGH_RINGS: Final = " ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in POOLS)

# By name of the features of ``graphlink.capture.support``.
FEATURES: Final[dict[str, Kind]] = {
    "torch": Kind(
        "env-no-torch", "lost", "no PyTorch that records", "neither an execution trace nor a Kineto trace", "pip install 'torch>=2.3'"
    ),
    "kineto": Kind("env-no-kineto", "lost", "no Kineto", "no times: there is no graph", "a PyTorch built with USE_KINETO=1"),
    "execution_trace": Kind(
        "env-no-et",
        "lost",
        "no execution trace",
        "nodes lack schema, tensors and scope; communication may stay unknown",
        "pip install -U torch",
    ),
    "all_threads": Kind(
        "env-no-all-threads",
        "lost",
        "host ops of threads that the step did not start are not recorded",
        "their time is gaps, and what they launch has no op",
        "pip install -U torch (_ExperimentalConfig(profile_all_threads=True))",
    ),
    "device": Kind(
        "env-no-device",
        "note",
        "no GPU that PyTorch can record",
        "the graph is of the host alone: right for a run on the CPU",
        "a GPU, and a PyTorch built for it",
    ),
    "cuda_sync": Kind(
        "env-no-cuda-sync",
        "inferred",
        "no rows that tell what a synchronisation call waited for",
        "all waits are inferred from when things ended",
        "pip install -U torch (_ExperimentalConfig(enable_cuda_sync_events=True)); on ROCm nothing yet",
    ),
    "event_records": Kind(
        "env-no-event-records",
        "inferred",
        "rows of event waits will not name the cudaEventRecord",
        "waits of streams and of the host for events are inferred from when things ended",
        "a PyTorch built for CUDA 12.8 or older, or with kineto pull request 1552",
    ),
    "process_groups": Kind(
        "env-no-groups",
        "lost",
        "Kineto will not list process groups",
        "members of groups come from the execution trace alone, or stay unknown",
        "pip install -U torch",
    ),
    "flight_recorder": Kind(
        "env-no-flight-recorder",
        "note",
        "no Flight Recorder",
        "a collective that is missing on a rank, and members of groups, are told by the traces alone",
        "TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
    ),
    "nccl_proxy": Kind(
        "env-no-nccl-proxy",
        "note",
        "no start and stop of NCCL's proxy profiler",
        "what a collective waited for (GPU, peer, wire) is not split",
        "a libnccl with NCCL pull request 1210, built with NCCL_PROXY_PROFILER_ENABLED",
    ),
    "nccl_plugin": Kind(
        "env-no-nccl-plugin",
        "note",
        "no profiler plugin of NCCL",
        "algorithm, protocol and channels of collectives are unknown, and their time is not split",
        "NCCL_PROFILER_PLUGIN=<libnccl-profiler-example.so of NCCL's ext-profiler>",
    ),
}
NO_NSYS = Kind(
    "env-no-nsys",
    "note",
    "nsys is not on PATH",
    "no export of nsys beside or in place of Kineto",
    "NVIDIA Nsight Systems, and nsys on PATH",
)
MASK = Kind(
    "env-nccl-mask",
    "lost",
    "NCCL_PROFILER_PLUGIN is set, but NCCL_PROFILE_EVENT_MASK is not, or lacks collectives",
    "the plugin's code takes 0 in its place and records nothing",
    f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}",
)
KERNELS = Kind(
    "env-nccl-kernel-events",
    "lost",
    "NCCL_PROFILE_EVENT_MASK lacks kernel channel events (64)",
    "the dump's clock is not tied to the GPU's, and a collective ends where it was enqueued",
    f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}",
)
STEPS = Kind(
    "env-nccl-proxy-steps",
    "lost",
    "NCCL_PROFILE_EVENT_MASK lacks proxy ops and steps (8 and 16)",
    "a collective's time is not split into GPU, peer and wire",
    f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}",
)
RINGS = Kind(
    "env-nccl-rings",
    "lost",
    "rings of the NCCL plugin are small: 8 events of a kind (16 of proxy control) by its code",
    "only the last few groups of a run survive",
    ENOUGH_RINGS,
)
DUMP = Kind(
    "env-nccl-dump-file",
    "lost",
    "NCCL_PROFILE_DUMP_FILE is not set",
    "the plugin writes no file, but where exampleProfilerStart names one",
    "NCCL_PROFILE_DUMP_FILE=out/nccl (a file a communicator and rank)",
)
TIMING = Kind(
    "env-flight-timing",
    "note",
    "TORCH_NCCL_ENABLE_TIMING is not set",
    "entries of the Flight Recorder have no duration_ms",
    "TORCH_NCCL_ENABLE_TIMING=1",
)
VERBOSE = Kind(
    "env-inspector-verbose",
    "lost",
    "NCCL_INSPECTOR_DUMP_VERBOSE is not 1",
    "lines of the inspector have no times of events: they are joined with nothing",
    "NCCL_INSPECTOR_DUMP_VERBOSE=1",
)
SMALL = Kind(
    "env-inspector-min-size",
    "lost",
    f"the inspector leaves out messages below {INSPECTOR_BYTES} bytes",
    "small collectives are matched with nothing, and order no longer tells the others",
    "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0",
)
REQUIRED = Kind(
    "env-inspector-kernel-timing",
    "lost",
    "the inspector leaves out events without GPU timing",
    "such collectives are not there, and nothing says so",
    "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0",
)
INTERVAL = Kind(
    "env-inspector-interval",
    "lost",
    "the inspector writes at the end only",
    "what exceeds its rings (1024 collectives) is lost",
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=100000",
)


def environment_lacking(support: Support, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what a recording made here would lack. Variables of what is not turned on are not looked at."""
    passed_over = () if support.has("device") else ("cuda_sync", "event_records")
    for feature in support.features:
        if feature.name in FEATURES and not feature.available and feature.name not in passed_over:
            yield Finding(FEATURES[feature.name], told=(feature.found,), record=feature.how or "")
    timed = environ.get("TORCH_NCCL_ENABLE_TIMING", "0") not in ("", "0")
    plugin, inspector = bool(environ.get("NCCL_PROFILER_PLUGIN")), environ.get("NCCL_INSPECTOR_ENABLE") == "1"
    mask = _number(environ, "NCCL_PROFILE_EVENT_MASK", 0)
    masked = not mask & (_COLL | _P2P)
    for kind, lacking in (
        (NO_NSYS, shutil.which("nsys", path=environ.get("PATH")) is None),
        (MASK, plugin and masked),
        (KERNELS, plugin and not masked and not mask & _KERNEL),
        (STEPS, plugin and not masked and not (mask & _PROXY_OP and mask & _PROXY_STEP)),
        (DUMP, plugin and not environ.get("NCCL_PROFILE_DUMP_FILE")),
        (VERBOSE, inspector and environ.get("NCCL_INSPECTOR_DUMP_VERBOSE", "0") != "1"),
        (SMALL, inspector and _number(environ, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", INSPECTOR_BYTES) > 0),
        (REQUIRED, inspector and _number(environ, "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", 1) != 0),
        (INTERVAL, inspector and _number(environ, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1) < 0),
        (TIMING, support.has("device") and support.has("flight_recorder") and not timed),
    ):
        if lacking:
            yield Finding(kind)
    small = [pool for pool in POOLS if _number(environ, f"NCCL_PROFILE_{pool}_POOL_SIZE", 0) < ENOUGH]
    if plugin and small:
        yield Finding(RINGS, record=" ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in small))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """As C's ``atoi`` and ``strtol`` of base 0 read it; the default where it is no number."""
    try:
        return int(environ.get(name, str(default)), 0)
    except ValueError:
        return default
