"""Pipeline ranges by the names of a rank's annotations: which name is which phase, of which step, microbatch and stage.

What names mean is a table per framework, from specific to generic; a run's own rules (``--range-rule``) stand before
it. A name takes the first rule that matches it. A rule counts for a rank only where it explains the run: forwards and
backwards both occur, and microbatches are 0 .. m - 1, equal in both, or not given. Of several rules the first holds.

Evidence: pytorch ``torch/distributed/pipelining/schedules.py`` (``_Action.__str__``) and ``stage.py``; pytorch/PiPPy
``PipelineSchedule.py``; sail-sg/zero-bubble-pipeline-parallelism ``tools/load_nsys_events.py``;
deepseek-ai/profile-data; NVIDIA/Megatron-LM ``nvtx_decorator``; microsoft/DeepSpeed ``instrument_w_nvtx``;
volcengine/veScale ndtimeline ``predefined.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import msgspec
import numpy as np

from graphlink.errors import UsageError
from graphlink.model import I32, I64, NOWHERE, Bool, Linked
from graphlink.patterns import UserPattern
from graphlink.pipeline.records import NamedRanges, Pass
from graphlink.spans import Axis, Neighbours
from graphlink.steps import step_marks
from graphlink.tables import (
    MOST,
    begins,
    concat,
    in_order,
    marked,
    nowhere,
    numbered_rows,
    numbered_values,
    places,
    pointing_at,
    spread,
    take,
    tuples,
    turns,
    values_at,
)

_PHASES: Final = {
    "f": Pass.F, "fwd": Pass.F, "forward": Pass.F, "b": Pass.B, "bwd": Pass.B, "backward": Pass.B, "i": Pass.I,
    "backward_b": Pass.I, "w": Pass.W, "wgrad": Pass.W, "weight": Pass.W, "backward_w": Pass.W, "opt": Pass.OPT,
    "optimizer": Pass.OPT, "step": Pass.OPT,
}  # fmt: skip
_GROUPS: Final = ("phase", "stage", "chunk", "microbatch", "layer")
USER: Final = "--range-rule"


class Reading(NamedTuple):
    """The meaning of a name; ``NOWHERE`` for what it does not give."""

    phase: Pass
    stage: int = NOWHERE
    chunk: int = NOWHERE
    microbatch: int = NOWHERE
    layer: int = NOWHERE


class NameRule(msgspec.Struct, frozen=True):
    """Patterns of whole names, with groups ``phase``, ``stage``, ``chunk``, ``microbatch``, ``layer``.

    ``phases`` translates what ``phase`` captured. ``other``: names of the framework that are no phase (communication,
    schedule marks). ``split_b``: its ``B`` is the input gradient where ``W`` ranges occur, of the same microbatch if
    they have one. ``whole``: of names of parts, the range around all parts of a forward and a backward.
    """

    name: str
    patterns: tuple[str | UserPattern, ...]
    phases: dict[str, Pass] = msgspec.field(default_factory=dict)
    other: tuple[str, ...] = ()
    split_b: bool = False
    whole: str = ""

    def read(self, text: str) -> tuple[Reading, ...]:
        """Return the meaning of a name: nothing where no pattern matches; two where one range stands for two phases."""
        for pattern in self.patterns:
            found = re.fullmatch(pattern, text) if isinstance(pattern, str) else pattern.fullmatch(text)
            if found:
                return self._readings(found.groupdict())
        return ()

    def _readings(self, said: Mapping[str, str | None]) -> tuple[Reading, ...]:
        out = []
        for suffix in ("", "2"):
            word = said.get(f"phase{suffix}")
            if word is None:
                continue
            phase = self.phases.get(word, _PHASES.get(word.lower()))
            if phase is None:
                return ()
            numbers = (said.get(f"{group}{suffix}") for group in _GROUPS[1:])
            out.append(Reading(phase, *map(_number, numbers)))
        return tuple(out)


def _number(text: str | None) -> int:
    """Return what a group captured, ``NOWHERE`` if that is no number that counts something: users' groups capture any
    text.
    """
    return int(text) if text and text.isdecimal() and len(text) < 10 else NOWHERE


_P2P = (
    r"(?:send|recv)_(?:forward|backward)"
    r"(?:_(?:send_|recv_)?(?:forward|backward)(?:_(?:send|recv)_(?:forward|backward)_?(?:backward)?)?)?"
)

RULES: Final = (
    NameRule(
        "torch-pipelining",
        (
            r"PP:(?P<stage>\d+)(?P<phase>[FBIW])(?P<microbatch>\d+)",
            r"PP:\((?P<stage>\d+)(?P<phase>F)(?P<microbatch>\d+);(?P<stage2>\d+)(?P<phase2>[BI])(?P<microbatch2>\d+)\)OVERLAP_F_B",
        ),
        other=(r"PP:\d+(?:UNSHARD|RESHARD|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD)\d*",),
    ),
    NameRule("zero-bubble",
        (r"(?P<phase>[FBW])(?P<microbatch>\d+)\.(?P<chunk>\d+)\.\d+", r"(?P<phase>W)_clear\.(?P<chunk>\d+)\.\d+",
         r"(?P<phase>Optimizer)"), {"Optimizer": Pass.OPT},
        (r"R\d+\.\d+\.\d+", r"(?:SEND|RECV)_(?:FORWARD|BACKWARD|POST_VALIDATION).*", r"iter_\d+_\d+",
         r"pre_(?:send|recv)", r"post_validation_phase", r"(?:forward|backward)_step_func",
         r"(?:Offload|Prepare|Resume).*", r"(?:recv_|send_)?pre_step"),
        split_b=True),
    NameRule("torch-gpipe",
        (r"(?P<phase>Forward|Backward) (?P<microbatch>\d+)", r"Stage (?P<stage>\d+) (?P<phase>Forward|Backward)"),
        other=(r"1F1B \d+", r"Cooldown \d+")),
    NameRule("dualpipe", (r"(?:attn|mlp)\((?P<phase>[FBW])\)",), other=(r"(?:dispatch|combine)\([FBW]\)", r"1F1B"),
        split_b=True, whole="1F1B"),
    NameRule("megatron", (r"layer_(?P<layer>\d+)(?P<phase>[fb])", r"(?:layer_(?P<layer>\d+) |\w+ )(?P<phase>wgrad)"),
        other=(r"(?:megatron\.core\.pipeline_parallel\.)?(?:schedules|p2p_communication)\..+", _P2P,
               r"activation (?:off|re)loading .*", r"layer_\d+f-layer_\d+b"), split_b=True),
    NameRule("deepspeed", (r"DeepSpeedEngine\.(?P<phase>forward|backward|step)",), other=(r"DeepSpeedEngine\.\w+",)),
    NameRule("vescale", (r"(?P<phase>forward|backward)-compute",),
        other=(r"cross-mesh-(?:recv|send)", r"unshard-all-gather", r"grad-(?:reduce-scatter|all-reduce)",
               r"(?:forward|backward)-(?:recv|send)(?:-(?:forward|backward)-(?:recv|send))?")),
    NameRule("generic", (r"(?P<phase>forward|backward(?:_b|_w)?|fwd|bwd)(?:[ _#-]?(?P<microbatch>\d+))?",
        r"(?P<phase>[FBW])[ _]?(?P<microbatch>\d+)?"),
        split_b=True),
)  # fmt: skip

OPTIMIZER: Final = NameRule(
    "optimizer", (r"(?P<phase>Optimizer\.step)#.*", r"(?P<phase>optimizer)"), {"Optimizer.step": Pass.OPT}
)


def user_rules(patterns: Sequence[str]) -> tuple[NameRule, ...]:
    """Return the rules that a user gives as regular expressions with named groups; ``phase`` must be one of them.

    Raises:
        UsageError: no regular expression, no group ``phase``, or a group that means nothing; later, that matching takes
            too long.
    """
    rules = []
    for pattern in patterns:
        compiled = UserPattern(pattern, USER)
        unknown = sorted(compiled.groups - {*_GROUPS})
        if "phase" not in compiled.groups or unknown:
            what = f"has a group {unknown[0]!r}" if unknown else "has no group (?P<phase>...)"
            raise UsageError(f"{USER} {pattern!r} {what}", todo=f"name its groups: {', '.join(_GROUPS)}")
        rules.append(NameRule(f"{USER} {pattern}", (compiled,), split_b=True))
    return tuple(rules)


def readings(names: Iterable[str], rules: Sequence[NameRule]) -> dict[str, tuple[NameRule, tuple[Reading, ...]]]:
    """Return for each name the first rule that knows it, with what it says (nothing for names that are no phase)."""
    out = {}
    for name in names:
        known = (
            (rule, read)
            for rule in rules
            if (read := rule.read(name)) or any(re.fullmatch(other, name) for other in rule.other)
        )
        if (first := next(known, None)) is not None:
            out[name] = first
    return out


_BACKWARD = (Pass.B, Pass.I)


@dataclass(frozen=True, slots=True)
class Entries(NamedRanges):
    """Ranges on the threads of a rank, sorted by start (of equal ones the outer first). One entry per range; times
    absolute.

    ``around``: the range of the thread that encloses it, ``NOWHERE`` if none. ``other_threads``: the range that stands
    for the work of other threads inside this one (an overlapped pair of forward and backward), else itself. ``step`` is
    a number of the recording, equal on all ranks. ``inferred`` where the microbatch was numbered by order.
    """

    tid: I64
    around: I32
    other_threads: I32
    inferred: Bool


def named_entries(linked: Linked, user: Sequence[NameRule] = ()) -> tuple[Entries | None, tuple[str, ...]]:
    """Return the ranges that the names of a rank's annotations say, and warnings; None where no rule explains the run.
    O(n log n).
    """
    rows = linked.trace.host
    marked = np.flatnonzero(rows.annotation & ~linked.crossing)
    warnings = _crossing(linked, user)
    names, name = numbered_values(rows.name[marked])
    texts = [linked.trace.strings[k] for k in names.tolist()]
    known = readings(texts, (*user, *RULES, OPTIMIZER))

    def of_rule(rule: NameRule) -> tuple[Entries, I64] | None:
        return _table(linked, marked, name, [known[t][1] if t in known and known[t][0] is rule else () for t in texts])

    passed_over = []
    for rule in (*user, *RULES):
        found = of_rule(rule)
        if found is None:
            continue
        why = _why_not(found[0])
        if not why:
            return _finished(linked, *found, of_rule(OPTIMIZER), rule), warnings
        passed_over.append(f"ranges of {rule.name} are not read: {why}")
    return None, (*warnings, *passed_over)


def _crossing(linked: Linked, user: Sequence[NameRule]) -> tuple[str, ...]:
    """Warn of ranges that a rule knows and that are left out, as they end inside others of their thread."""
    rows, strings = linked.trace.host, linked.trace.strings
    out = np.flatnonzero(rows.annotation & linked.crossing)
    texts = {strings[k]: k for k in np.unique(rows.name[out]).tolist()}
    said = [texts[text] for text, (_, read) in readings(texts, (*user, *RULES, OPTIMIZER)).items() if read]
    lost = out[np.isin(rows.name[out], said)]
    if not len(lost):
        return ()
    at_ns = int(rows.start_ns[lost[0]] - rows.start_ns.min())
    first = f"{strings[rows.name[lost[0]]]}, {at_ns / 1e6:,.3f} ms after the first row of the host"
    return (f"pipeline ranges that cross others of their thread are left out: {len(lost)}, the first is {first}",)


def _table(
    linked: Linked, marked: I64, name: I64, of_name: Sequence[tuple[Reading, ...]]
) -> tuple[Entries, I64] | None:
    """Return the ranges among the rows ``marked`` that a rule reads, and their layers; ``name`` of each row points into
    ``of_name``.

    They have what names say, two for a name that says two phases: ``other_threads`` is ``NOWHERE`` for the second, 0
    for all others.
    """
    rows = linked.trace.host
    many = np.array([len(read) for read in of_name], np.int64)[name]
    at = np.repeat(np.arange(len(name)), many)
    if not len(at):
        return None
    second = turns(at)
    read = np.array([of_name[k][i] for k, i in tuples(name[at], second)], np.int64)
    phase, stage, chunk, microbatch, layer = read.T.copy()
    row, none = marked[at], np.zeros(len(at), np.int32)
    entries = Entries(
        tid=rows.tid[row],
        start_ns=rows.start_ns[row],
        end_ns=rows.end_ns[row],
        phase=phase.astype(np.uint8),
        step=none.astype(np.int64),
        stage=stage,
        chunk=chunk,
        microbatch=microbatch,
        around=none + NOWHERE,
        other_threads=np.where(second > 0, NOWHERE, 0).astype(np.int32),
        inferred=none.astype(np.bool_),
        rule=none,
        rules=(),
    )
    return entries, layer


def _why_not(raw: Entries) -> str:
    """Return why the ranges of a rule explain no run; empty if they do."""
    forward, backward = raw.phase == Pass.F, np.isin(raw.phase, _BACKWARD)
    if not forward.any() or not backward.any():
        return f"no {'forward' if not forward.any() else 'backward'} among them"
    sets = [set(np.unique(raw.microbatch[side]).tolist()) for side in (forward, backward)]
    if all(len(s) == 1 for s in sets):
        return ""  # not given, or a constant
    if sets[0] - {NOWHERE} != sets[1] - {NOWHERE}:
        lone = min(sets[0] ^ sets[1])
        return f"microbatch {lone} has a {'forward' if lone in sets[0] else 'backward'} only"
    numbers = sorted(sets[0] - {NOWHERE})
    if numbers != list(range(len(numbers))):
        return f"microbatches are not 0 to {len(numbers) - 1} ({numbers[0]} to {numbers[-1]})"
    return ""


def _finished(
    linked: Linked, raw: Entries, layer: I64, optimizer: tuple[Entries, I64] | None, rule: NameRule
) -> Entries:
    if (layer != NOWHERE).any():
        raw = _passes(raw, layer)
    if optimizer is not None:
        raw = concat(raw, optimizer[0])
        raw = take(raw, np.lexsort((-raw.end_ns, raw.start_ns)))
    given = raw.microbatch[np.isin(raw.phase, (Pass.F, *_BACKWARD))]
    constant = len(np.unique(given)) == 1 and len(given) > 2
    phase = raw.phase.copy()
    if rule.split_b and (phase == Pass.W).any():
        split = raw.microbatch[phase == Pass.W] == NOWHERE
        _, code = numbered_rows(raw.stage, raw.chunk, raw.microbatch)
        phase[(phase == Pass.B) & (split.any() | np.isin(code, code[phase == Pass.W]))] = Pass.I
    numbers = nowhere(len(phase)) if constant else raw.microbatch
    which = (raw.phase == Pass.OPT).astype(np.int32)
    entries = nested(replace(raw, phase=phase, microbatch=numbers, rule=which, rules=(rule.name, OPTIMIZER.name)))
    step = step_numbers(linked, entries)
    return numbered(_parts(linked, entries, step, rule.whole) if rule.whole else entries, step)


def _parts(linked: Linked, entries: Entries, step: I64, whole: str) -> Entries:
    """Number the passes of a phase and step, each of several parts (layers are no microbatches): those inside a range
    ``whole`` are one, and tell of how many parts a pass is outside of any; without ``whole`` all are one.
    """
    rows, strings, phase = linked.trace.host, linked.trace.strings, entries.phase.astype(np.int64)
    marks = [code for code, text in enumerate(strings) if text == whole]
    around = in_order(np.flatnonzero(rows.annotation & np.isin(rows.name, marks)), rows.start_ns)
    last = np.searchsorted(rows.start_ns[around], entries.start_ns, side="right") - 1
    outside = entries.start_ns >= values_at(rows.end_ns[around], last, NOWHERE)
    turn, parts = turns(last, outside, phase), np.full(len(Pass), NOWHERE)
    np.maximum.at(parts, phase[~outside], turn[~outside] + 1)
    each = np.where(parts == NOWHERE, parts.max() if len(around) else MOST, parts)[phase]
    which, code = numbered_rows(step, phase, last, outside, np.where(outside, turn // each, 0))
    first = np.flatnonzero(begins(which[:, 0], which[:, 1]))
    number = code - first[np.searchsorted(first, code, side="right") - 1]
    microbatch = np.where(phase == Pass.OPT, NOWHERE, number)
    return replace(entries, microbatch=microbatch, inferred=(microbatch != NOWHERE) & (len(around) > 0))


def _passes(raw: Entries, layer: I64) -> Entries:
    """Put ranges of layers together to passes: a new one begins where the phase changes or the layers start over."""
    order = np.lexsort((raw.start_ns, raw.tid))
    raw, layer = take(raw, order), layer[order]
    phase, tid = raw.phase, raw.tid
    ascending = np.where(phase[1:] == Pass.F, layer[1:] > layer[:-1], layer[1:] < layer[:-1])
    first = np.flatnonzero(begins(tid, phase) | np.append(False, ~ascending))
    passes = replace(take(raw, first), end_ns=np.maximum.reduceat(raw.end_ns, first))
    return take(passes, np.lexsort((-passes.end_ns, passes.start_ns)))


def nested(entries: Entries) -> Entries:
    """Sort ranges and find which encloses which. A range inside one of its own phase is a part of that: it gives it
    what it lacks, and goes."""
    order = np.lexsort((entries.other_threads == NOWHERE, -entries.end_ns, entries.start_ns))
    e = take(entries, order)
    second = e.other_threads == NOWHERE  # stands beside the range before it
    outer = nowhere(len(order))
    open_: dict[int, list[int]] = {}
    ends, phases = e.end_ns.tolist(), e.phase.tolist()
    for i, (tid, start, beside) in enumerate(tuples(e.tid, e.start_ns, second)):
        stack = open_.setdefault(tid, [])
        while stack and ends[stack[-1]] <= start and ends[stack[-1]] < ends[i]:
            stack.pop()
        outer[i] = stack[-1] if stack else NOWHERE
        if not beside and (not stack or phases[outer[i]] != phases[i]):
            stack.append(i)
    part = ~second & (outer != NOWHERE) & (e.phase[outer] == e.phase)
    for column in (e.stage, e.chunk, e.microbatch):
        given = np.flatnonzero(part & (column != NOWHERE))[::-1]
        lacks = column == NOWHERE
        column[lacks] = spread(len(column), outer[given], column[given])[lacks]
    kept = np.flatnonzero(~part)
    pair = values_at(pointing_at(np.where(second, outer, NOWHERE), len(order)), kept)
    new = places(kept, len(order))
    others = np.where(pair == NOWHERE, np.arange(len(kept)), new[pair])
    around = values_at(new, np.where(second, NOWHERE, outer)[kept])
    return replace(take(e, kept), around=around.astype(np.int32), other_threads=others.astype(np.int32))


def step_numbers(linked: Linked, entries: Entries) -> I64:
    """Find the step of each entry: by step marks (their own numbers, where they have such), else by optimizer ranges,
    else by repetition."""
    rows, strings = linked.trace.host, linked.trace.strings
    mark = np.flatnonzero(step_marks(linked.trace))
    if len(mark):
        return _by_marks(rows.start_ns[mark], [strings[k] for k in rows.name[mark].tolist()], entries)
    is_opt = entries.phase == Pass.OPT
    return np.cumsum(np.append(False, is_opt[:-1] & ~is_opt[1:])) if is_opt.any() else _by_repetition(entries)


def _by_marks(start_ns: I64, texts: list[str], entries: Entries) -> I64:
    digits = ["".join(c for c in text.rpartition("#")[2].rpartition("_")[2] if c.isdigit()) for text in texts]
    numbers = np.array([int(d[-9:]) if d else NOWHERE for d in digits], np.int64)
    if (numbers == NOWHERE).any() or len(np.unique(numbers)) < len(numbers):
        numbers = np.arange(len(texts))
    found = np.searchsorted(start_ns, entries.start_ns, side="right") - 1
    return np.where(found >= 0, numbers[np.maximum(found, 0)], numbers[0] - 1)


def _by_repetition(entries: Entries) -> I64:
    """Take the k-th time that a phase of a microbatch occurs for step k; one step where microbatches are not given."""
    given = np.flatnonzero(entries.microbatch != NOWHERE)
    columns = (entries.phase, entries.stage, entries.chunk, entries.microbatch)
    return spread(len(entries.phase), given, turns(*(column[given] for column in columns)), 0)


def numbered(entries: Entries, step: I64) -> Entries:
    """Fill in step, chunk and microbatch: a missing microbatch is the order number among the ranges of its phase, chunk
    and step.
    """
    chunk = entries.chunk.copy()
    staged = (entries.stage != NOWHERE) & (chunk == NOWHERE)
    stages = np.unique(entries.stage[staged])
    chunk[staged] = np.searchsorted(stages, entries.stage[staged])
    chunk[(chunk == NOWHERE) & (entries.phase != Pass.OPT)] = 0
    missing = (entries.microbatch == NOWHERE) & (entries.phase != Pass.OPT)
    microbatch = entries.microbatch.copy()
    microbatch[missing] = turns(step[missing], chunk[missing], entries.phase[missing])
    return replace(entries, step=step, chunk=chunk, microbatch=microbatch, inferred=entries.inferred | missing)


def enclosing(entries: Entries, tid: I64, at_ns: I64) -> I32:
    """Return the innermost range of the thread around each moment, ``NOWHERE`` if there is none. O(log n) each."""
    second = marked(len(entries.tid), entries.other_threads[entries.other_threads != np.arange(len(entries.tid))])
    own = np.flatnonzero(~second & (entries.start_ns < entries.end_ns))
    thread, start_ns, end_ns = entries.tid[own], entries.start_ns[own], entries.end_ns[own]
    axis = Axis.over(thread, start_ns, end_ns + 1)
    return (
        Neighbours.nested(axis, thread, start_ns, end_ns, own, entries.around[own])
        .before(tid, at_ns + 1)
        .astype(np.int32)
    )
