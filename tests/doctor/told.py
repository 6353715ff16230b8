"""Which findings stand for which warnings of the main job."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from typing import Final

_NO_ROWS: Final = {"no-cuda-sync", "no-hip-sync", "nsys-no-sync"}
_NOTHING: Final[set[str]] = set()  # no recording prevents it: the text says why it is here
# Beginning or part of a warning -> findings of which one has to be there.
TOLD: Final[tuple[tuple[str, set[str]], ...]] = (
    (r"the recording has no cuda_sync rows", _NO_ROWS),
    (r"HTA found no synchronisation edges: it makes them from cuda_sync rows only", _NO_ROWS),
    (r"HTA found no synchronisation edges where it ran", _NOTHING),  # rows are there, and ours are found
    (
        r"HTA was not given .* rows: device row without its call",
        {"launches-before-window", "launches-missing", "no-calls", "starts-before-launch"},
    ),
    (r"HTA was not given .* rows: cuda_sync row without its call", {"cuda-sync-without-calls"}),
    (r"HTA was not given|HTA skipped|HTA failed|HTA raised|HTA stopped", _NOTHING),  # HTA's own limits
    (r"synchronisation calls .* waited .* us for something", {*_NO_ROWS, "cuda-sync-gaps", "no-device-rows"}),
    (r"count as not explained|silences of the host, .* ended as a kernel ended|by a full queue to the device", {"standstill"}),
    (r"times the host waited for a kernel without any call", _NOTHING),  # inferred, and no recording shows more
    # the profiler's own, in every recording
    (r"synchronisation and event calls .* after the last row are left out", _NOTHING),
    (r"cuda_sync rows have no API call", {"cuda-sync-without-calls"}),
    (r"launched before the recording, or waited for what was", {"launches-before-window"}),
    (r"before ops whose launch calls are not recorded", {"launches-missing", "no-calls", "starts-before-launch"}),
    (r"launch calls? without a device op", {"no-device-rows", "launches-without-ops"}),
    (r"are of a device, but do not say on which stream", {"unknown-device-rows"}),
    (r"API calls? with the correlation id", {"repeated-calls"}),
    (r"the graph replays .* than recorded", _NOTHING),  # what contradicts what is told beside it
    (r"ops end after the op that they began in", {"ends-late"}),
    (r"host rows? recorded as running on after all else", {"ends-beyond"}),
    (r"device ops have no correlation id of a call of their own", {"calls-without-id"}),
    (r"cuda_sync rows? without a correlation id", {"syncs-without-id"}),
    (r"device ops have a correlation id that others contradict", {"calls-contradicted"}),
    (r"kernels stay with a call that launched another one before", {"calls-contradicted"}),
    (r"rows? there twice", {"rows-twice"}),
    (r"API calls? inside a call with the same correlation id", {"calls-twice"}),
    (r"device ops are recorded as running on behind others", {"ends-overrun"}),
    (r"device ops? at the end of a stream, recorded as running on", {"ends-overrun"}),
    (r"marks? of steps running into the next one", {"steps-overlap"}),
    (r"API calls run on into the next call", {"calls-overlap"}),
    (r"ET and Kineto trace differ on a process group", {"et-differs"}),
    (r"ET and Kineto trace agree in names but not in", {"et-differs"}),
    (r"the ET covers .* Kineto host rows", {"et-partial"}),
    (r"not in the ET: PyTorch writes no node", {"et-raised"}),
    (r"ET nodes are not in the Kineto trace's window", {"et-beyond-window"}),
    (r"share their id with an ET node of another name|^ET thread", {"et-names-differ"}),
    (r"the members of process group .* are not recorded", {"groups-assumed"}),
    (r"communication without parameters or group", {"comm-unknown"}),
    (r"may be communication, kept as computation", {"comm-doubtful"}),
    (r"further kernels of one call", _NOTHING),  # several kernels of one grouped call, as the program asked for
    (r"host-side receives or collectives were pending", {"host-comm"}),
    (r"distributedInfo: ", {"odd-header"}),
    (r"^damaged rows", {"broken-rows"}),
    (r"^ops alone on their thread", _NOTHING),  # times of one row: the warning has all that is known
    (r"^device ops .* before or behind all else", {"launches-before-window", "launches-missing", "no-calls", "starts-before-launch"}),
    (r"the export was cut to a window", {"nsys-cut"}),
    (r"TARGET_INFO_SESSION_START_TIME|sessions: all times|another type than their call|have no name in the export", {"nsys-odd-rows"}),
    (r"rank.* not recorded$", {"missing-ranks"}),
    (r"^without an execution trace", {"no-et"}),
    (r"left aside|named as of another rank|different numbers of ranks", {"left-aside"}),
    (r"how far the clock of a device is off", {"clock-unknown"}),
    (r"recordings that were merged into one file", {"merged-ranks"}),
    (r"nothing connects the clocks", {"clocks-untied"}),
    (r"clocks are shifted|meetings end on one rank before another|have \d+ clocks", {"clocks-doubtful"}),
    (r"no communication with a known group was recorded", {"silent-ranks"}),
    (r"events have no end|events end before they begin|timed on the host only|its version is|another zero", {"nccl-broken-rows"}),
    (r"--comm-time", _NOTHING),
)  # fmt: skip


def untold(warnings: Iterable[str], findings: Set[str]) -> list[str]:
    """Warnings that no finding stands for, or that are new to this table."""
    out = []
    for warning in warnings:
        wanted = next((names for pattern, names in TOLD if re.search(pattern, warning)), None)
        if wanted is None or (wanted and not wanted & findings):
            out.append(warning)
    return out
