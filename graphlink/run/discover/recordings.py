"""Which recordings a run is made of, as a caller names them."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphlink.errors import UsageError, bad_value
from graphlink.records import Short


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Recordings(Short):
    """Name the recordings that a run is linked from: files, patterns that match files, and of Kineto, ET and NCCL also URLs.

    Attributes:
        folders: Folders and files, or patterns that match them: recordings told by content and paired by rank; not beside ``kineto``,
            ``et`` or ``nsys``.
        kineto: Kineto traces.
        et: Execution traces, paired with them by rank.
        nsys: nsys exports (sqlite), instead of Kineto traces.
        nccl: Side files of NCCL or the Flight Recorder, or folders of them, beside Kineto traces.
        paddle_logs: A folder of Paddle's worker logs, instead of all else: bubbles only.
        rank: The rank of a single pair, whatever it says.
        strict: A rank or a partner that is missing is an error, not a warning.
        same_run: Recordings that differ in number of ranks, job or time are of one run all the same.

    Raises:
        UsageError: nothing is named, or what is named cannot be given together.
    """

    folders: tuple[str, ...] = ()
    kineto: tuple[str, ...] = ()
    et: tuple[str, ...] = ()
    nsys: tuple[str, ...] = ()
    nccl: tuple[str, ...] = ()
    paddle_logs: str | None = None
    rank: int | None = None
    strict: bool = False
    same_run: bool = False

    def __post_init__(self) -> None:
        named = [n for n in ("folders", "kineto", "nsys", "paddle_logs") if getattr(self, n)]
        if not named:
            raise UsageError("no Kineto trace given", todo="name a folder of recordings, Kineto traces or nsys exports")
        if len(named) > 1:
            raise UsageError(f"{named[0]} and {named[1]} cannot be given together", todo="give one of them")
        other = next((n for n in ("et", "nccl") if getattr(self, n) and named[0] not in ("kineto", "folders")), None)
        if other is not None or (self.et and self.folders):
            raise UsageError(f"{other or 'et'} cannot be given with {named[0]}", todo="give it with kineto")
        if self.rank is not None and self.rank < 0:
            raise bad_value("rank", self.rank, "a number from 0")

    @classmethod
    def of(cls, names: Sequence[str | Path]) -> Recordings:
        """Take folders and files, which are told by content when they are looked for.

        Raises:
            UsageError: nothing is named.
        """
        return cls(folders=tuple(map(str, names)))

    @property
    def several(self) -> bool:
        """Whether more than one pair may be meant."""
        names = self.folders or self.kineto
        return len(names) > 1 or any(glob.has_magic(name) or Path(name).is_dir() for name in names)
