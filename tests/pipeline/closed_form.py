"""Closed forms: what a schedule loses on equal stages, and the rates by their three definitions. docs/schedules.md has
the table.

Times are those of one virtual stage: with v chunks a rank each is 1/v of what a rank needs for a microbatch. A bubble
is what a rank lacks of working all the time, without the optimizer: ``m v (F + I + W)`` less than the makespan, or than
the longest own window.

Sources: GPipe, 1F1B and interleaved Narayanan et al. 2021 (arXiv 2104.04473); ZB-H1, ZB-H2, ZB-V Qi et al. 2023 (arXiv
2401.10241) for the own windows; DualPipe its report (arXiv 2412.19437). The makespans of the zero-bubble schedules and
their validity were found with ``simulate`` and hold in it; a test sweeps them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bubble:
    """A rank's idle time in a step: inside the makespan, and inside the longest own window. None: no form holds."""

    makespan_ns: int | None
    own_ns: int | None


NO_FORM = Bubble(None, None)


@dataclass(frozen=True, slots=True)
class PassTimes:
    """What one microbatch takes on one virtual stage; a full backward is ``input_ns + weight_ns``."""

    forward_ns: int
    input_ns: int
    weight_ns: int


def bubble(schedule: str, stages: int, microbatches: int, chunks: int, each: PassTimes) -> Bubble:
    """Return the closed form on equal stages without transfers; ``schedule`` by its name in the contract."""
    F, I, W = each.forward_ns, each.input_ns, each.weight_ns  # noqa: E741
    hops, many, equal = stages - 1, microbatches, F == I == W
    short = min(F, I) >= W
    drained = max(F, I, F + I - W)  # what a hop costs once weight gradients fill what they can
    if schedule in ("GPipe", "1F1B") or (schedule == "interleaved" and many % stages == 0):
        return Bubble(hops * (F + I + W), hops * (F + I + W))
    if schedule == "ZB-H1" and many >= stages:
        return Bubble(hops * drained, hops * (F + I - W) if W <= F else None)
    if schedule == "interleaved-ZB" and many % stages == 0:
        return Bubble(hops * drained, hops * (F + I - W) if short else None)
    if schedule == "ZB-H2" and many >= 2 * stages - 1 and W <= F:
        return Bubble(hops * max(F, F + I - 2 * W), hops * (F + I - 2 * W) if F + I >= 2 * W else None)
    if schedule == "ZB-V" and many >= 2 * stages - 1 and equal:
        return Bubble(hops * F, 0)
    if schedule == "DualPipe" and stages % 2 == 0 and equal:
        lost = (stages // 2 - 1) * 2 * F  # F&B + B - 3W with a pair that takes F + B
        return Bubble(lost, lost)
    return NO_FORM


def transfer_growth_ns(schedule: str, stages: int, microbatches: int, transfer_ns: int) -> int | None:
    """Return by how much the makespan grows if each transfer between ranks takes ``transfer_ns``; None where no form is
    known.

    GPipe: always. 1F1B: from 2 stages on, microbatches a multiple of them; fitted to the simulator, not published.
    """
    hops = stages - 1
    if schedule == "GPipe":
        return 2 * hops * transfer_ns
    if schedule == "1F1B" and stages > 1 and microbatches % stages == 0:
        return 2 * transfer_ns * (hops * (microbatches // stages) + stages - 2)
    return None


def ratio_ideal(schedule: str, stages: int, microbatches: int, chunks: int) -> float | None:
    """Return Megatron's figure (p - 1) / (v m): bubble time / ideal time of GPipe, 1F1B and interleaved. Of no other:
    None.
    """
    if schedule in ("GPipe", "1F1B", "interleaved") and microbatches:
        return (stages - 1) / (chunks * microbatches)
    return None
