"""What logs of nvidia-smi and Megatron beside the recordings add to a run: their figures, in its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from graphlink.wings import Blocks, Field, Wing

if TYPE_CHECKING:
    from graphlink.run.options import Recordings
    from graphlink.run.records import RunResult


class _Logs(Wing):
    def recorded(self, recordings: Recordings) -> Any:
        if not recordings.nvidia_smi and not recordings.megatron_log:
            return None
        from graphlink.logs.run import read_logs

        return read_logs(recordings)

    def repeats(self, recordings: Recordings, summary: Any) -> bool:
        return summary.logs is UNSET and not recordings.nvidia_smi and not recordings.megatron_log

    def of_run(self, result: RunResult, recorded: Any) -> Mapping[str, Any]:
        if recorded is None:
            return {}
        from graphlink.logs.run import against_recorded

        return {"logs": against_recorded(recorded, result)}

    def fields(self, record: str) -> Sequence[Field]:
        if record != "Summary":
            return ()
        from graphlink.logs.records import Logs

        return (Field("run", "logs", Logs | UnsetType, UNSET),)  # absent where no log was given beside the recordings

    def blocks(self, summary: Any) -> Blocks:
        if summary.logs is UNSET:
            return Blocks()
        from graphlink.logs.table import logs_table

        return Blocks(ahead=logs_table(summary.logs))


WING = _Logs()
