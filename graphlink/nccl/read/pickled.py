"""Values out of a pickle without running it: numbers, texts, lists, tuples and dicts, and nothing else.

A pickle is a program for a small stack machine, whose other opcodes look up and call what the file names. This reader has no code for
those: it stops at the first, before it reads what that asks for. It also bounds what a few bytes can ask for (memo places, lengths,
containers without end).
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
_NUMBERS: Final = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"})
_TEXTS: Final = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_GETS: Final = frozenset({"BINGET", "LONG_BINGET"})
_PUTS: Final = frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"})
_EMPTY: Final[dict[str, type]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OTHERS: Final = frozenset({"PROTO", "FRAME", "STOP", "MARK", "TUPLE", "APPEND", "APPENDS", "SETITEM", "SETITEMS"})
_PLAIN: Final = frozenset({*_CONSTANTS, *_NUMBERS, *_TEXTS, *_GETS, *_PUTS, *_EMPTY, *_TUPLES, *_OTHERS})


class Refused(Exception):
    """What is wrong, and the byte where."""

    def __init__(self, what: str, at: int):
        super().__init__(what)
        self.what, self.at = what, at


def load(text: bytes) -> Any:
    """Return the value that ``text``, a pickle of protocol 2 to 5, stands for. One step an opcode.

    Raises:
        Refused: it asks for anything but plain values, is damaged or cut, or goes beyond the bounds.
    """
    machine = _Machine()
    file = io.BytesIO(text)
    at = 0
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
            if machine.containers > MOST_CONTAINERS:
                raise Refused(f"the pickle holds more than {MOST_CONTAINERS:,} lists and dicts", at)
    except (IndexError, KeyError, ValueError):
        raise Refused("the pickle is damaged or cut off", at) from None
    raise Refused(f"the pickle has more than {MOST_OPCODES:,} steps", at)


class _Machine:
    """An IndexError, KeyError or ValueError of a step means a damaged pickle. ``containers``: how many were asked for, and marks."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.containers = 0
        self._below: list[list[Any]] = []  # the stacks under the marks
        self._memo: dict[int, Any] = {}

    def step(self, name: str, arg: Any) -> None:
        """Carry out one opcode."""
        stack = self.stack
        if name in _GETS:
            stack.append(self._memo[arg])
        elif name in _PUTS:
            self._memo[len(self._memo) if arg is None else arg] = stack[-1]
        elif name in _TEXTS:
            arg.encode()  # no lone surrogates, which the opcode's reader lets through
            stack.append(arg)
        elif name in _NUMBERS:
            stack.append(arg)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            self.containers += 1
            self._below.append(stack)
            self.stack = []
        elif name in _EMPTY:
            self._push(_EMPTY[name]())
        elif name in _TUPLES:
            items = [stack.pop() for _ in range(_TUPLES[name])]
            self._push(tuple(reversed(items)))
        elif name == "TUPLE":
            self._push(tuple(self._pop_to_mark()))
        elif name in ("APPEND", "APPENDS"):
            self._extend([stack.pop()] if name == "APPEND" else self._pop_to_mark())
        elif name in ("SETITEM", "SETITEMS"):
            self._set([stack.pop(), stack.pop()][::-1] if name == "SETITEM" else self._pop_to_mark())

    def _push(self, value: Any) -> None:
        self.containers += 1
        self.stack.append(value)

    def _pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self._below.pop()
        return items

    def _extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise ValueError
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        # a key that is a deep tuple would be hashed by recursion
        if type(target) is not dict or len(items) % 2 or any(type(key) not in (str, int) for key in keys):
            raise ValueError
        target.update(zip(keys, items[1::2], strict=True))
