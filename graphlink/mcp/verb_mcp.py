"""``graphlink mcp``: the verbs that only read as tools of the Model Context Protocol.

Tools, what they take and what they tell come from the verbs, their options and their schemas. A tool gets the options
that name no file, and reads below the root alone; it runs the verb in this process, one at a time, with ``--json -``.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from graphlink.choices import Option, VerbOptions
from graphlink.cli.arguments import at_least_one, count, run_folder
from graphlink.cli.parser import parse, parser_of
from graphlink.cli.verbs import VERBS
from graphlink.errors import GraphlinkError, UsageError
from graphlink.output_names import SUMMARY
from graphlink.run.schemas import FILES
from graphlink.version import __version__
from graphlink.wings import Verb

_RUNS: Final = "runs"
_MOST_BYTES: Final = 2_000_000  # of an answer
_MOST_FILES: Final = 10_000  # that are looked at below the root for runs, or below a path for links
_NAMES_FILES: Final = ("FILE", "FOLDER", "DIR")  # how the place of a file begins in the help of an option
_ORDER: Final = (
    "Runs are output folders of graphlink, named relative to the root. Ask runs first, then show (how far to trust "
    "it), idle, ops and advice, then replay for what a change would save, and diff for two runs. Times are in ns."
)


MCP_OPTIONS: Final = VerbOptions(
    (Option("root", metavar="DIR", help="the folder below which runs lie; nothing else is read"),),
)


def mcp(arguments: argparse.Namespace) -> int:
    """Run tools for a client until it closes standard input; 0.

    Raises:
        InputError: there is no such folder.
        UsageError: the package ``mcp`` is missing, or ``--json`` was given.
    """
    root = run_folder(arguments.root).resolve()
    if arguments.json is not None:
        raise UsageError("--json: standard output is the client's", todo="leave it out")
    try:
        import anyio
        import mcp.types as types
        from mcp.server import Server
        from mcp.server.stdio import stdio_server
    except ImportError:
        todo = "pip install 'mcp>=2' (it is the extra mcp: pip install '.[mcp]' in a clone)"
        raise UsageError("graphlink mcp needs the package mcp, version 2, which is not there", todo=todo) from None

    async def listed(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[types.Tool(**tool) for tool in tools()])

    async def called(context: Any, params: Any) -> Any:
        work = functools.partial(answer, root, params.name, params.arguments or {})
        try:
            text = await anyio.to_thread.run_sync(work, limiter=alone)
        except Exception as problem:  # noqa: BLE001 - whatever a call makes fail, its client is told, and the server goes on
            text = problem.text() if isinstance(problem, GraphlinkError) else f"{type(problem).__name__}: {problem}"
            return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
        content = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(content=content, structured_content=json.loads(text))

    async def serve() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    alone = anyio.CapacityLimiter(1)
    server = Server("graphlink", version=__version__, instructions=_ORDER, on_list_tools=listed, on_call_tool=called)
    anyio.run(serve)
    return 0


def tools() -> Iterator[dict[str, Any]]:
    """Yield name, description and schemas of each tool."""
    listing = {"type": "object", "properties": {_RUNS: {"type": "array", "items": {"type": "string"}}}}
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    yield {
        "name": _RUNS,
        "description": "List the runs below the root: output folders of graphlink",
        "input_schema": nothing,
        "output_schema": listing,
    }
    for verb in VERBS.values():
        if verb.tells:
            kinds = [FILES[f"{name}.schema.json"] for name in verb.tells if f"{name}.schema.json" in FILES]
            told, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
            options = {_named(action): action for action in _options(verb)}
            yield {
                "name": verb.name,
                "description": f"{verb.does[0].upper()}{verb.does[1:]}",
                "input_schema": {
                    "type": "object",
                    "properties": {name: _schema(action) for name, action in options.items()},
                    "required": [name for name, action in options.items() if not action.option_strings],
                    "additionalProperties": False,
                },
                "output_schema": {"type": "object", "anyOf": [*told], "$defs": parts},
            }


def answer(root: Path, name: str, given: Mapping[str, Any]) -> str:
    """Return what a tool tells, as JSON.

    Raises:
        GraphlinkError: there is no such tool, a path leads out of the root, or as the verb does.
    """
    if name == _RUNS:
        return json.dumps({_RUNS: list(_runs(root))})
    if name not in VERBS or not VERBS[name].tells:
        raise UsageError(f"{name}: there is no such tool", todo="list the tools")
    actions = {_named(action): action for action in _options(VERBS[name])}
    words: list[str] = []
    for key, value in given.items():
        if key not in actions:
            raise UsageError(f"{name} takes no {key}", todo=f"one of {', '.join(actions)}")
        values = _values(actions[key], value)
        if actions[key].option_strings:
            option = max(actions[key].option_strings, key=len)
            words += [option if inner is True else f"{option}={inner}" for inner in values]
        else:
            words += [str(_below(root, str(inner))) for inner in values]
    arguments = parse([name, *words, "--json", "-"])
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        arguments.run(arguments)
    if len(out.getvalue()) > _MOST_BYTES:
        raise UsageError(f"the answer has {len(out.getvalue()):,} characters", todo="ask for one rank, or a lower top")
    return out.getvalue()


def _values(action: argparse.Action, given: Any) -> list[Any]:
    """Return what is given for an argument, one value each time that the command line would name it.

    Raises:
        UsageError: it is not of the kind that the schema says.
    """
    schema = _schema(action)
    if given is None or (given is False and schema["type"] == "boolean"):
        return []
    values = given if isinstance(given, list) and schema["type"] == "array" else [given]
    for value in values:
        fits = value is True if schema["type"] == "boolean" else type(value) in (str, int, float)
        if not fits or "\0" in str(value):
            kind = schema.get("items", schema)["type"]
            raise UsageError(f"{_named(action)}: {value!r} is not of type {kind}", todo="give what the schema says")
    return values


def _options(verb: Verb) -> Iterator[argparse.Action]:
    """Yield what a tool takes of the arguments of a verb: all but help, options that name files, and those
    that only change how it is printed.
    """
    for action in parser_of(verb)._actions:
        names_file = bool(action.option_strings) and str(action.metavar).startswith(_NAMES_FILES)
        if not (names_file or action.dest in ("help", "verbose", "markdown")):
            yield action


def _named(action: argparse.Action) -> str:
    """Return the name of an argument, as on the command line: ``dir`` for ``DIR|FILE.et``, else that of the option."""
    return max(action.option_strings, key=len, default=str(action.metavar).split("|")[0].lower()).lstrip("-")


def _schema(action: argparse.Action) -> dict[str, Any]:
    """Return the schema of an argument."""
    kind = "integer" if action.type in (count, at_least_one) else "string" if action.type is None else "number"
    made: dict[str, Any] = {"type": "boolean" if action.nargs == 0 else kind}
    if action.choices is not None:
        made["enum"] = [*action.choices]
    if action.nargs == "*" or isinstance(action, argparse._AppendAction):
        made = {"type": "array", "items": made}
    return {**made, "description": f"{(action.help or '') % vars(action)} ({action.metavar or action.dest})"}


def _runs(root: Path) -> Iterator[str]:
    """Yield the folders below the root that hold a summary, of the first ``_MOST_FILES``."""
    for folder, inner, names in itertools.islice(os.walk(root), _MOST_FILES):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if SUMMARY in names:
            yield os.path.relpath(folder, root)


def _below(root: Path, given: str) -> Path:
    """Return the path that is given, relative to the root.

    Raises:
        UsageError: it, or a link in it, leads out of the root, or it holds too many files to know.
    """
    path = (root / given).resolve()
    out = UsageError(f"{given}: leads out of the folder of the server", todo="ask for a run below it")
    if not path.is_relative_to(root):
        raise out
    everything = (Path(folder) / name for folder, inner, names in os.walk(path) for name in (*inner, *names))
    inside = [*itertools.islice(everything, _MOST_FILES + 1)]
    if len(inside) > _MOST_FILES:
        raise UsageError(f"{given}: holds more than {_MOST_FILES:,} files", todo="name a folder of one run")
    if not all(inner.resolve().is_relative_to(root) for inner in inside):
        raise out
    return path
