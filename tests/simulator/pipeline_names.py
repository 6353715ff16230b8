"""What frameworks call the ranges of a pipeline: the names that a simulated run is recorded with."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulator.pipeline_orders import Slot


@dataclass(frozen=True, slots=True)
class RangeNames:
    """Templates with {stage} (virtual), {phase}, {mb}, {chunk}, {rank} and {step}; "" where a framework has no such
    range.

    ``split``: it can name I and W. ``interleaves``: it runs several chunks a rank. ``letters``: what it calls the
    phases.
    """

    compute: str = ""
    send: str = ""
    recv: str = ""
    step: str = "ProfilerStep#{step}"
    optimizer: str = "Optimizer.step#Adam.step"
    letters: tuple[tuple[str, str], ...] = (("F", "F"), ("B", "B"), ("I", "I"), ("W", "W"))
    forward: str = "F"
    backward: str = "B"
    split: bool = True
    interleaves: bool = True

    def of(self, slot: Slot, stage: int) -> str:
        """Name of the range of a slot."""
        word = dict(self.letters)[slot.phase]
        return self.compute.format(stage=stage, phase=word, mb=slot.microbatch, chunk=slot.chunk)

    def moving(self, template: str, slot: Slot, stage: int) -> str:
        """Name of the range around a send or receive of a slot: forward's activations, or gradients."""
        way = self.forward if slot.phase == "F" else self.backward
        return template.format(stage=stage, way=way, mb=slot.microbatch, chunk=slot.chunk)


_WORDS = (("F", "forward"), ("B", "backward"), ("I", "backward_b"), ("W", "backward_w"))
_P2P = "megatron.core.pipeline_parallel.p2p_communication."

RANGE_NAMES: dict[str, RangeNames] = {
    "torch": RangeNames("PP:{stage}{phase}{mb}", "PP:{stage}SEND_{way}{mb}", "PP:{stage}RECV_{way}{mb}"),
    "zero-bubble": RangeNames(
        "{phase}{mb}.{chunk}.0", "SEND_{way}.{mb}.{chunk}.0", "RECV_{way}.{mb}.{chunk}.0", "iter_{rank}_{step}", "Optimizer",
        (("F", "F"), ("B", "B"), ("I", "B"), ("W", "W")), "FORWARD", "BACKWARD",
    ),
    "megatron": RangeNames(
        "", _P2P + "send_{way}", _P2P + "recv_{way}", "iteration{step}", forward="forward", backward="backward"
    ),
    "gpipe": RangeNames("{phase} {mb}", letters=(("F", "Forward"), ("B", "Backward")), split=False, interleaves=False),
    "paddle": RangeNames("{phase}", optimizer="optimizer", letters=_WORDS, interleaves=False),
    "vescale": RangeNames(
        "{phase}-compute", "{way}-send", "{way}-recv", letters=(("F", "forward"), ("B", "backward")), forward="forward",
        backward="backward", split=False,
    ),
    "deepspeed": RangeNames(
        "DeepSpeedEngine.{phase}", step="", optimizer="DeepSpeedEngine.step", letters=(("F", "forward"), ("B", "backward")), split=False,
        interleaves=False,
    ),
    "none": RangeNames(),
}  # fmt: skip


def paddle_type(phase: str) -> str:
    """The job type of a phase in Paddle's logs: ``pipeline_zero_bubble.py`` has backward_b and backward_w."""
    return "optimizer" if phase == "OPT" else dict(_WORDS)[phase]
