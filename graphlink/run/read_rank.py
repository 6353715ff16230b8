"""Read the files of one rank, and link them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Final

from graphlink.engine.beside import LARGE_BYTES, beside
from graphlink.engine.memory import unpacked_bytes
from graphlink.errors import InputError, log
from graphlink.linking.clocks import on_host_clock
from graphlink.linking.communication import communication
from graphlink.linking.launch import link
from graphlink.linking.match import match_hosts
from graphlink.linking.step_cut import cut, parse_steps
from graphlink.linking.tidy import tidy
from graphlink.model import HostTrace, Trace
from graphlink.read.host import read_host
from graphlink.read.kineto import read_kineto
from graphlink.read.stream import BLOCK_BYTES
from graphlink.run import codec
from graphlink.run.options import Inputs
from graphlink.run.records import LinkedRank
from graphlink.wings import Parts, each, wing

_LARGE_BLOCK: Final = 1 << 18  # 1 MB takes a third longer in two processes that read side by side and share a cache


def link_rank(
    inputs: Inputs, step: str = "all", *, keep_json: bool = False, lenient: bool = False, forked: bool = False
) -> LinkedRank:
    """Read the files of one rank, match its host rows and link its device ops.

    ``keep_json``: keep the nodes of the execution trace as JSON; ``lenient``: leave out an execution trace of another
    run; ``forked``: read it in a second process.

    Raises:
        InputError: a file cannot be read or is of another kind, or the two are of different runs and it is not
            ``lenient``.
        UsageError: there is no such step.
    """
    steps = parse_steps(step)
    with beside(
        functools.partial(_et_of, inputs, keep_json=keep_json), forked=forked and inputs.et is not None
    ) as read_et:
        trace = tidy(trace_of(inputs))
        et = read_et()
    beside_it = {name: hooks.beside(inputs) for name, hooks in each()}
    log.info("linking %d host rows, %d device ops", len(trace.host.start_ns), len(trace.device.start_ns))
    other_run = None
    try:
        match = match_hosts(trace, et if len(trace.host.start_ns) or not lenient else None)
    except InputError as problem:
        if not lenient:
            raise
        other_run = problem.what if problem.where is None else f"{problem.what}: {problem.where}"
        et, match = None, match_hosts(trace, None)
    if inputs.nsys is not None:
        match = replace(match, method="nsys")
    if steps is not None:
        part = cut(trace, match, steps)
        trace, match = part.trace, part.match
    linked = link(on_host_clock(trace), et, match)
    parts = Parts({name: made.part for name, made in beside_it.items() if made.part is not None})
    known = tuple(group for name, part in parts.items() for group in wing(name).groups(part, linked, inputs))
    named = {
        row: group
        for name, part in parts.items()
        for row, group in (wing(name).group_names(part, linked) or {}).items()
    }
    warnings = tuple(text for made in beside_it.values() for text in made.warnings)
    return LinkedRank(trace, linked, communication(linked, known, named), parts, warnings, other_run)


def _et_of(inputs: Inputs, *, keep_json: bool) -> HostTrace | None:
    if inputs.et is None:
        return None
    log.info("reading %s", inputs.et)
    return read_host(inputs.et, keep_json=keep_json, block_bytes=_block_bytes(inputs))


def trace_of(inputs: Inputs) -> Trace:
    """Read what was recorded of the rank.

    Raises:
        InputError: the recording cannot be read.
    """
    if inputs.kineto is not None and inputs.stored is None:
        log.info("reading %s", inputs.kineto)
        return read_kineto(inputs.kineto, block_bytes=_block_bytes(inputs))
    from graphlink.read.nsys.places import number
    from graphlink.read.nsys.report import numbered, read_report

    numbering = inputs.numbering
    if inputs.stored is not None:
        with inputs.stored.open("rb") as stored:
            trace = codec.load(stored, Trace, inputs.stored, "run the command again")
    else:
        log.info("reading %s", inputs.recording)
        contents, traces = read_report(inputs.recording)
        trace = traces[inputs.place]
        numbering = numbering or number([contents])[0]
    return trace if numbering is None else numbered(trace, numbering, inputs.place)


def rank_of(inputs: Inputs, recorded: int | None) -> int:
    """Return the rank that ``--rank`` gives, else the ``recorded`` one, else that of the file's name, else 0."""
    return next((r for r in (inputs.rank, recorded, inputs.expected_rank) if r is not None), 0)


def _block_bytes(inputs: Inputs) -> int:
    """Return how much is read at a time. It decides in which order names are met, so it follows from the files
    alone.
    """
    return _LARGE_BLOCK if sum(sizes_bytes(inputs)) > LARGE_BYTES else BLOCK_BYTES


def sizes_bytes(inputs: Inputs) -> list[int]:
    """Return the sizes of the recording of a rank and its execution trace, unpacked."""
    return [unpacked_bytes(path) for path in (inputs.recording, inputs.et) if path is not None]
