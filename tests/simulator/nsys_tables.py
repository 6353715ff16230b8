"""The tables of nsys exports by schema version, and the constants that stand in them."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

SCHEMAS: Final = ("2020", "3.16", "3.25", "3.28")
CUPTI: Final = "CUPTI_ACTIVITY_KIND_"

# name of the column -> (type, the first schema that has it)
Layout = dict[str, tuple[str, str]]
_INT: Final = ("INTEGER", "2020")
_TEXT: Final = ("TEXT", "2020")
_WORK: Final[Layout] = {
    "start": _INT, "end": _INT, "deviceId": _INT, "contextId": _INT, "greenContextId": ("INTEGER", "3.16"), "streamId": _INT,
    "correlationId": _INT, "globalPid": _INT,
}  # fmt: skip
_NAMED: Final[Layout] = {"id": ("INTEGER PRIMARY KEY", "2020"), "name": _TEXT, "label": ("TEXT", "3.16")}

LAYOUTS: Final[dict[str, Layout]] = {
    "StringIds": {"id": ("INTEGER PRIMARY KEY", "2020"), "value": _TEXT},
    "META_DATA_EXPORT": {"name": ("TEXT", "3.16"), "value": ("TEXT", "3.16")},
    "META_DATA_CAPTURE": {"name": ("TEXT", "3.16"), "value": ("TEXT", "3.16")},
    "ENUM_NSYS_EVENT_TYPE": _NAMED,
    "ENUM_CUDA_MEMCPY_OPER": _NAMED,
    "ENUM_CUDA_MEM_KIND": _NAMED,
    "TARGET_INFO_SESSION_START_TIME": {
        "utcEpochNs": _INT, "utcTime": _TEXT, "localTime": _TEXT, "systemClockNs": ("INTEGER", "3.25"),
        "sessionStartCntVctNs": ("INTEGER", "3.28"),
    },
    "PROCESSES": {"globalPid": _INT, "pid": _INT, "name": _TEXT},
    "NVTX_EVENTS": {
        "start": _INT, "end": _INT, "eventType": _INT, "rangeId": _INT, "category": _INT, "color": _INT, "text": _TEXT, "globalTid": _INT,
        "endGlobalTid": _INT, "textId": _INT, "domainId": _INT, "uint64Value": _INT, "jsonText": _TEXT, "binaryData": ("TEXT", "3.16"),
        "eventId": ("INTEGER", "3.28"),
    },
    "NVTX_PAYLOAD_SCHEMAS": {
        "domainId": ("INTEGER", "3.16"), "schemaId": ("INTEGER", "3.16"), "name": ("TEXT", "3.16"), "type": ("INTEGER", "3.16"),
        "numEntries": ("INTEGER", "3.16"), "payloadSize": ("INTEGER", "3.16"),
    },
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": {
        "domainId": ("INTEGER", "3.16"), "schemaId": ("INTEGER", "3.16"), "idx": ("INTEGER", "3.16"), "type": ("INTEGER", "3.16"),
        "name": ("TEXT", "3.16"), "offset": ("INTEGER", "3.16"),
    },
    CUPTI + "RUNTIME": {
        "start": _INT, "end": _INT, "eventClass": _INT, "globalTid": _INT, "correlationId": _INT, "nameId": _INT, "returnValue": _INT,
        "callchainId": _INT,
    },
    CUPTI + "KERNEL": {
        **_WORK, "demangledName": _INT, "shortName": _INT, "mangledName": ("INTEGER", "3.16"), "launchType": _INT, "gridX": _INT,
        "blockX": _INT, "graphNodeId": ("INTEGER", "3.16"), "graphId": ("INTEGER", "3.25"),
    },
    CUPTI + "MEMCPY": {
        **_WORK, "bytes": _INT, "copyKind": _INT, "srcKind": ("INTEGER", "3.16"), "dstKind": ("INTEGER", "3.16"),
        "graphNodeId": ("INTEGER", "3.16"),
    },
    CUPTI + "MEMSET": {**_WORK, "value": _INT, "bytes": _INT, "graphNodeId": ("INTEGER", "3.16"), "memKind": ("INTEGER", "3.16")},
    CUPTI + "SYNCHRONIZATION": {
        **_WORK, "deprecatedSyncType": ("INTEGER", "3.25"), "syncType": _INT, "eventId": _INT, "eventSyncId": ("INTEGER", "3.25"),
    },
    CUPTI + "CUDA_EVENT": {
        "timestamp": ("INTEGER", "3.16"),
        **{name: (kind, max(since, "3.16")) for name, (kind, since) in _WORK.items() if name not in ("start", "end")},
        "eventId": ("INTEGER", "3.16"), "eventSyncId": ("INTEGER", "3.25"),
    },
    CUPTI + "GRAPH_TRACE": {
        **{name: (kind, max(since, "3.16")) for name, (kind, since) in _WORK.items()}, "graphId": ("INTEGER", "3.16"),
        "graphExecId": ("INTEGER", "3.16"),
    },
    CUPTI + "OVERHEAD": {"start": _INT, "end": _INT, "globalTid": _INT, "correlationId": _INT, "nameId": _INT, "overheadType": _INT},
    "OSRT_API": {"start": _INT, "end": _INT, "eventClass": _INT, "globalTid": _INT, "nameId": _INT, "returnValue": _INT},
}  # fmt: skip

EVENT_TYPES: Final = {34: "NvtxMark", 59: "NvtxPushPopRange", 60: "NvtxStartEndRange", 75: "NvtxDomainCreate"}
COPY_KINDS: Final = {0: "UNKNOWN", 1: "HTOD", 2: "DTOH", 8: "DTOD", 10: "PTOP", 11: "UVM_HTOD"}
MEMORY_KINDS: Final = {0: "PAGEABLE", 1: "PINNED", 2: "DEVICE", 3: "ARRAY", 4: "MANAGED"}
# in 2020 the numbers were CUPTI's own
MEMORY_KINDS_2020: Final = {0: "UNKNOWN", 1: "PAGEABLE", 2: "PINNED", 3: "DEVICE", 4: "ARRAY", 5: "MANAGED"}

_ID, _SIZE, _INT32 = ("NCCL communicator ID", 18, "Q"), ("Message size [bytes]", 22, "Q"), "i"
# number of a schema of NCCL -> its fields: name, type, struct code
NCCL_SCHEMAS: Final[dict[int, tuple[tuple[str, int, str], ...]]] = {
    2: (_ID, ("No. of ranks", 5, _INT32), ("Rank", 5, _INT32), ("CUDA device", 5, _INT32)),
    4: (_ID, _SIZE),
    5: (_ID, _SIZE, ("Reduction operation", 16777232, _INT32)),
    6: (_ID, _SIZE, ("Root", 5, _INT32)),
    9: (_ID, _SIZE, ("Peer rank", 5, _INT32)),
    14: (_ID,),
}
SCHEMA_FLAG: Final = 0x1000000
NCCL_DOMAIN: Final = 1


def payload(schema: int, values: Sequence[int]) -> bytes:
    """What ``binaryData`` holds: domain, schema, size, offset, and the struct."""
    body = struct.pack("<" + "".join(code for *_, code in NCCL_SCHEMAS[schema]), *values)
    body += bytes(-len(body) % 8)
    return struct.pack("<QQQQ", NCCL_DOMAIN, SCHEMA_FLAG | schema, len(body), 32) + body


def schema_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of NVTX_PAYLOAD_SCHEMAS and NVTX_PAYLOAD_SCHEMA_ENTRIES. The offset of the first entry is NULL, as in real
    exports.
    """
    schemas, entries = [], []
    for number, fields in NCCL_SCHEMAS.items():
        ident = {"domainId": NCCL_DOMAIN, "schemaId": SCHEMA_FLAG | number}
        at = 0
        for idx, (name, kind, code) in enumerate(fields):
            entries.append({**ident, "idx": idx, "type": kind, "name": name, "offset": at or None})
            at += struct.calcsize(code)
        schemas.append({**ident, "type": 1, "numEntries": len(fields), "payloadSize": at + -at % 8})
    return schemas, entries


def create(connection: sqlite3.Connection, table: str, schema: str) -> tuple[str, ...]:
    """Creates a table as a schema has it; its columns, none where that schema has no such table."""
    columns = {
        name: kind for name, (kind, since) in LAYOUTS[table].items() if SCHEMAS.index(since) <= SCHEMAS.index(schema)
    }
    if columns:
        connection.execute(
            f'CREATE TABLE "{table}" '
            f"({', '.join(f'{chr(34)}{name}{chr(34)} {kind}' for name, kind in columns.items())})"
        )
    return tuple(columns)


def fill(connection: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """Inserts rows; columns that a row or the schema lacks are NULL or left out."""
    places = ", ".join("?" * len(columns))
    connection.executemany(
        f'INSERT INTO "{table}" VALUES ({places})', ([row.get(name) for name in columns] for row in rows)
    )
