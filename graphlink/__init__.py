"""graphlink: recorded GPU training runs as dependency graphs.

>>> run = graphlink.link("traces/")   # or graphlink.open("out")   # doctest: +SKIP
>>> run.gains().head(), run.replay(scale="kernel:gemm=0.5")   # doctest: +SKIP

``Run`` has graphs, paths, what-ifs and tables; docs/recipes.md shows them at work. The stages of the job are here as
functions, too, in their order; ``graphlink.model`` has the records between them. ``link_rows``, ``check_graph`` and
``replay_graph`` are the functions ``link``, ``check`` and ``replay`` of their packages. All is loaded when first used,
so that ``import graphlink`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphlink.version import __version__

if TYPE_CHECKING:
    from graphlink.capture import CaptureModule
    from graphlink.depend.build import BuildOptions, build
    from graphlink.engine.engines import RunsOn
    from graphlink.errors import GraphlinkError, InputError, OutputError, UsageError
    from graphlink.graph.critical import cost_ns, critical_path, shares
    from graphlink.graph.invariants import check as check_graph
    from graphlink.graph.networkx import to_networkx
    from graphlink.graph.read_et import read_et
    from graphlink.graph.target import plan, written
    from graphlink.graph.write_et import write_et
    from graphlink.linking.communication import communication
    from graphlink.linking.launch import link as link_rows
    from graphlink.linking.match import match_hosts
    from graphlink.linking.step_cut import cut, parse_steps
    from graphlink.ranks.group_ids import assign, comm_group_json
    from graphlink.read.host import read_host
    from graphlink.read.kineto import read_kineto
    from graphlink.read.nsys.report import read_nsys
    from graphlink.replay.machines import measured_ns
    from graphlink.replay.machines import replay as replay_graph
    from graphlink.run.job import finish, prepare, run_rank
    from graphlink.run.library import Run, link
    from graphlink.run.library import open as open
    from graphlink.run.options import Inputs, Options, Recordings
    from graphlink.run.ranks import SomeRanksFailed

    capture: CaptureModule

__all__ = [  # without ``open``, which ``import *`` would put in place of Python's own
    "BuildOptions",
    "GraphlinkError",
    "InputError",
    "Inputs",
    "Options",
    "OutputError",
    "Recordings",
    "Run",
    "RunsOn",
    "SomeRanksFailed",
    "UsageError",
    "__version__",
    "assign",
    "build",
    "capture",
    "check_graph",
    "comm_group_json",
    "communication",
    "cost_ns",
    "critical_path",
    "cut",
    "finish",
    "link",
    "link_rows",
    "match_hosts",
    "measured_ns",
    "parse_steps",
    "plan",
    "prepare",
    "read_et",
    "read_host",
    "read_kineto",
    "read_nsys",
    "replay_graph",
    "run_rank",
    "shares",
    "to_networkx",
    "write_et",
    "written",
]

_HOME = {
    "linking.communication": ("communication",),
    "graph.critical": ("cost_ns", "critical_path", "shares"),
    "graph.invariants": ("check_graph",),
    "depend.build": ("BuildOptions", "build"),
    "graph.read_et": ("read_et",),
    "graph.target": ("plan", "written"),
    "graph.write_et": ("write_et",),
    "ranks.group_ids": ("assign", "comm_group_json"),
    "graph.networkx": ("to_networkx",),
    "engine.engines": ("RunsOn",),
    "errors": ("GraphlinkError", "InputError", "OutputError", "UsageError"),
    "linking.launch": ("link_rows",),
    "linking.match": ("match_hosts",),
    "linking.step_cut": ("cut", "parse_steps"),
    "read.host": ("read_host",),
    "read.kineto": ("read_kineto",),
    "read.nsys.report": ("read_nsys",),
    "replay.machines": ("measured_ns", "replay_graph"),
    "run.job": ("finish", "prepare", "run_rank"),
    "run.library": ("Run", "link", "open"),
    "run.options": ("Inputs", "Options", "Recordings"),
    "run.ranks": ("SomeRanksFailed",),
}
_AS = {"check_graph": "check", "link_rows": "link", "replay_graph": "replay"}
_MODULE_OF = {name: f"graphlink.{module}" for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "capture":  # a module that can be called
        return importlib.import_module("graphlink.capture")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'graphlink' has no attribute {name!r}")
    return getattr(importlib.import_module(module), _AS.get(name, name))


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, "open"})
