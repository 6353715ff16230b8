"""Values out of a pickle without running it: numbers, texts, lists, tuples and dicts, and nothing else.

A pickle is a program for a small stack machine, whose other opcodes look up and call what the file names. This reader has no code for
those: it stops at the first. It also bounds what a few bytes can ask for (memo places, lengths, containers without end).
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any, Final

MOST_BYTES: Final = 64 << 20  # a full buffer of 20,000 entries with stack traces has about 40 MB
MOST_OPCODES: Final = 1 << 23
MOST_CONTAINERS: Final = 1 << 21

_INT32, _UINT16, _UINT32, _UINT64 = (struct.Struct(code) for code in ("<i", "<H", "<I", "<Q"))
_FLOAT: Final = struct.Struct(">d")
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_CONSTANTS: Final = {ord("N"): None, 0x88: True, 0x89: False}
_NUMBERS: Final = {ord("J"): _INT32, ord("M"): _UINT16, ord("G"): _FLOAT}
_TEXT_SIZES: Final = {ord("X"): _UINT32, 0x8D: _UINT64}
_TUPLES: Final = {0x85: 1, 0x86: 2, 0x87: 3}


class Refused(Exception):
    """What is wrong, and the byte where."""

    def __init__(self, what: str, at: int):
        super().__init__(what)
        self.what, self.at = what, at


def load(text: bytes) -> Any:
    """The value that ``text``, a pickle of protocol 2 to 5, stands for. One step an opcode.

    Raises:
        Refused: it asks for anything but plain values, is damaged or cut, or goes beyond the bounds.
    """
    machine = _Machine(text)
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError):
        raise Refused("the pickle is damaged or cut off", machine.at) from None


class _Machine:
    """``at``: the byte behind the opcode that is being carried out. An IndexError or KeyError means a damaged pickle."""

    def __init__(self, text: bytes):
        self._text = text
        self.at = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under the marks
        self._memo: dict[int, Any] = {}
        self._containers = 0

    def run(self) -> Any:
        text, steps = self._text, 0
        while steps < MOST_OPCODES:
            steps += 1
            opcode = text[self.at]
            self.at += 1
            if opcode == 0x2E:  # STOP
                return self._stack.pop()
            self._step(opcode)
        raise Refused(f"the pickle has more than {MOST_OPCODES:,} steps", self.at)

    def _step(self, opcode: int) -> None:
        stack = self._stack
        if opcode == 0x68:  # BINGET
            stack.append(self._memo[self._byte()])
        elif opcode == 0x6A:  # LONG_BINGET
            stack.append(self._memo[self._number(_UINT32)])
        elif opcode == 0x71:  # BINPUT
            self._memo[self._byte()] = stack[-1]
        elif opcode == 0x72:  # LONG_BINPUT
            self._memo[self._number(_UINT32)] = stack[-1]
        elif opcode == 0x94:  # MEMOIZE
            self._memo[len(self._memo)] = stack[-1]
        elif opcode == 0x28:  # MARK
            self._contains()
            self._below.append(stack)
            self._stack = []
        elif opcode == 0x4B:  # BININT1
            stack.append(self._byte())
        elif opcode in _NUMBERS:
            stack.append(self._number(_NUMBERS[opcode]))
        elif opcode == 0x8A:  # LONG1
            stack.append(int.from_bytes(self._take(self._byte()), "little", signed=True))
        elif opcode in _TEXT_SIZES:
            stack.append(self._take(self._number(_TEXT_SIZES[opcode])).decode())
        elif opcode == 0x8C:  # SHORT_BINUNICODE
            stack.append(self._take(self._byte()).decode())
        elif opcode in _CONSTANTS:
            stack.append(_CONSTANTS[opcode])
        else:
            self._container(opcode)

    def _container(self, opcode: int) -> None:
        if opcode == 0x5D:  # EMPTY_LIST
            self._push_container([])
        elif opcode == 0x7D:  # EMPTY_DICT
            self._push_container({})
        elif opcode == 0x29:  # EMPTY_TUPLE
            self._push_container(())
        elif opcode in _TUPLES:
            size = _TUPLES[opcode]
            items = tuple(self._stack[-size:])
            if len(items) < size:
                raise IndexError
            del self._stack[-size:]
            self._push_container(items)
        elif opcode == 0x74:  # TUPLE
            items = tuple(self._pop_to_mark())
            self._push_container(items)
        elif opcode == 0x65:  # APPENDS
            appended = self._pop_to_mark()
            self._list().extend(appended)
        elif opcode == 0x61:  # APPEND
            item = self._stack.pop()
            self._list().append(item)
        elif opcode == 0x75:  # SETITEMS
            self._set(self._pop_to_mark())
        elif opcode == 0x73:  # SETITEM
            value, key = self._stack.pop(), self._stack.pop()
            self._set([key, value])
        elif opcode == 0x80:  # PROTO
            self._byte()
        elif opcode == 0x95:  # FRAME
            self._number(_UINT64)
        else:
            raise Refused(f"the pickle asks for more than plain values ({_NAMES.get(opcode, f'opcode {opcode:#x}')})", self.at - 1)

    def _byte(self) -> int:
        self.at += 1
        return self._text[self.at - 1]

    def _take(self, size: int) -> bytes:
        if size > len(self._text) - self.at:
            raise IndexError
        self.at += size
        return self._text[self.at - size : self.at]

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack(self._take(form.size))[0]

    def _contains(self) -> None:
        self._containers += 1
        if self._containers > MOST_CONTAINERS:
            raise Refused(f"the pickle holds more than {MOST_CONTAINERS:,} lists and dicts", self.at)

    def _push_container(self, value: Any) -> None:
        self._contains()
        self._stack.append(value)

    def _pop_to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._below.pop()
        return items

    def _list(self) -> list[Any]:
        target = self._stack[-1]
        if type(target) is not list:
            raise IndexError
        return target

    def _set(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        # a key that is a deep tuple would be hashed by recursion
        if type(target) is not dict or len(items) % 2 or any(type(key) not in (str, int) for key in keys):
            raise IndexError
        target.update(zip(keys, items[1::2], strict=True))
