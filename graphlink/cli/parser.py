"""The parsed command line: a verb and its options, or what was probably meant."""

from __future__ import annotations

import argparse
import glob
import os
from collections.abc import Iterable, Sequence
from typing import Final

from graphlink.cli.link import USAGE
from graphlink.cli.out import Parser, texts
from graphlink.cli.verbs import VERBS
from graphlink.engine.files import is_url, refuse_urls
from graphlink.errors import UsageError
from graphlink.version import __version__
from graphlink.wings import Verb

_DESCRIPTION: Final = "Turns recorded GPU training runs into dependency graphs that simulators can trust."
_LISTED: Final = "verbs:\n" + "\n".join(f"  {f'{verb.name} {verb.takes}':<22} {verb.does}" for verb in VERBS.values())
_EXAMPLES: Final = """examples:
  graphlink traces/ --out out
  graphlink replay out --scale kernel=0.5
"""
_EXAMPLES_OF_LINK: Final = """  graphlink kineto_0.json.gz
  graphlink --et et_0.json --kineto kineto_0.json --out out
  graphlink --et 'et_*.json' --kineto 'kineto_*.json' --out out
  graphlink --kineto kineto_0.json --nccl nccl_dumps/ --out out
  graphlink 'hosts/*' --strict --out out
  graphlink --nsys run.sqlite --out out
  graphlink --paddle-logs log_dir --out out

exit status: 0 done, 1 the input is at fault, 2 wrong usage, 3 some ranks of several failed, 4 diff --fail-on
exceeded, 130 interrupted (143 by SIGTERM or SIGHUP)
"""
SHORT_HELP: Final = f"""usage: graphlink DIR|FILE ... [options]
       graphlink VERB DIR [options]

{_LISTED}

{_EXAMPLES}
graphlink --help and graphlink VERB --help have the options"""
_ALIKE: Final = 0.7  # of two words, by ``difflib``: replay and reply 0.91, check and checkpoints 0.63


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments, with ``verb`` and what runs it (``run``). Leaves through SystemExit for help and version.

    Raises:
        UsageError: there is no such verb or option, or a value is none that it takes.
    """
    if argv and argv[0] not in VERBS:
        _refuse_verb(argv)
    verb, rest = (VERBS[argv[0]], argv[1:]) if argv and argv[0] in VERBS else (VERBS["link"], argv)
    parser = parser_of(verb)
    _refuse_options(parser, rest)
    arguments = parser.parse_args(rest, argparse.Namespace(verb=verb.name, run=verb.run))
    refuse_urls([arguments.json or ""] if verb.urls else texts(vars(arguments)))
    return arguments


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    """Return the parser of a verb; that of ``link`` is the one of ``graphlink`` as well."""
    main = verb.name == "link"
    parser = Parser(
        prog="graphlink" if main else f"graphlink {verb.name}",
        usage=USAGE if main else None,
        description=_DESCRIPTION if main else f"{verb.does[0].upper()}{verb.does[1:]}.",
        epilog=f"{_LISTED}\n\n{_EXAMPLES}{_EXAMPLES_OF_LINK}" if main else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if main:
        parser.add_argument("--version", action="version", version=f"graphlink {__version__}")
    verb.options.add_to(parser)
    parser.add_argument(
        "--json", metavar="FILE", help="also write what is printed, and more, as data; - prints the data alone"
    )
    return parser


def _refuse_verb(argv: Sequence[str]) -> None:
    """Refuse a first argument that is no verb, no option and nothing there, but much like a verb; and a verb that comes
    late.
    """
    first = argv[0]
    if first.startswith("-") or is_url(first) or glob.has_magic(first):
        return
    if not os.path.lexists(first):
        _refuse_like(first, [*VERBS, "--help", "--version"], "verb, file or folder", "graphlink --help lists the verbs")
    elif len(argv) == 2 and argv[1] in VERBS and not os.path.lexists(argv[1]):
        raise UsageError(f"{argv[1]}: a verb comes first", todo=f"graphlink {argv[1]} {first}")


def _refuse_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    known = parser._option_string_actions
    for word in argv:
        name = word.partition("=")[0]
        if word == "--":
            return
        if name.startswith("--") and " " not in name and name not in known:
            _refuse_like(name, known, "option", f"see {parser.prog} --help")


def _refuse_like(word: str, known: Iterable[str], what: str, todo: str) -> None:
    """Raise UsageError with the one of ``known`` that is most like ``word``; if none is, this only refuses options."""
    from difflib import get_close_matches

    like = get_close_matches(word.lower(), list(known), 1, _ALIKE)
    if like or what == "option":
        raise UsageError(f"{word}: there is no such {what}", todo=f"did you mean {like[0]}? {todo}" if like else todo)
