"""JSON Schemas of what graphlink and its ``--json`` write: ``python -m graphlink.run.schemas schemas/`` writes them
anew.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from graphlink.graph.linked import LinkedFile
from graphlink.graph.node_view import NodeView
from graphlink.graph.path_file import PathFile
from graphlink.replay.across import CriticalAcross
from graphlink.replay.records import Listed, Report
from graphlink.report.summary import Summary
from graphlink.run.export import Exported
from graphlink.wings import declarations, imported

GroupId = Annotated[str, msgspec.Meta(pattern="^[1-9][0-9]*$")]
GlobalRank = Annotated[int, msgspec.Meta(ge=0)]
CommGroups = dict[GroupId, list[GlobalRank]]

_OF_CORE: Final[dict[str, Any]] = {
    "summary": Summary,
    "comm_group": CommGroups,
    "critical_path": PathFile,
    "critical_path.ranks": CriticalAcross,
    "linked": LinkedFile,
    "replay": Report,
    "replay.list": Listed,
    "node": NodeView,
    "export": Exported,
}
_OF_WINGS: Final = {name: imported(text) for name, text in declarations("schemas")}
FILES: Final = {f"{name}.schema.json": kind for name, kind in {**_OF_CORE, **_OF_WINGS}.items()}


def schemas() -> dict[str, bytes]:
    """Return the text of each schema file by name."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    told = {name: dialect | _of_any_version(msgspec.json.schema(kind)) for name, kind in FILES.items()}
    return {name: msgspec.json.format(msgspec.json.encode(one), indent=2) + b"\n" for name, one in told.items()}


def _of_any_version(schema: Any) -> Any:
    """Dedent descriptions: Python 3.13 takes the indent off docstrings, which become descriptions; earlier ones
    do not. Leave out lists of the keys that an object may have, which msgspec writes since 0.23.
    """
    if isinstance(schema, list):
        return [_of_any_version(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        k: inspect.cleandoc(v) if k == "description" and isinstance(v, str) else _of_any_version(v)
        for k, v in schema.items()
        if k != "propertyNames" or "enum" not in v
    }


def main(folder: str) -> None:
    for name, text in schemas().items():
        (Path(folder) / name).write_bytes(text)


if __name__ == "__main__":
    main(sys.argv[1])
