"""All verbs of ``graphlink``, in the order in which they are listed: those of the core, and those of wings."""

from __future__ import annotations

from typing import Final

from graphlink.wings import Verb, each

_OF_CORE: Final = (
    Verb(
        10,
        "link",
        "DIR|FILE ...",
        "link execution and Kineto traces into graphs: the main job, also without the word",
        "cli.link:link",
        urls=True,
    ),
    Verb(
        20,
        "join",
        "DIR",
        "join the ranks that link --rank-job left in DIR, and publish their files there",
        "cli.link:join",
        urls=True,
    ),
    Verb(
        30,
        "show",
        "DIR|FILE.et",
        "print the summary of an earlier run, or a node of a graph with its edges",
        "cli.show:show",
        tells=("summary", "node", "scale"),
    ),
    Verb(
        40,
        "replay",
        "DIR|FILE.et",
        "replay graphs, compare with the recording, ask what if",
        "cli.replay:replay",
        tells=("replay", "replay.list"),
    ),
    Verb(
        50,
        "critical-path",
        "DIR",
        "print the critical path of a rank or over all ranks, and what would be gained",
        "cli.critical:critical",
        tells=("critical_path", "critical_path.ranks"),
    ),
    Verb(120, "export", "DIR", "write the tables of a run as parquet, arrow or csv files", "cli.export:export"),
)
_OF_WINGS: Final = [verb for _, hooks in each() for verb in hooks.verbs]
VERBS: Final = {verb.name: verb for verb in sorted((*_OF_CORE, *_OF_WINGS))}
