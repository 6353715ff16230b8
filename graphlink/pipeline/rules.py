"""The meaning of the names of ranges: a table per framework, from specific to generic, and a run's own rules before
them.

A name takes the first rule that matches it. Evidence: pytorch ``torch/distributed/pipelining/schedules.py``
(``_Action.__str__``) and ``stage.py``; pytorch/PiPPy ``PipelineSchedule.py``; sail-sg/zero-bubble-pipeline-parallelism
``tools/load_nsys_events.py``; deepseek-ai/profile-data; NVIDIA/Megatron-LM ``nvtx_decorator``; microsoft/DeepSpeed
``instrument_w_nvtx``; volcengine/veScale ndtimeline ``predefined.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from graphlink.errors import UsageError
from graphlink.model import NOWHERE
from graphlink.patterns import UserPattern
from graphlink.pipeline.records import Pass

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
    schedule marks). ``split_b``: its ``B`` is the input gradient as soon as ``W`` ranges occur. ``generic``: counts
    only where no specific rule does.
    """

    name: str
    patterns: tuple[str | UserPattern, ...]
    phases: dict[str, Pass] = msgspec.field(default_factory=dict)
    other: tuple[str, ...] = ()
    split_b: bool = False
    generic: bool = False

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

    def knows(self, text: str) -> bool:
        """Tell whether the rule has the name as one that is no phase."""
        return any(re.fullmatch(pattern, text) for pattern in self.other)


def _number(text: str | None) -> int:
    """Return what a group captured, ``NOWHERE`` if that is no number that counts something: users' groups capture any
    text.
    """
    return int(text) if text and text.isdecimal() and len(text) < 10 else NOWHERE


_P2P = r"(?:send|recv)_(?:forward|backward)(?:_(?:send_|recv_)?(?:forward|backward)(?:_(?:send|recv)_(?:forward|backward)_?(?:backward)?)?)?"  # noqa: E501

RULES: Final = (
    NameRule(
        "torch-pipelining",
        (
            r"PP:(?P<stage>\d+)(?P<phase>[FBIW])(?P<microbatch>\d+)",
            r"PP:\((?P<stage>\d+)(?P<phase>F)(?P<microbatch>\d+);(?P<stage2>\d+)(?P<phase2>[BI])(?P<microbatch2>\d+)\)OVERLAP_F_B",
        ),
        other=(r"PP:\d+(?:UNSHARD|RESHARD|SEND_F|RECV_F|SEND_B|RECV_B|REDUCE_GRAD)\d*",),
    ),
    NameRule("zero-bubble", (r"(?P<phase>[FBW])(?P<microbatch>\d+)\.(?P<chunk>\d+)\.\d+", r"(?P<phase>W)_clear\.(?P<chunk>\d+)\.\d+",  # noqa: E501
        r"(?P<phase>Optimizer)"), {"Optimizer": Pass.OPT},
        (r"R\d+\.\d+\.\d+", r"(?:SEND|RECV)_(?:FORWARD|BACKWARD|POST_VALIDATION).*", r"iter_\d+_\d+", r"pre_(?:send|recv)",  # noqa: E501
         r"post_validation_phase", r"(?:forward|backward)_step_func", r"(?:Offload|Prepare|Resume).*", r"(?:recv_|send_)?pre_step"),  # noqa: E501
        split_b=True),
    NameRule("torch-gpipe", (r"(?P<phase>Forward|Backward) (?P<microbatch>\d+)", r"Stage (?P<stage>\d+) (?P<phase>Forward|Backward)"),  # noqa: E501
        other=(r"1F1B \d+", r"Cooldown \d+")),
    NameRule("dualpipe", (r"(?:attn|mlp)\((?P<phase>[FBW])\)",), other=(r"(?:dispatch|combine)\([FBW]\)", r"1F1B")),
    NameRule("megatron", (r"layer_(?P<layer>\d+)(?P<phase>[fb])", r"(?:layer_(?P<layer>\d+) |\w+ )(?P<phase>wgrad)"),
        other=(r"(?:megatron\.core\.pipeline_parallel\.)?(?:schedules|p2p_communication)\..+", _P2P,
               r"activation (?:off|re)loading .*", r"layer_\d+f-layer_\d+b"), split_b=True),
    NameRule("deepspeed", (r"DeepSpeedEngine\.(?P<phase>forward|backward|step)",), other=(r"DeepSpeedEngine\.\w+",)),
    NameRule("vescale", (r"(?P<phase>forward|backward)-compute",),
        other=(r"cross-mesh-(?:recv|send)", r"unshard-all-gather", r"grad-(?:reduce-scatter|all-reduce)",
               r"(?:forward|backward)-(?:recv|send)(?:-(?:forward|backward)-(?:recv|send))?")),
    NameRule("generic", (r"(?P<phase>forward|backward(?:_b|_w)?|fwd|bwd)(?:[ _#-]?(?P<microbatch>\d+))?",
        r"(?P<phase>[FBW])[ _]?(?P<microbatch>\d+)?"),
        split_b=True, generic=True),
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
        for rule in rules:
            read = rule.read(name)
            if read or rule.knows(name):
                out[name] = rule, read
                break
    return out
