"""Reads the dump of NCCL's proxy profiler: pull request 1210, and NCCL up to 2.22 (``src/misc/profiler.cc``), which has
no calls.

Each ``Send-<peer>-<step>`` or ``Recv-...`` is one step, its states follow it. Steps of one peer, channel, ``opCount``
and ``proxyOpIndex`` are one proxy op, as long as their numbers ascend. A call is a collective that the framework
announced; a step belongs to the one announced last, as its ``collectiveName`` says. ``pid`` is the channel.
``totalbytes`` is not read: of a collective it is the size of a buffer slice (``proxyOp->nbytes`` in ``enqueue.cc``).
Times are us since the profiler's start.

What a step waits for (``net.cc``):
  GPUWait of a send    GPU      the kernel fills the buffer; also until the receiver has posted its own, which has no state here
  SendWait             WIRE     the data is on its way
  RecvWait             RECEIVE  the buffer is posted, the data not here
  FlushWait            WIRE     the network card flushes what has come, so that the GPU sees it
  GPUWait of a receive GPU      the kernel takes the data out
``BufferWait`` is no state of ``Steps``: all steps of an op begin together and wait for one of its few buffers, which
the steps ahead hold, so what those wait for is the reason, and is recorded with them.

The clock is set to zero twice, by the first step and by the first collective, so that what came before the second has
another zero.
"""  # noqa: E501

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from graphlink.model import I64, NOWHERE, Bool
from graphlink.nccl.read.events import Args, EventTables, Fill, PluginEvent, said
from graphlink.nccl.read.names import function_of, natural, rank_in_name, small
from graphlink.nccl.read.records import Calls, Dump, ProxyOps, State, table
from graphlink.read.columns import MISSING, Columns, Strings
from graphlink.read.kinds import DumpKind
from graphlink.tables import begins, codes, lookup, spread

_STEP: Final = re.compile(r"(Send|Recv)-(\d{1,9})-(\d{1,9})")
_CALL: Final = re.compile(r"(.{1,200})-(\d{1,9})", re.DOTALL)
_STATES: Final = {"GPUWait": State.GPU, "SendWait": State.WIRE, "RecvWait": State.RECEIVE, "FlushWait": State.WIRE}
_COUNTED: Final = frozenset({"BufferWait", "Idle", "Sleep", "Append", *_STATES})
_PROTOCOLS: Final = ("LL", "LL128", "Simple")
_AT_ONCE_NS: Final = 1_000_000  # what happens when the clock is set to zero is recorded within this
_EARLY: Final = "steps timed from another zero of the clock"
_BEFORE: Final = "came before the profiler set its clock to zero again: their times are not used"
_TODO: Final = "call ncclProfilerEnable() before the steps to record and ncclProfilingDump() after them"


def read_proxy(path: Path) -> Dump:
    """Read the dump at ``path``. One pass and some sorts; memory is that of the columns, about 130 bytes an event.

    Raises:
        InputError: the file cannot be read, or holds no event at all.
    """
    names: dict[int, str] = {}
    fill: dict[str, Fill] = {
        "step": partial(_steps, names),
        "state": lambda rows, _: {"state": np.array([_STATES[row.name] for row in rows], np.uint8)},
        "collective": lambda rows, _: {
            "collective": np.array([_collective(names, row.name) for row in rows], np.int64)
        },
    }
    tables = EventTables(path, _sort_of, fill, "NCCL's proxy profiler", _TODO)
    at, ns, ident = tables.at, tables.ns, tables.ident
    steps, announced = tables.columns["step"], tables.columns["collective"]["collective"]
    early_step, early_call = _early(steps["collective"], ns[at["step"]], announced, ns[at["collective"]])
    numbers = np.array(sorted(names), np.int64)
    strings = Strings()
    stepped, named = lookup(steps["collective"], numbers), lookup(announced, numbers)
    times = {name: np.zeros(len(numbers), np.int64) for name in ("start_ns", "end_ns")}
    there = np.flatnonzero(named != NOWHERE)
    for name, values in tables.keep(at["collective"][named[there]]).items():
        times[name][there] = np.where(early_call[named[there]], 0, values)
    calls = table(
        Calls,
        len(numbers),
        protocol=strings.column([*_PROTOCOLS, "", ""])[np.append(steps["protocol"], NOWHERE)[stepped]],
        function=strings.column([function_of(names[number]) for number in numbers.tolist()]),
        seq=numbers,
        channels=np.append(steps["channels"], NOWHERE)[stepped],
        **times,
    )
    tables.keep(at["step"])
    op = op_of(steps)
    first = np.unique(op, return_index=True)[1]
    columns = {name: steps[name][first] for name in ("channel", "peer", "sends")}
    step = tables.around("step", "state")
    step[np.append(ident[at["step"]], MISSING)[step] != ident[at["state"]]] = NOWHERE
    tables.leave(at["state"][np.append(early_step, False)[step]], _EARLY)
    number = np.append(steps["step"], NOWHERE)[step]
    early = (("steps", early_step), ("collectives", early_call))
    return Dump(
        path=str(path),
        kind=DumpKind.PROXY,
        rank=rank_in_name(path),
        strings=tuple(strings),
        calls=calls,
        proxies=table(ProxyOps, len(first), **columns, call=lookup(numbers, steps["collective"][first])),
        steps=tables.steps(at["state"], np.append(op, NOWHERE)[step], number, tables.columns["state"]["state"]),
        events=tables.events,
        left_out=tables.left_out(_label),
        warnings=(*(f"{mask.sum()} {what} {_BEFORE}" for what, mask in early if mask.any()), *tables.warnings()),
    )


# Columns of what begins say, by sort. ``names``: of collectives, by number, as steps and collectives say them.


def _steps(names: dict[int, str], rows: list[PluginEvent], args: list[Args]) -> Columns:
    parts = [step.groups() for row in rows if (step := _STEP.fullmatch(row.name))]
    return {
        "sends": np.array([way == "Send" for way, _, _ in parts], np.bool_),
        "peer": np.array([peer for _, peer, _ in parts], np.int32),
        "step": np.array([step for _, _, step in parts], np.int64),
        "channel": small([row.pid for row in rows]),
        "op": natural(said(args, "opCount")),
        "slot": natural(said(args, "proxyOpIndex")),
        "collective": np.array([_collective(names, row.collective_name) for row in rows], np.int64),
        "channels": small([row.total_channels for row in rows]),
        "protocol": np.minimum(small([row.proto for row in rows]), len(_PROTOCOLS)),
    }


def _collective(names: dict[int, str], text: Any) -> int:
    """Return the number in ``allreduce-3``; 0 where none was announced (``N/A-0``), ``NOWHERE`` where the file does
    not say.
    """
    call = _CALL.fullmatch(text) if isinstance(text, str) else None
    if call is None:
        return NOWHERE
    number = int(call[2])
    if number:
        names.setdefault(number, call[1])
    return number


def _early(of_step: I64, step_ns: I64, number: I64, ns: I64) -> tuple[Bool, Bool]:
    """Mark the steps and the collectives whose times count from another zero: they came before the clock was set to
    zero again.

    Whichever of the first step and the first collective comes second sets it, so that its own time is about 0.
    Steps that were over before the first collective say so (``N/A-0``). Collectives before the first step are the first
    one and, as times fall where the zero changes, those up to the last fall.
    """
    steps, calls = np.zeros(len(of_step), np.bool_), np.zeros(len(number), np.bool_)
    if len(number) and len(of_step):
        order = np.argsort(number, kind="stable")
        if (of_step == 0).any():
            steps = (of_step == 0) & (ns[order[0]] < _AT_ONCE_NS)
        elif max(step_ns[0], ns[order[0]]) < _AT_ONCE_NS:
            falls = np.flatnonzero(np.diff(ns[order]) < 0)
            calls[order[: 1 + (falls[-1] if len(falls) else 0)]] = True
    return steps, calls


def op_of(steps: Columns) -> I64:
    """Return the row of the proxy op of each step, ops in the order of their first steps. One sort."""
    keys = [steps[name] for name in ("slot", "op", "channel", "peer", "sends")]
    order = np.lexsort(keys)  # stable: file order inside a key
    number = steps["step"][order]
    new = begins(*(key[order] for key in keys))
    new[1:] |= number[1:] <= number[:-1]
    first = order[new][np.cumsum(new) - 1]
    return codes(spread(len(order), order, first))


def _sort_of(row: PluginEvent) -> str | None:
    if row.cat == "COL":
        return "collective"
    if row.cat != "NET":
        return None
    return "state" if row.name in _STATES else "step" if _STEP.fullmatch(row.name) else None


def _label(category: str, name: str) -> str:
    if category == "COL":
        return "collectives announced twice"
    return f"{category} {name}" if category == "NET" and name in _COUNTED else "other names"
