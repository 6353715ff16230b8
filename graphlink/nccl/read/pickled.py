"""Values out of a pickle without running it: numbers, texts, lists, tuples and dicts, and nothing else.

A pickle is a program for a small stack machine, whose other opcodes look up and call what the file names. This reader
has no code for those: it stops at the first, before it reads what that asks for. It also bounds what a few bytes can
ask for (memo places, lengths, containers without end).
"""

from __future__ import annotations

import io
import pickletools
from typing import Any, Final

MOST_BYTES: Final = 64 << 20  # a full buffer of 20,000 entries with stack traces has about 40 MB
MOST_OPCODES: Final = 1 << 23
MOST_CONTAINERS: Final = 1 << 21

_OPCODES: Final = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES: Final = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", *_CONSTANTS}
)
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_PUTS: Final = frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"})
_EMPTY: Final[dict[str, type]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TAKES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "SETITEM": 2}  # so many from the stack
_TAKES_TO_MARK: Final = frozenset({"TUPLE", "APPENDS", "SETITEMS"})
_MAKES: Final = frozenset({*_EMPTY, "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE", "MARK"})  # a container, or the begin of one
_PLAIN: Final = frozenset({*_VALUES, *_GETS, *_PUTS, *_TAKES, *_TAKES_TO_MARK, *_MAKES, "PROTO", "FRAME", "STOP"})


class Refused(Exception):
    """What is wrong in a pickle, and the byte at which it is."""


def load(text: bytes) -> Any:
    """Return the value that ``text``, a pickle of protocol 2 to 5, stands for. One step an opcode.

    Raises:
        Refused: it asks for anything but plain values, is damaged or cut, or goes beyond the bounds.
    """
    machine = _Machine()
    file = io.BytesIO(text)
    at = containers = 0
    try:
        for _ in range(MOST_OPCODES):
            byte = file.read(1)[0]
            at = file.tell()
            opcode = _OPCODES.get(byte)
            if opcode is None or opcode.name not in _PLAIN:
                name = opcode.name if opcode else f"opcode {byte:#x}"
                raise Refused(f"the pickle asks for more than plain values ({name})", at - 1)
            if opcode.name == "STOP":
                return machine.stack.pop()
            machine.step(opcode.name, opcode.arg.reader(file) if opcode.arg else None)
            containers += opcode.name in _MAKES
            if containers > MOST_CONTAINERS:
                raise Refused(f"the pickle holds more than {MOST_CONTAINERS:,} lists and dicts", at)
    except (IndexError, KeyError, ValueError):
        raise Refused("the pickle is damaged or cut off", at) from None
    raise Refused(f"the pickle has more than {MOST_OPCODES:,} steps", at)


class _Machine:
    """An IndexError, KeyError or ValueError of a step means a damaged pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under the marks
        self._memo: dict[int, Any] = {}

    def step(self, name: str, arg: Any) -> None:
        """Carry out one opcode."""
        if name in _GETS:
            self.stack.append(self._memo[arg])
        elif name in _PUTS:
            self._memo[len(self._memo) if arg is None else arg] = self.stack[-1]
        elif name in _VALUES:
            if isinstance(arg, str):
                arg.encode()  # no lone surrogates, which the opcode's reader lets through
            self.stack.append(_CONSTANTS.get(name, arg))
        elif name in _EMPTY:
            self.stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._below.append(self.stack)
            self.stack = []
        elif name in _TAKES:
            self._put(name, [self.stack.pop() for _ in range(_TAKES[name])][::-1])
        elif name in _TAKES_TO_MARK:
            items, self.stack = self.stack, self._below.pop()
            self._put(name, items)

    def _put(self, name: str, items: list[Any]) -> None:
        """Make a tuple of what was taken, or put it into the list or dict that is now on top."""
        if name.startswith("TUPLE"):
            self.stack.append(tuple(items))
            return
        target, keys = self.stack[-1], items[::2]
        if name.startswith("APPEND") and type(target) is list:
            target.extend(items)
        # a key that is a deep tuple would be hashed by recursion
        elif name.startswith("SETITEM") and type(target) is dict and all(type(key) in (str, int) for key in keys):
            target.update(zip(keys, items[1::2], strict=True))  # ValueError: a key without a value
        else:
            raise ValueError
