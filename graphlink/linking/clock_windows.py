"""The offset of a device's clock as a step function of time, fitted to what the recording shows of it.

The cheapest path through levels: evidence below a level costs more than above it (nothing begins early, much begins
late), a change of level costs as much as several launches that disagree.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from graphlink.linking.clock_evidence import NOISE_NS, STEPS_NS, Evidence
from graphlink.model import F64, I64, Bool
from graphlink.tables import concat

USUAL_RETURN_NS: Final = 7_500  # a wait that spins returns 3 to 12 us after what it waited for
SOON_NS: Final = 5_250  # a quarter of them by then
NEAR_NS: Final = 100_000_000  # a wait shows how late it returns next to launches no further off
_LEVEL_NS: Final = 250
_MOST_LEVELS: Final = 600
_MOST_BLOCKS: Final = 2_000
CHANGE_US: Final = (
    25.0  # what a change of level costs, in us of disagreement, where launches differ from each other by 1 us or less
)
_MOST_NOISE: Final = 2.0
_ABOVE_US, _COLD_US, _BELOW_US, _WAIT_US = (
    6.0,
    1.5,
    8.0,
    2.0,
)  # disagreement of one launch or wait counts no more than this


class Windows(msgspec.Struct, frozen=True):
    """The clock windows of one device: window k has ``offset_ns[k]`` and begins after ``after_ns[k]``, no later than at
    ``by_ns[k]`` (device clock).

    Between the two, nothing shows which of its neighbours an op belongs to. ``cost_us``: how far the evidence
    disagrees.
    """

    offset_ns: I64
    after_ns: I64
    by_ns: I64
    cost_us: float


STILL: Final = Windows(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), 0.0)


def of_devices(
    evidence: dict[int, Evidence], resolution_ns: int, changed: dict[int, I64]
) -> list[tuple[tuple[int, ...], Windows]]:
    """Return devices with the windows of their clock.

    Those that one clock explains as well have one: what they did together stays together.

    So have those that show nothing themselves. Where the others do not have one, or there are none, nothing tells:
    their clock stays. ``changed``: times (device clock) at which a clock is known to change, which then costs nothing.
    """
    none = np.zeros(0, np.int64)
    anchored = {device: e for device, e in evidence.items() if e.anchored}
    apart = {
        device: _windows(e, resolution_ns, changed.get(device, none)) if e.anchored else STILL
        for device, e in evidence.items()
    }
    if anchored and len(evidence) > 1:
        every = concat(*anchored.values()).in_order()
        one = _windows(every, resolution_ns, np.concatenate([none, *(changed.get(d, none) for d in anchored)]))
        if one.cost_us <= sum(w.cost_us for w in apart.values()) + _MOST_NOISE * CHANGE_US * (len(anchored) - 1):
            return [(tuple(evidence), one)]
    return [((device,), windows) for device, windows in apart.items()]


def _windows(evidence: Evidence, resolution_ns: int, changed_ns: I64) -> Windows:
    """Fit the cheapest step function through the evidence.

    How late a wait returns is a property of the machine: the median over the recording, by the launches alone. Where
    the quicker ones are not as usual, launches and waits are both taken to be a little unusual, and the offset lies
    between.
    """
    block = np.arange(len(evidence.at_ns)) * min(_MOST_BLOCKS, len(evidence.at_ns)) // len(evidence.at_ns)
    shown = evidence.ahead_ns[evidence.launch]
    noise_us = float(np.median(np.abs(np.diff(shown)))) / 1_000 if len(shown) > 1 else 1.0
    change_us = np.full(int(block[-1]) + 1, CHANGE_US * min(max(noise_us, 1.0), _MOST_NOISE))
    change_us[block[np.minimum(np.searchsorted(evidence.at_ns, changed_ns), len(block) - 1)]] = 0
    return_ns, soon_ns, blocked = USUAL_RETURN_NS, SOON_NS, evidence.blocked
    if len(shown):
        levels = _levels(shown)
        ahead_ns = levels[cheapest(_costs(evidence, block, levels, None), change_us)[block]]
        blocked = blocked & (evidence.begun_ns > ahead_ns + NOISE_NS)
        near = blocked & _near(evidence)
        if near.any():
            soon_ns, return_ns = (round(ns) for ns in np.percentile((ahead_ns - evidence.ahead_ns)[near], (25, 50)))
    evidence = replace(evidence, blocked=blocked)
    waited = evidence.ahead_ns[blocked] + return_ns
    if len(shown):
        waited = np.clip(waited, np.percentile(shown, 1) - STEPS_NS, np.percentile(shown, 95) + STEPS_NS)
    levels = _levels(np.concatenate([shown, waited]))
    costs = _costs(evidence, block, levels, return_ns)
    level = cheapest(costs, change_us)
    changes = np.flatnonzero(np.diff(level)) + 1
    first = np.searchsorted(block, changes)
    begins = np.concatenate([[0], changes])
    between_ns = min(max((soon_ns - SOON_NS) / 2, -NOISE_NS), NOISE_NS)
    return Windows(
        offset_ns=np.array(
            [round((levels[level[k]] - between_ns) / resolution_ns) * resolution_ns for k in begins.tolist()], np.int64
        ),
        after_ns=np.concatenate([[0], evidence.at_ns[first - 1]]).astype(np.int64),
        by_ns=np.concatenate([[0], evidence.at_ns[first]]).astype(np.int64),
        cost_us=float(costs[np.arange(len(level)), level].sum()) + float(change_us[changes].sum()),
    )


def _levels(shown_ns: I64) -> F64:
    low, high = np.percentile(shown_ns, (1, 95))
    wide = min(high - low + 2_000, _LEVEL_NS * _MOST_LEVELS)
    out: F64 = low - 1_000 + np.arange(int(wide / _LEVEL_NS) + 2) * float(_LEVEL_NS)
    return out


def _near(evidence: Evidence) -> Bool:
    """Select the evidence with a launch close enough in time for both to be on one clock."""
    at = np.flatnonzero(evidence.launch)
    if not len(at):
        return np.zeros(len(evidence.at_ns), np.bool_)
    after = np.searchsorted(at, np.arange(len(evidence.at_ns)))
    before_ns = evidence.at_ns - evidence.at_ns[at[np.maximum(after - 1, 0)]]
    after_ns = evidence.at_ns[at[np.minimum(after, len(at) - 1)]] - evidence.at_ns
    out: Bool = np.minimum(np.abs(before_ns), np.abs(after_ns)) <= NEAR_NS
    return out


def _costs(evidence: Evidence, block: I64, levels: F64, return_ns: int | None) -> F64:
    """Return the cost of each level in each block of evidence, in us; shape (blocks, levels). Waits only bound it where
    ``return_ns`` is None."""
    out = np.zeros((int(block[-1]) + 1, len(levels)))
    step = max(1, 4_000_000 // len(levels))
    for low in range(0, len(block), step):
        part = slice(low, low + step)
        over_us = (evidence.ahead_ns[part, None] - levels) / 1_000
        launch, exact, blocked = evidence.launch[part], evidence.exact[part], evidence.blocked[part]
        cost = np.zeros(over_us.shape)
        most_us = np.where(evidence.warm[part], _ABOVE_US, _COLD_US)[launch, None]
        cost[launch] = np.where(
            over_us[launch] > 0, np.minimum(over_us[launch], most_us), np.minimum(-2 * over_us[launch], _BELOW_US)
        )
        cost[exact] = np.clip(2 * over_us[exact], 0, _BELOW_US)
        if return_ns is not None:
            cost[blocked] += np.minimum(np.abs(over_us[blocked] + return_ns / 1_000) / 2, _WAIT_US)
        np.add.at(out, block[part], cost)
    return out


def cheapest(costs: F64, change_us: F64) -> I64:
    """Return the level of each block on the cheapest path, a change to block k costing ``change_us[k]`` (Viterbi)."""
    total, best = costs[0], np.zeros(len(costs), np.int64)
    changed = np.zeros(costs.shape, np.bool_)
    for k in range(1, len(costs)):
        best[k] = int(total.argmin())
        jump = total[best[k]] + change_us[k]
        changed[k] = jump < total
        total = np.minimum(total, jump) + costs[k]
    at = int(total.argmin())
    out = np.zeros(len(costs), np.int64)
    for k in range(len(costs) - 1, -1, -1):
        out[k] = at
        if changed[k, at]:
            at = int(best[k])
    return out
