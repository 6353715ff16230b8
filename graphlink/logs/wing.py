"""What logs of nvidia-smi and Megatron beside the recordings add to a run: their figures, in its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphlink.choices import Option
from graphlink.engine.files import refuse_urls
from graphlink.errors import UsageError
from graphlink.wings import Blocks, Wing

if TYPE_CHECKING:
    from argparse import Namespace

    from graphlink.run.options import Recordings
    from graphlink.run.records import RunResult


class Hooks(Wing):
    fields = {"Summary": "records:FIELDS"}
    input_options = tuple(
        Option(
            option,
            action="append",
            default=[],
            metavar="FILE",
            help=f"{what}, shown beside the ranks; repeatable",
        )
        for option, what in (
            ("--nvidia-smi", "csv of nvidia-smi or a pasted screen"),
            ("--megatron-log", "log of Megatron"),
        )
    )

    def recorded(self, recordings: Recordings) -> Any:
        if not recordings.nvidia_smi and not recordings.megatron_log:
            return None
        from graphlink.logs.run import read_logs

        return read_logs(recordings)

    def repeats(self, recordings: Recordings, summary: Any) -> bool:
        from msgspec import UNSET

        return summary.logs is UNSET and not recordings.nvidia_smi and not recordings.megatron_log

    def of_run(self, result: RunResult, recorded: Any) -> Mapping[str, Any]:
        if recorded is None:
            return {}
        from graphlink.logs.run import against_recorded

        return {"logs": against_recorded(recorded, result)}

    def blocks(self, summary: Any) -> Blocks:
        from msgspec import UNSET

        from graphlink.logs.records import logs_table

        return Blocks() if summary.logs is UNSET else Blocks(ahead=logs_table(summary.logs))

    def refuse(self, arguments: Namespace) -> None:
        logs = [*arguments.nvidia_smi, *arguments.megatron_log]
        refuse_urls(logs)
        if logs and arguments.rank_job:
            raise UsageError("--nvidia-smi and --megatron-log are for the summary of a run, and --rank-job makes none")
