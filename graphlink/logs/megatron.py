"""Logs of Megatron-LM, and of what was made from it: iterations with their time, timers, memory. All other text is left
alone.

Lines of several ranks may be mixed, with the prefix of torchrun, srun or a logger in front; a block of timers goes on
per prefix.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Final

from graphlink.errors import InputError
from graphlink.logs.lines import Sum, lines_of
from graphlink.logs.records import MegatronLog, RankMemory, Timer

MOST_TIMERS: Final = 256
MOST_RANKS: Final = 1 << 20
MOST_INTERVALS: Final = 10_000_000
_NUMBER: Final = r"([+-]?(?:\d{1,15}(?:\.\d{0,15})?(?:[eE][+-]?\d{1,3})?|nan|inf))"
_NAME: Final = r"([a-z][a-z0-9]{0,31}(?:[-_/][a-z0-9]{1,31}){0,8})"
_PREFIX: Final = re.compile(r"(\[[a-z]{1,16}\d{1,6}\]:|\d{1,6}:|[A-Za-z][\w.-]{0,63}:)\s?(?=\S|\s)")
_TIME: Final = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)\]?")
_ITERATION: Final = re.compile(r"\biteration[ =]\s*(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_ELAPSED: Final = re.compile(
    r"elapsed[ _]time[ _]per[ _]iteration(?: \((ms|s|us)\)|_(ms|s|us))\s*[:=]\s*" + _NUMBER + r"(?=\s*(\||$))"
)
_TIMERS: Final = re.compile(r"\btime \(ms\)\s*\|(.*)")
_PAIR: Final = re.compile(r"\s*" + _NAME + r"[ .]*:\s*" + _NUMBER + r"\s*")
_BLOCK: Final = re.compile(r"(\(min, max\) |max |min )?times? across ranks \(ms\):\s*(.*)")
_RANGE: Final = re.compile(r"\s*" + _NAME + r"[ .]*:\s*\(" + _NUMBER + r",\s*" + _NUMBER + r"\)\s*")
_DOTTED: Final = re.compile(r"\s*" + _NAME + r" \.{2,}\s*:\s*" + _NUMBER + r"\s*")
_CUT: Final = re.compile(r"\s*" + _NAME + r" \.{8,}")  # begins the line of a timer, whose rest is missing
_TITLE: Final = re.compile(r"\s*" + _NAME + r":\s*")
_OF_RANK: Final = re.compile(r"\s*rank\s+\d{1,7}\s*:\s*" + _NUMBER + r"\s*")
_MEMORY: Final = re.compile(r"\[Rank (\d{1,7})\] .{0,80}?memory \(MB\)\s*\|(.*)")
_PART: Final = re.compile(r"\s*((?:max )?(?:allocated|reserved))\s*:\s*" + _NUMBER + r"\s*")
_MOST_MS: Final = 1e15  # longer than anything runs, and sums of them are still numbers
_MS: Final = {"ms": 1.0, "s": 1e3, "us": 1e-3}
_TODO: Final = "give the output of the rank that prints 'iteration N/ M | ... | elapsed time per iteration (ms): ...'"


@dataclass(slots=True)
class _Block:
    """An open block of timers of one prefix. ``name``: whose ranks are listed, with the least and the largest
    so far.
    """

    kind: str
    name: str = ""
    least: float = 0.0
    largest: float = 0.0


class _Reader:
    def __init__(self, path: Path):
        self.path = path
        self.iterations: list[int] = []  # the first, the last and out of how many
        self.steps_ms: list[float] = []
        self.numbers: list[int] = []  # the iteration of each
        self.times: list[str] = []
        self.timers: dict[str, dict[str, Sum]] = {}  # lines with one value, the least and the largest rank
        self.samples: Counter[str] = Counter()
        self.memory: dict[int, dict[str, float]] = {}  # the largest figures of each rank
        self.memory_lines: Counter[int] = Counter()
        self.unread: Counter[str] = Counter()
        self.blocks: dict[str, _Block] = {}

    def read(self) -> MegatronLog:
        for text, ended in lines_of(self.path, self.unread):
            self._line(text, ended=ended)
        for prefix in [*self.blocks]:
            self._end_block(prefix)
        if not (self.steps_ms or self.timers or self.memory):
            why = ", ".join(f"{count:,} {reason}" for reason, count in self.unread.items() if reason != "other text")
            raise InputError(
                f"holds no step time, timer or memory of Megatron{f' ({why})' if why else ''}",
                path=self.path,
                todo=_TODO,
            )
        first, last, whole = self.iterations or (None, None, None)
        known = len(self.steps_ms) > 0
        return MegatronLog(
            path=str(self.path),
            first_iteration=first,
            last_iteration=last,
            of_iterations=whole,
            intervals=len(self.steps_ms),
            step_mean_ms=round(fmean(self.steps_ms), 6) if known else None,
            step_median_ms=round(median(self.steps_ms), 6) if known else None,
            from_time=self.times[0] if self.times else None,
            to_time=self.times[-1] if self.times else None,
            timers={name: _timer(self.samples[name], sums) for name, sums in sorted(self.timers.items())},
            memory=[
                RankMemory(
                    rank=rank,
                    lines=self.memory_lines[rank],
                    allocated_mib=most.get("allocated"),
                    max_allocated_mib=most.get("max allocated"),
                    reserved_mib=most.get("reserved"),
                    max_reserved_mib=most.get("max reserved"),
                )
                for rank, most in sorted(self.memory.items())
            ],
            unread=dict(sorted(self.unread.items())),
        )

    def _line(self, text: str, *, ended: bool) -> None:
        prefixed = _PREFIX.match(text)
        prefix, text = (prefixed[1], text[prefixed.end() :]) if prefixed else ("", text)
        if (iteration := _ITERATION.search(text)) is not None:
            self._end_block(prefix)
            self._iteration(iteration, text, ended=ended)
        elif (block := _BLOCK.search(text)) is not None:
            self._end_block(prefix)
            self.blocks[prefix] = _Block((block[1] or "").strip() or "all")
            if block[2]:
                self._in_block(prefix, block[2], ended=ended)
        elif (memory := _MEMORY.search(text)) is not None:
            self._memory_line(int(memory[1]), memory[2], ended=ended)
        elif (timers := _TIMERS.search(text)) is not None:
            self._end_block(prefix)
            self._timer_line(timers[1], ended=ended)
        elif prefix not in self.blocks or not self._in_block(prefix, text, ended=ended):
            self.unread["other text"] += 1

    def _iteration(self, found: re.Match[str], text: str, *, ended: bool) -> None:
        number, whole = int(found[1]), int(found[2])
        elapsed = _ELAPSED.search(text)
        if elapsed is None or not (ended or elapsed[4] == "|"):
            self.unread["iteration without a whole step time"] += 1
            return
        value = float(elapsed[3]) * _MS[elapsed[1] or elapsed[2]]
        if not 0 < value < _MOST_MS:
            self.unread["step time is no positive number"] += 1
            return
        if len(self.steps_ms) >= MOST_INTERVALS:
            raise InputError(
                f"holds more than {MOST_INTERVALS:,} iterations", path=self.path, todo="give the log of one run"
            )
        first, last, _ = self.iterations or (number, number, whole)
        self.iterations = [min(first, number), max(last, number), whole]
        self.steps_ms.append(value)
        self.numbers.append(number)
        time = _TIME.search(text[: found.start()])
        if time is not None:
            self.times = [*self.times[:1], time[1]]

    def _timer_line(self, text: str, *, ended: bool) -> None:
        """Read ``name: value | name: value | ...``."""
        parts = text.split("|")
        for k, part in enumerate(parts):
            pair, ranks = _PAIR.fullmatch(part), _RANGE.fullmatch(part)
            if not part.strip():
                continue
            if pair is not None and (ended or k < len(parts) - 1):
                self._add(pair[1], value=float(pair[2]))
            elif ranks is not None:
                self._add(ranks[1], least=float(ranks[2]), largest=float(ranks[3]))
            else:
                self.unread["timer cannot be read"] += 1

    def _in_block(self, prefix: str, text: str, *, ended: bool) -> bool:
        """Read a line of the block of timers that is open; False if it is none of its lines."""
        block = self.blocks[prefix]
        # ``time across ranks (ms):`` says no kind
        if block.kind in ("(min, max)", "all") and (ranks := _RANGE.fullmatch(text)) is not None:
            self._add(ranks[1], least=float(ranks[2]), largest=float(ranks[3]))
        elif block.kind == "all" and (of_rank := _OF_RANK.fullmatch(text)) is not None and block.name and ended:
            value = float(of_rank[1])
            block.least, block.largest = min(block.least, value), max(block.largest, value)
        elif block.kind == "all" and (title := _TITLE.fullmatch(text)) is not None and text[:1].isspace():
            self._end_block(prefix)
            self.blocks[prefix] = _Block("all", title[1], float("inf"), float("-inf"))
        elif block.kind != "(min, max)" and (dotted := _DOTTED.fullmatch(text)) is not None and ended:
            self._add(dotted[1], **{"least" if block.kind == "min" else "largest": float(dotted[2])})
        elif _CUT.match(text):
            self.unread["timer cannot be read"] += 1
        else:
            return False
        return True

    def _end_block(self, prefix: str) -> None:
        block = self.blocks.pop(prefix, None)
        if block is not None and block.name and block.least <= block.largest:
            self._add(block.name, least=block.least, largest=block.largest)

    def _add(self, name: str, **values: float) -> None:
        """Add a sample to a timer, by what it is of: ``value``, ``least``, ``largest``. What is no finite time from 0
        is not read.
        """
        if not all(0 <= value < _MOST_MS for value in values.values()):
            self.unread["timer is no time"] += 1
            return
        if name not in self.timers and len(self.timers) >= MOST_TIMERS:
            self.unread[f"timer beyond {MOST_TIMERS}"] += 1
            return
        sums = self.timers.setdefault(name, {kind: Sum() for kind in ("value", "least", "largest")})
        self.samples[name] += 1
        for kind, value in values.items():
            sums[kind].add(value)

    def _memory_line(self, rank: int, text: str, *, ended: bool) -> None:
        parts = text.split("|")
        figures = [_PART.fullmatch(part) for part in parts]
        whole = [part for k, part in enumerate(figures) if part is not None and (ended or k < len(parts) - 1)]
        self.unread["memory figure cannot be read"] += sum(bool(part.strip()) for part in parts) - len(whole)
        self.unread = +self.unread
        if not whole or (rank not in self.memory and len(self.memory) >= MOST_RANKS):
            return
        self.memory_lines[rank] += 1
        most = self.memory.setdefault(rank, {})
        for part in whole:
            value = float(part[2])
            if 0 <= value < float("inf"):
                most[part[1]] = max(value, most.get(part[1], 0.0))


def _timer(samples: int, sums: dict[str, Sum]) -> Timer:
    mean_ms, min_ms, max_ms = (one.mean(6) for one in sums.values())
    return Timer(samples=samples, mean_ms=mean_ms, min_ms=min_ms, max_ms=max_ms)


def logged_steps(path: Path) -> tuple[list[int], list[float]]:
    """Return (iteration, ms) of each line with a step time, in the order of the file.

    Raises:
        InputError: as ``read_megatron``.
    """
    reader = _Reader(path)
    reader.read()
    return reader.numbers, reader.steps_ms


def read_megatron(paths: Sequence[Path]) -> list[MegatronLog]:
    """Read logs of Megatron.

    Raises:
        InputError: a file cannot be opened, or holds nothing that Megatron logs about time or memory.
    """
    return [_Reader(path).read() for path in paths]
