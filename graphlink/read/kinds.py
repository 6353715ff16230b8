"""The kind of a file, by the beginning of its content: for wrong-flag errors and for folders whose files have to be
distinguished.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from graphlink.errors import InputError
from graphlink.read.source import open_source

_VERSION = re.compile(rb"[0-9][0-9A-Za-z.+-]*\Z")


class FileKind(msgspec.Struct, frozen=True):
    """``todo`` says how to give such a file to graphlink, or what to do with it first."""

    name: str
    what: str
    todo: str


KINETO = FileKind("kineto", "a Kineto trace", "give it with --kineto")
ET = FileKind("et", "a PyTorch execution trace (ET)", "give it with --et")
NSYS = FileKind("nsys", "an sqlite database (nsys export)", "give it with --nsys")
CHAKRA = FileKind(
    "chakra",
    "a Chakra graph (.et)",
    "--et takes PyTorch's execution trace, which is JSON; graphlink show prints graphs",
)
NCCL = FileKind("nccl", "a side file of NCCL or the Flight Recorder", "give it with --nccl")
ZIP = FileKind("zip", "a zip archive", "unpack it and give the files in it")
TAR = FileKind("tar", "a tar archive", "unpack it and give the files in it")
PACKED = FileKind("packed", "compressed in a way that is not read", "unpack it, or pack it as .gz or .zst")
_TORCH = "record with torch.profiler and export_chrome_trace (docs/inputs.md)"
NSYS_REPORT = FileKind(
    "nsys-report",
    "a report of nsys, not an export of one",
    "nsys export --type sqlite REPORT, then give the .sqlite with --nsys",
)
NCU_REPORT = FileKind(
    "ncu-report",
    "a report of Nsight Compute, which has no times of a run",
    "record with nsys profile or torch.profiler",
)
XPLANE = FileKind(
    "xplane", "a profile of TensorFlow or JAX (XPlane)", f"nothing reads it here: of a PyTorch program, {_TORCH}"
)
JAX = FileKind(
    "jax", "a trace of TensorFlow or JAX, not a Kineto trace", f"nothing reads it here: of a PyTorch program, {_TORCH}"
)
PERFETTO = FileKind("perfetto", "a binary Perfetto trace", "give the JSON or sqlite file that it was made from")
PARQUET = FileKind(
    "parquet", "a Parquet table", "give the recording that it was made from; of nsys: nsys export --type sqlite REPORT"
)
SNAPSHOT = FileKind("snapshot", "a memory snapshot of PyTorch, which has no times of ops", _TORCH)
PICKLE = FileKind(
    "pickle",
    "a Python pickle",
    "give the recording itself; of pickles only the Flight Recorder's are read, with --nccl",
)
MEMORY = FileKind("memory", "a memory timeline of PyTorch, which has no ops", _TORCH)
ROCPROF = FileKind("rocprof", "a table (CSV) of rocprof", f"nothing reads it here: {_TORCH}, which uses ROCm's tracer")
ROCPD = FileKind(
    "rocpd",
    "a database of rocprofv3 (rocpd), not an nsys export",
    f"nothing reads it here: {_TORCH}, which uses ROCm's tracer",
)
NPU = FileKind(
    "torch-npu",
    "a trace of torch_npu (Ascend), whose rows do not say as Kineto's do what launched them",
    "record with torch.profiler of a PyTorch whose device is registered with Kineto (PrivateUse1)",
)
PADDLE = FileKind(
    "paddle",
    "a trace of Paddle's own profiler, not a Kineto trace",
    "record with nsys profile and give its export, or the logs of a pipeline with --paddle-logs",
)
UTF16 = FileKind("utf-16", "text in UTF-16", "write it as UTF-8 (PowerShell: -Encoding utf8)")

_NAMED = (
    (re.compile(r"\.(?:nsys-rep|qdrep|qdstrm)$", re.IGNORECASE), NSYS_REPORT),
    (re.compile(r"\.ncu-rep$", re.IGNORECASE), NCU_REPORT),
    (re.compile(r"\.xplane\.pb$", re.IGNORECASE), XPLANE),
    (re.compile(r"\.(?:perfetto-trace|pftrace|perfetto)$", re.IGNORECASE), PERFETTO),
    (re.compile(r"\.(?:parquet|pqtdir)$", re.IGNORECASE), PARQUET),
)
ALL = {kind.name: kind for kind in list(vars().values()) if isinstance(kind, FileKind)}
_SNAPSHOT_MARKS = (b"device_traces", b"segments")
_CSV_MARKS = (b'"Kernel_Name"', b"KernelName", b"Kernel_Name", b'"Correlation_Id"', b"Correlation_Id")
_JAX = re.compile(rb'"/(?:host|device):')

_MAGIC = (
    (b"NVR\0", NCU_REPORT),
    (b"PAR1", PARQUET),
    (b"SQLite format 3\0", NSYS),
    (b"PK\x03\x04", ZIP),
    (b"PK\x05\x06", ZIP),
    (b"\xfd7zXZ\0", PACKED),
    (b"BZh", PACKED),
    (b"7z\xbc\xaf\x27\x1c", PACKED),
    (b"\x1f\x8b", PACKED),  # packed twice
    (b"\x28\xb5\x2f\xfd", PACKED),
    (b"\xff\xfe", UTF16),
    (b"\xfe\xff", UTF16),
)


PACKET: Final = 0x0A  # begins each packet of a binary Perfetto trace
# a category of PyTorch as it is interned there: length, iid, and the text after its length
_CATEGORY: Final = re.compile(
    rb"\x0a.\x08[\x01-\x7f]\x12.(?:cpu_op|user_annotation|python_function|cuda_runtime|cuda_driver)", re.DOTALL
)


def is_pftrace(head: bytes) -> bool:
    """Tell whether a file that begins like this, unpacked, is a binary trace of PyTorch, not of another program."""
    return head[:1] == bytes([PACKET]) and _CATEGORY.search(head) is not None


def binary_kind(head: bytes) -> FileKind | None:
    """Return the kind of a file that is no JSON, from its first few hundred unpacked bytes; None if unknown."""
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    if head[257:262] == b"ustar":
        return TAR
    if re.match(rb"\x80[\x02-\x05]", head):
        return SNAPSHOT if any(mark in head for mark in _SNAPSHOT_MARKS) else PICKLE
    if _is_chakra(head):
        return CHAKRA
    if not head.lstrip().startswith((b"{", b"[")) and any(mark in head.split(b"\n", 1)[0] for mark in _CSV_MARKS):
        return ROCPROF
    return None


def kind_by_name(name: str) -> FileKind | None:
    """Return the kind of a file by its ending, where files of it have no mark of their own; None for others."""
    return next((kind for ending, kind in _NAMED if ending.search(name)), None)


def is_jax(head: bytes) -> bool:
    """Tell whether the beginning of a JSON trace names processes as TensorFlow and JAX do: "/device:GPU:0"."""
    return _JAX.search(head) is not None


def refuse_foreign(path: str, processes: Sequence[str], categories: Sequence[str], *, unreadable: bool) -> None:
    """Refuse a list of events that holds nothing of Kineto's, by what its processes and categories are called, and
    whether elements of it are ``unreadable``. Raises InputError; not where it holds nothing at all.
    """
    if any(text.startswith(("/device:", "/host:")) for text in processes):
        raise InputError(f"is {JAX.what}", path=path, todo=JAX.todo)
    if categories:
        shown = ", ".join(text or "none" for text in categories[:8])
        todo = "record with torch.profiler, or give its own file and not one that was made from it"
        raise InputError(
            f"is a trace of another tool, not a Kineto trace (its categories: {shown})", path=path, todo=todo
        )
    if unreadable and not processes:
        raise InputError("is a list that holds no events of a trace (a memory timeline?)", path=path, todo=MEMORY.todo)


def _is_chakra(head: bytes) -> bool:
    """Tell whether it is Chakra: a varint length and a GlobalMetadata: its version (field 1, text) or an attribute
    (field 2, whose field 1 is a name).

    Has to be distinguished from JSON too, since a length of 123 reads as ``{``.
    """
    at = 0
    while at < min(len(head), 5) and head[at] & 0x80:
        at += 1
    tag, size, body = head[at + 1 : at + 2], head[at + 2 : at + 3], head[at + 3 :]
    if tag == b"\x0a" and size:
        return bool(_VERSION.match(body[: size[0]])) and len(body) >= size[0] > 0
    return tag == b"\x12" and body[:1] == b"\x0a"


class DumpKind(Enum):
    PLUGIN = "plugin"  # NCCL's example profiler plugin
    PROXY = "proxy"  # the proxy profiler of NCCL pull request 1210 and of NCCL up to 2.22
    INSPECTOR = "inspector"
    FLIGHT_RECORDER = "flight_recorder"


HEAD_BYTES: Final = 1 << 16
PICKLED: Final = re.compile(rb"\x80[\x02-\x05]")

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


def dump_kind(head: bytes) -> DumpKind | str | None:
    """Identify a file by its first ``HEAD_BYTES``, unpacked: return its kind, what else it is in words, or None for a
    file that is none of NCCL's."""
    if PICKLED.match(head):
        return DumpKind.FLIGHT_RECORDER if b"pg_config" in head or b"profiling_name" in head else None
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        return _of_list(text)
    if text.startswith(b"{") and not _TRACE.search(text):
        return _of_object(text)
    if text.startswith((b"# HELP nccl_", b"nccl_")):
        return "Prometheus text of NCCL's inspector: unset NCCL_INSPECTOR_PROM_DUMP"
    return None


def read_dump_kind(path: Path) -> DumpKind | str | None:
    """Return ``dump_kind`` the file at ``path``; raise InputError where it cannot be opened or unpacked."""
    with open_source(path) as source:
        return dump_kind(source.read(HEAD_BYTES))


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
