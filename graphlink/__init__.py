"""graphlink: recorded GPU training runs as dependency graphs.

The stages of the job, in order, as functions; ``graphlink.model`` has the records between them. Loaded when first used, so that
``import graphlink`` and ``graphlink --help`` are quick. ``link_rows``, ``check_graph`` and ``replay_graph`` are the functions ``link``,
``check`` and ``replay`` of their packages, whose names they would hide.

>>> from graphlink import Inputs, Options, prepare   # doctest: +SKIP
>>> built = prepare(Inputs(kineto=Path("kineto_0.json")), Options()).built   # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphlink.version import __version__

if TYPE_CHECKING:
    from graphlink.annotate.communication import communication
    from graphlink.annotate.critical import critical_path, shares
    from graphlink.capture import CaptureModule
    from graphlink.check.check import check as check_graph
    from graphlink.depend.build import BuildOptions, build
    from graphlink.emit.chakra import Heading, plan, write_et
    from graphlink.emit.durations import cost_ns
    from graphlink.emit.groups import assign, comm_group_json
    from graphlink.emit.networkx import to_networkx
    from graphlink.link.launch import link as link_rows
    from graphlink.link.match import match_hosts
    from graphlink.link.steps import cut, parse_steps
    from graphlink.read.host import read_host
    from graphlink.read.kineto import read_kineto
    from graphlink.read.nsys import read_nsys
    from graphlink.replay.ideal import measured_ns
    from graphlink.replay.ideal import replay as replay_graph
    from graphlink.run.job import Inputs, Options, finish, prepare, run_rank

    capture: CaptureModule

__all__ = [
    "BuildOptions",
    "Heading",
    "Inputs",
    "Options",
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
    "link_rows",
    "match_hosts",
    "measured_ns",
    "parse_steps",
    "plan",
    "prepare",
    "read_host",
    "read_kineto",
    "read_nsys",
    "replay_graph",
    "run_rank",
    "shares",
    "to_networkx",
    "write_et",
]

_HOME = {
    "annotate.communication": ("communication",),
    "annotate.critical": ("critical_path", "shares"),
    "check.check": ("check_graph",),
    "depend.build": ("BuildOptions", "build"),
    "emit.chakra": ("Heading", "plan", "write_et"),
    "emit.durations": ("cost_ns",),
    "emit.groups": ("assign", "comm_group_json"),
    "emit.networkx": ("to_networkx",),
    "link.launch": ("link_rows",),
    "link.match": ("match_hosts",),
    "link.steps": ("cut", "parse_steps"),
    "read.host": ("read_host",),
    "read.kineto": ("read_kineto",),
    "read.nsys": ("read_nsys",),
    "replay.ideal": ("measured_ns", "replay_graph"),
    "run.job": ("Inputs", "Options", "finish", "prepare", "run_rank"),
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
