"""Identify side files of NCCL or c10d by the beginning of their content."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Final

from graphlink.read.source import open_source


class DumpKind(Enum):
    PLUGIN = "plugin"  # NCCL's example profiler plugin
    PROXY = "proxy"  # the proxy profiler of NCCL pull request 1210 and of NCCL up to 2.22
    INSPECTOR = "inspector"
    FLIGHT_RECORDER = "flight_recorder"


HEAD_BYTES: Final = 1 << 16
PICKLE: Final = re.compile(rb"\x80[\x02-\x05]")

_CAT: Final = re.compile(rb'"cat"\s*:\s*"([A-Z_0-9]{1,20})"')
_PLUGIN: Final = frozenset(
    b"GROUP_API COLL_API P2P_API KERNEL_LAUNCH GROUP COLL P2P PROXY GPU NET_IB NET_SOCK CE_COLL CE_SYNC "
    b"CE_BATCH".split()
)
_PROXY: Final = frozenset({b"NET", b"COL"})
_EMPTY: Final = re.compile(rb"\[\s*\{\}\s*\]\s*")
_TRACE: Final = re.compile(rb'"(?:traceEvents|nodes|schema|distributedInfo)"\s*:')
_INSPECTOR: Final = (b'"inspector_output_format_version"', b'"coll_perf"', b'"p2p_perf"')
_COMM_HASH: Final = re.compile(rb'"comm_hash"\s*:')


def kind_of(head: bytes) -> DumpKind | str | None:
    """Identify a file by its first ``HEAD_BYTES``, unpacked: return its kind, what else it is in words, or None for a
    file that is none of NCCL's."""
    if PICKLE.match(head):
        return DumpKind.FLIGHT_RECORDER if b"pg_config" in head or b"profiling_name" in head else None
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return _of_list(text)
    if text.startswith(b"{") and not _TRACE.search(text):
        return _of_object(text)
    if text.startswith((b"# HELP nccl_", b"nccl_")):
        return "Prometheus text of NCCL's inspector: unset NCCL_INSPECTOR_PROM_DUMP"
    return None


def read_kind(path: Path) -> DumpKind | str | None:
    """Return ``kind_of`` the file at ``path``; raise InputError where it cannot be opened or unpacked."""
    with open_source(path) as source:
        return kind_of(source.read(HEAD_BYTES))


def _of_list(text: bytes) -> DumpKind | str | None:
    if _EMPTY.fullmatch(text):
        return (
            "a dump of a profiler of NCCL without events: NCCL_PROFILE_EVENT_MASK is 0 by default, which records "
            "nothing"
        )
    categories = set(_CAT.findall(text))
    if _COMM_HASH.search(text) and categories:
        return "a file of the CoMMA profiler plugin"
    if categories & _PLUGIN:
        return DumpKind.PLUGIN
    if categories and categories <= _PROXY:
        return DumpKind.PROXY
    return None


def _of_object(text: bytes) -> DumpKind | str | None:
    if any(mark in text for mark in _INSPECTOR) and b'"header"' in text:
        return DumpKind.INSPECTOR
    if b'"profiling_name"' in text or (b'"pg_config"' in text and (b'"pg_status"' in text or b'"entries"' in text)):
        return DumpKind.FLIGHT_RECORDER
    if all(mark in text for mark in (b'"type"', b'"commId"', b'"start"')):
        return "a file of another profiler plugin (JSON lines with type, func, commId)"
    return None
