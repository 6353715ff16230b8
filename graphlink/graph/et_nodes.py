"""Decodes the nodes of a ``.et``: those of a block at once, or one by one.

The form of a node is its bytes without those of its integers and dependencies. Nodes repeat forms by the thousand, so
what is no integer is read from protobuf's message of one node of each form, which also tells the column of each
attribute. A block with a node that has fields twice, in another order or others than these is read one by one, so both
ways read the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from chakra.schema.protobuf import et_def_pb2 as pb
from google.protobuf.message import DecodeError

from graphlink.errors import InputError
from graphlink.graph.attributes import pieces
from graphlink.graph.et_columns import ABSENT, COLUMNS, EXPECTED, MOST_MICROS, TWICE, NodeBlock
from graphlink.graph_model import BAD_GROUP, HAS, NO_GROUP, UNKNOWN_DEP, EdgeKind, OddAttribute
from graphlink.model import I64, NOWHERE, U64
from graphlink.tables import counted_from, marked, spread

TODO: Final = "name a .et file of graphlink or of Chakra"
_INT64: Final = (1 << 63) - 1
_GROUP: Final = EXPECTED["pg_name"][0]
_KIND_CODE: Final = {k.name.lower(): int(k) for k in EdgeKind}
_NAME, _HAS, _DEPS, _START, _TOOK = map(COLUMNS.index, ("name", "has", "data_deps", "start_micros", "duration_micros"))
_FIRST: Final = len(COLUMNS) - len(ABSENT)  # of the columns of attributes; the id stands behind the last
# fields of ``Node`` by the byte before them: columns of integers, lists of ids, attributes, and the others
_COLUMN: Final = spread(256, np.array([0x08, 0x30, 0x38]), np.array([len(COLUMNS), _START, _TOOK]))
_DATA, _CTRL, _ATTRIBUTE = 0x2A, 0x22, 0x52
_KNOWN: Final = marked(256, np.array([0x08, 0x12, 0x18, _CTRL, _DATA, 0x30, 0x38, 0x42, 0x4A, _ATTRIBUTE]))
_MOST_FIELDS: Final = 64  # of a node that is read at once
_MOST_FORMS: Final = 1 << 16  # that are kept
_PAD: Final = bytes(300)  # behind a block: so far a word can begin behind what is read
_8, _BYTE, _HIGH, _LOW = (np.uint64(bits) for bits in (8, 0xFF, 0x8080808080808080, 0x0101010101010101))
_WORD: Final = np.array([(1 << 8 * size) - 1 for size in range(9)] + [0, (1 << 64) - 1], np.uint64)  # its first bytes
_NEGATIVE: Final = 10  # bytes of a negative integer: eight that all have the high bit, and two
# how the seven bits of each byte become one number: what stays, and what moves by so many bits
_JOINED: Final = (
    (1, 0x007F007F007F007F, 0x3F803F803F803F80),
    (2, 0x00003FFF00003FFF, 0x0FFFC0000FFFC000),
    (4, 0x000000000FFFFFFF, 0x00FFFFFFF0000000),
)


class _Form(NamedTuple):
    """A node of a form, alone, its name, and the column of each of its attributes, ``NOWHERE`` for none."""

    node: NodeBlock
    name: str
    columns: list[int]


class Forms:
    """The forms of nodes that were read, and the number of each by its bytes; ``NOWHERE``: its nodes are read one by
    one."""

    def __init__(self) -> None:
        self.number: dict[bytes, int] = {}
        self.known: list[_Form] = []

    def of(self, keys: list[bytes], messages: list[bytes]) -> I64:
        """Return the number of the form of each message, by its key."""
        if len(self.known) > _MOST_FORMS:
            self.number, self.known = {}, []
        number = self.number
        for key, k in {key: k for k, key in enumerate(keys) if key not in number}.items():
            number[key] = self._added(messages[k])
        return np.array([number[key] for key in keys], np.int64)

    def _added(self, message: bytes) -> int:
        try:
            node = pb.Node.FromString(message)
        except DecodeError:
            return NOWHERE
        alone, names = NodeBlock(), [attribute.name for attribute in node.attr]
        _add(alone, node, 0, {})
        if alone.odd or len({*names}) < len(names):
            return NOWHERE
        expected = [EXPECTED.get(name, (0, "")) for name in names] + [(0, "")] * (_MOST_FIELDS - len(names))
        columns = [_FIRST + column if kind == "int64_val" else NOWHERE for column, kind, *_ in expected]
        self.known.append(_Form(alone, node.name, columns))
        return len(self.known) - 1


def decoded(path: Path, names: dict[str, int], forms: Forms, first: int, block: list[tuple[int, bytes]]) -> NodeBlock:
    """Decode the messages of a block, each with the byte at which its length stands, of which the first is node
    ``first`` of the file; ``names``: codes of names, in order of appearance.

    Raises:
        InputError: a message is no node.
    """
    out = _at_once([message for _, message in block], names, forms, first)
    if out is not None:
        return out
    out = NodeBlock()
    for k, (offset, message) in enumerate(block):
        try:
            node = pb.Node.FromString(message)
        except DecodeError:
            what, where = "is no Chakra graph: a message is no node", f"byte {offset}"
            raise InputError(what, path=path, where=where, todo=TODO) from None
        _add(out, node, first + k, names)
    return out


def _at_once(messages: list[bytes], names: dict[str, int], forms: Forms, first: int) -> NodeBlock | None:
    """Decode nodes; None where one is not as expected."""
    data, size = b"".join([*messages, _PAD]), np.array([*map(len, messages)], np.int64)
    words = np.ndarray(len(data) - 7, np.dtype("<u8"), data, strides=(1,))
    fields = _fields(words, size)
    lists = [_list(words, *(column[fields[2] == tag] for column in fields)) for tag in (_DATA, _CTRL) if fields]
    if not lists or None in lists:
        return None
    node, place, tag, head, body, end = fields
    attribute = np.flatnonzero(tag == _ATTRIBUTE)
    begin, gone = head.copy(), np.where((tag == _DATA) | (tag == _CTRL), end - head, 0)
    gone[_COLUMN[tag] != NOWHERE] = (body - head)[_COLUMN[tag] != NOWHERE]
    begin[attribute] = _begin_of_values(words, head[attribute], body[attribute], end[attribute])
    gone[attribute] = (end - begin)[attribute]
    text, kept = np.frombuffer(data, np.uint8).copy(), np.ones(len(data), np.bool_)
    text[head[attribute[gone[attribute] > 0]]] = 0  # a length that no other attribute with a name has
    kept[counted_from(begin, gone)] = False
    keys = pieces(text[kept].tobytes(), size - np.bincount(node, gone, len(size)).astype(np.int64))
    used, which = np.unique(forms.of(keys, messages), return_inverse=True)
    if used[0] == NOWHERE:
        return None
    known = [forms.known[number] for number in used.tolist()]
    rows = np.array([[*form.node.rows, 0] for form in known], np.int64)[which]
    place -= np.bincount(node[tag != _ATTRIBUTE], minlength=len(size))[node]  # among the attributes
    column = np.array([form.columns for form in known], np.int64)[which[node], place]
    column = np.where(tag == _ATTRIBUTE, column, _COLUMN[tag])
    some = np.flatnonzero((gone > 0) & (column != NOWHERE))
    rows[node[some], column[some]] = _values(words[begin[some]], gone[some])
    return _block(rows, lists, known, which, names, first)


def _block(
    rows: I64, lists: Sequence[Any], known: Sequence[_Form], which: I64, names: dict[str, int], first: int
) -> NodeBlock | None:
    """Return the block of nodes: their ``rows`` with the id behind, entries of lists by node, and which of the forms
    each has; None where the kinds of dependencies are not as many as these."""
    (owner, data), (caller, ctrl) = lists
    rows[:, _DEPS], rows[:, _DEPS + 1] = (np.bincount(nodes, minlength=len(rows)) for nodes in (owner, caller))
    listed = rows[:, _HAS] & HAS["dep_kinds"] != 0
    texts = [known[form].node.data_kind for form in which[listed].tolist()]
    if [*map(len, texts)] != rows[listed, _DEPS].tolist():
        return None
    known_kinds = np.frombuffer(b"".join(texts), np.uint8)
    kinds = spread(len(data), np.repeat(listed, rows[:, _DEPS]), known_kinds, UNKNOWN_DEP)
    code = np.zeros(len(known), np.int64)
    for form in which[np.sort(np.unique(which, return_index=True)[1])].tolist():
        code[form] = names.setdefault(known[form].name, len(names))
    rows[:, _NAME] = code[which]
    ids, rest = array("Q", rows[:, -1].tobytes()), (array("Q", ids.tobytes()) for ids in (data, ctrl))
    out = NodeBlock(array("q", rows[:, :-1].tobytes()), ids, next(rest), bytearray(kinds), next(rest))
    special = np.array([bool(form.node.group_names or form.node.sync_call) for form in known])
    for k in np.flatnonzero(special[which]).tolist():
        alone = known[which[k]].node
        out.group_names |= alone.group_names
        out.sync_call.update((first + k, calls) for calls in alone.sync_call.values())
    return out


def _fields(words: U64, size: I64) -> tuple[I64, ...]:
    """Return the fields of nodes of so many bytes, one behind the other: of which node, at which place in it, the byte
    before, and where there begin its integer or length, what is behind that, and what is behind the field. First fields
    of all nodes come first. Nothing where one is not as expected."""
    last, node = np.cumsum(size), np.arange(len(size))
    begin, before, steps = last - size, np.zeros(len(size), np.int64), []
    for place in range(_MOST_FIELDS):
        word = words[begin]
        tag = (word & _BYTE).astype(np.int64)
        word >>= _8
        took = _size(word)
        body, of_bytes = begin + 1 + took, tag & 7 == 2
        length = (word & np.uint64(0x7F) | word >> np.uint64(1) & np.uint64(0x3F80) * (took == 2)).astype(np.int64)
        end = body + length * of_bytes
        known = _KNOWN[tag] & (took < np.where(of_bytes, 3, 8)) & (end <= last) & ((tag > before) | (tag == _ATTRIBUTE))
        if not known.all():
            break
        steps.append((node, np.full(len(node), place), tag, begin + 1, body, end))
        left = end < last
        node, begin, last, before = node[left], end[left], last[left], tag[left]
        if not len(node):
            return tuple(map(np.concatenate, zip(*steps, strict=True)))
    return ()


def _size(word: U64) -> I64:
    """Return how many bytes the integers take that begin in words; 8: these, or more."""
    ends = ~word & _HIGH
    return (((ends ^ ends - np.uint64(1)) & _LOW) * _LOW >> np.uint64(56)).astype(np.int64)


def _values(word: U64, size: I64) -> I64:
    """Return the integers that begin in words and take so many bytes: up to seven, or those of a negative one."""
    word = word & _WORD[size]
    for shift, stay, move in _JOINED:
        word = word & np.uint64(stay) | word >> np.uint64(shift) & np.uint64(move)
    return np.asarray(word.astype(np.int64) - ((size == _NEGATIVE).astype(np.int64) << 56))


def _begin_of_values(words: U64, head: I64, body: I64, end: I64) -> I64:
    """Return where the integers begin of attributes that have a name and that, no more; of others where they end."""
    word = words[body]
    begin = np.minimum(body + 3 + (word >> _8 & _BYTE).astype(np.int64), end)
    value, size = words[begin - 1], end - begin  # behind the byte before it
    whole = (_size(value >> _8) == size) & (size < 8)
    long = np.flatnonzero(size == _NEGATIVE)
    whole[long] = (words[begin[long]] & _HIGH == _HIGH) & (words[begin[long] + 8] & np.uint64(0xFFFF) == 0x01FF)
    whole &= (word & np.uint64(0x80FF) == 0x0A) & (value & _BYTE == 0x48) & (body - head == 1)
    return np.where(whole, begin, end)


def _list(words: U64, node: I64, _: I64, __: I64, ___: I64, body: I64, end: I64) -> tuple[I64, I64] | None:
    """Return node and value of each entry of lists of integers, in the order of nodes; None where one is none."""
    order = np.argsort(node)
    size = (end - body)[order]
    entry, node = counted_from(body[order], size), np.repeat(node[order], size)
    is_last = words[entry] & np.uint64(0x80) == 0
    is_first = np.append(True, is_last)[:-1]
    first = entry[is_first]
    if np.any(words[end - 1] & np.uint64(0x80)) or np.any(entry[is_last] - first > 6):
        return None
    return node[is_first], _values(words[first], entry[is_last] - first + 1)


def _add(block: NodeBlock, node: Any, position: int, names: dict[str, int]) -> None:
    """Append what is read of a node. An attribute that stands there again overrules the one before."""
    data_deps, ctrl_deps = node.data_deps, node.ctrl_deps
    has, kinds, scalars, description = 0, None, ABSENT.copy(), ""
    first: dict[str, str] = {}  # values of attributes, made where one stands there again
    for attribute in node.attr:
        name = attribute.name
        expected = EXPECTED.get(name)
        if expected is not None:
            index, kind, bit, number = expected
            if has & bit:
                first = first or {a.name: _value(a) for a in reversed(list(node.attr))}
                if first[name] != _value(attribute):
                    again = f"{first[name]}, then {_value(attribute)}"
                    block.odd.append(OddAttribute(position, name, TWICE, again))
            has |= bit
            value = getattr(attribute, kind)
            # most are such integers: each call here takes half a second a million nodes
            known = number and (value or attribute.HasField(kind))
            scalars[index] = value if known else _integer(attribute, kind, position, block.odd)
        elif name == "dep_kinds":
            has |= HAS[name]
            kinds = bytes([_KIND_CODE.get(word, UNKNOWN_DEP) for word in attribute.string_list.values])
            if len(kinds) != len(data_deps):
                entries = f"{len(kinds)} entries"
                block.odd.append(OddAttribute(position, name, attribute.WhichOneof("value") or "", entries))
                kinds = None
        elif name == "sync_call":
            block.sync_call[position] = tuple(attribute.string_list.values) or (attribute.string_val,)
        elif name == "pg_desc":
            description = attribute.string_val
        elif name in HAS:
            has |= HAS[name]
    if description:
        block.group_names[scalars[_GROUP]] = description
    micros = min(node.start_time_micros, MOST_MICROS), min(node.duration_micros, MOST_MICROS)
    code = names.setdefault(node.name, len(names))
    block.rows.extend((code, node.type, *micros, has, len(data_deps), len(ctrl_deps), *scalars))
    block.id.append(node.id)
    block.data.extend(data_deps)
    block.data_kind += bytes([UNKNOWN_DEP]) * len(data_deps) if kinds is None else kinds
    block.ctrl.extend(ctrl_deps)


def _value(attribute: Any) -> str:
    kind = attribute.WhichOneof("value")
    return str(getattr(attribute, kind)).strip()[:80] if kind else ""


def _group(text: str) -> int:
    """Return a ``pg_name`` as a number: ``NO_GROUP`` for none, ``BAD_GROUP`` for what is none."""
    if not text:
        return NO_GROUP
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else BAD_GROUP


def _integer(attribute: Any, expected: str, position: int, odd: list[OddAttribute]) -> int:
    """Return the integer in an attribute of any kind; what is not of the expected kind, or no number in a text, is
    noted in ``odd``.
    """
    kind = attribute.WhichOneof("value") or ""
    value: Any = getattr(attribute, kind) if kind else None
    if kind == expected:
        number = _group(value) if kind == "string_val" else int(value)
        if kind != "string_val" or number != BAD_GROUP:
            return number
    odd.append(OddAttribute(position, attribute.name, kind, _value(attribute)))
    if isinstance(value, int):
        return min(int(value), _INT64)
    return BAD_GROUP if expected == "string_val" else 0
