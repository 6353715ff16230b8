"""Gaps that a recording made here would have: by PyTorch, by what is installed, by environment variables. Nothing is
started.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from typing import Final

from graphlink.capture.support import Support
from graphlink.doctor.kinds import ENOUGH, INSPECTOR_BYTES, POOLS
from graphlink.doctor.records import Finding

_COLL, _P2P, _PROXY_OP, _PROXY_STEP, _KERNEL = 2, 4, 8, 16, 64  # bits of the example plugin's event mask


# By name of the features of ``graphlink.capture.support``.
FEATURES: Final = {
    "torch": "env-no-torch",
    "kineto": "env-no-kineto",
    "execution_trace": "env-no-et",
    "all_threads": "env-no-all-threads",
    "device": "env-no-device",
    "cuda_sync": "env-no-cuda-sync",
    "event_records": "env-no-event-records",
    "process_groups": "env-no-groups",
    "flight_recorder": "env-no-flight-recorder",
    "nccl_proxy": "env-no-nccl-proxy",
    "nccl_plugin": "env-no-nccl-plugin",
}


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
        ("env-no-nsys", shutil.which("nsys", path=environ.get("PATH")) is None),
        ("env-nccl-mask", plugin and masked),
        ("env-nccl-kernel-events", plugin and not masked and not mask & _KERNEL),
        ("env-nccl-proxy-steps", plugin and not masked and not (mask & _PROXY_OP and mask & _PROXY_STEP)),
        ("env-nccl-dump-file", plugin and not environ.get("NCCL_PROFILE_DUMP_FILE")),
        ("env-inspector-verbose", inspector and environ.get("NCCL_INSPECTOR_DUMP_VERBOSE", "0") != "1"),
        (
            "env-inspector-min-size",
            inspector and _number(environ, "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", INSPECTOR_BYTES) > 0,
        ),
        ("env-inspector-kernel-timing", inspector and _number(environ, "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", 1) != 0),
        (
            "env-inspector-interval",
            inspector and _number(environ, "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", -1) < 0,
        ),
        ("env-flight-timing", support.has("device") and support.has("flight_recorder") and not timed),
    ):
        if lacking:
            yield Finding(kind)
    small = [pool for pool in POOLS if _number(environ, f"NCCL_PROFILE_{pool}_POOL_SIZE", 0) < ENOUGH]
    if plugin and small:
        yield Finding("env-nccl-rings", record=" ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in small))


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Parse a number as C's ``atoi`` and ``strtol`` of base 0 do; the default where it is no number."""
    try:
        return int(environ.get(name, str(default)), 0)
    except ValueError:
        return default
