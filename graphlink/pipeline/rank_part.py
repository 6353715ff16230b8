"""The part of a pipeline that one rank has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphlink.model import I32, I64, NOWHERE
from graphlink.pipeline.records import Idle, RunPipeline, StageRun
from graphlink.tables import take


@dataclass(frozen=True, slots=True)
class RankPipeline:
    """The part of a pipeline that the files of one rank show: its ranges with their stages, and its idle time.

    ``recorded``: as in ``RunPipeline``.
    """

    run: StageRun
    idle: Idle
    recorded: I64

    def ranges_of(self, given: I32) -> I32:
        """Return, for ranges as ``stage_run`` counts them, those of ``run``; ``NOWHERE`` where they are of a step that
        is left out.
        """
        if not len(self.recorded):
            return np.full(len(given), NOWHERE, np.int32)
        at = np.minimum(np.searchsorted(self.recorded, given), len(self.recorded) - 1)
        return np.where(self.recorded[at] == given, at, NOWHERE).astype(np.int32)


def rank_pipeline(pipeline: RunPipeline | None, rank: int) -> RankPipeline | None:
    """Return a rank's part; None where ``rank`` is no part of it."""
    if pipeline is None or rank not in pipeline.ranks:
        return None
    place = pipeline.ranks.index(rank)
    return RankPipeline(
        pipeline.runs[place],
        take(pipeline.idle, pipeline.idle.rank == rank),
        pipeline.recorded[place],
    )
