"""JSON Schemas of what graphlink and its ``--json`` write: ``python -m graphlink.run.schemas schemas/`` writes them
anew.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from graphlink.advice.records import AdviceReport
from graphlink.astra.check_rules import Judged
from graphlink.astra.files import Prepared
from graphlink.astra.simulate import Simulated
from graphlink.diff.records import DiffReport
from graphlink.doctor.diagnosis import Diagnosis
from graphlink.gpu.file import IdleFile
from graphlink.gpu.table import IdleReport
from graphlink.graph.linked import LinkedFile
from graphlink.graph.node_view import NodeView
from graphlink.graph.path_file import PathFile
from graphlink.operations.records import Operations
from graphlink.operations.table import OperationsReport
from graphlink.page.parts import Page
from graphlink.pipeline.file import Bubbles, Compared
from graphlink.replay.across import CriticalAcross
from graphlink.replay.records import Listed, Report
from graphlink.report.summary import Summary
from graphlink.run.export import Exported
from graphlink.scale.records import Scaled

GroupId = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]*$")]
GlobalRank = Annotated[int, msgspec.Meta(ge=0)]
CommGroups = dict[GroupId, list[GlobalRank]]

FILES: Final[dict[str, Any]] = {
    "summary.schema.json": Summary,
    "comm_group.schema.json": CommGroups,
    "critical_path.schema.json": PathFile,
    "idle.schema.json": IdleFile,
    "idle.report.schema.json": IdleReport,
    "advice.report.schema.json": AdviceReport,
    "diff.schema.json": DiffReport,
    "ops.schema.json": Operations,
    "ops.report.schema.json": OperationsReport,
    "critical_path.ranks.schema.json": CriticalAcross,
    "linked.schema.json": LinkedFile,
    "bubbles.schema.json": Bubbles,
    "doctor.schema.json": Diagnosis,
    "replay.schema.json": Report,
    "replay.list.schema.json": Listed,
    "check.schema.json": Judged,
    "node.schema.json": NodeView,
    "astra.schema.json": Prepared,
    "simulate.schema.json": Simulated,
    "scale.schema.json": Scaled,
    "export.schema.json": Exported,
    "bubbles.compared.schema.json": Compared,
    "report.schema.json": Page,
}


def schemas() -> dict[str, bytes]:
    """Return the text of each schema file by name."""
    out = {}
    for name, kind in FILES.items():
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_dedented(msgspec.json.schema(kind))}
        out[name] = msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"
    return out


def _dedented(schema: Any) -> Any:
    """Dedent descriptions: Python 3.13 takes the indent off docstrings, which become descriptions; earlier ones
    do not.
    """
    if isinstance(schema, list):
        return [_dedented(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        k: inspect.cleandoc(v) if k == "description" and isinstance(v, str) else _dedented(v) for k, v in schema.items()
    }


def main(folder: str) -> None:
    for name, text in schemas().items():
        (Path(folder) / name).write_bytes(text)


if __name__ == "__main__":
    main(sys.argv[1])
