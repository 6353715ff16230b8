"""What a pipeline adds to a run: ranges and bubbles of its stages, their file, picture and rows of the timeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from graphlink import output_names
from graphlink.choices import Option
from graphlink.engine.files import refuse_urls
from graphlink.errors import UsageError, log
from graphlink.records import counted
from graphlink.wings import Blocks, Columns, Made, Verb, Wing

if TYPE_CHECKING:
    from argparse import Namespace

    from graphlink.depend.build import Built
    from graphlink.doctor.records import Finding
    from graphlink.graph_model import Graph
    from graphlink.page.found import Reading
    from graphlink.run.options import Options, Recordings
    from graphlink.run.records import Aligned, GraphedRank, Joined, PreparedRank, RunResult


class Hooks(Wing):
    stored = ("stagerun:Staged", "records:StageRun", "outputs:RankPipeline")
    verbs = (
        Verb(
            110,
            "bubbles",
            "DIR",
            "print where the bubbles of a pipeline come from, and what another schedule would give",
            "pipeline.verb_bubbles:bubbles",
            tells=("bubbles", "bubbles.compared"),
        ),
    )
    answers = {"bubbles": "file:load", "makespans": "what_if_schedule:makespans"}
    tables = {"ranges": "file:RANGES", "bubbles": "file:BUBBLES"}
    schemas = {"bubbles": "file:Bubbles", "bubbles.compared": "file:Compared"}
    sections = {70: "page:pipeline"}
    fields = {"Summary": "records:FIELDS"}
    lead = {"bubbles": "page:bubble_words"}
    input_options = (
        Option("--paddle-logs", metavar="DIR", help="folder of Paddle worker logs: bubbles only, no graph"),
    )
    graph_options = (
        Option(
            "--range-rule",
            dest="range_rules",
            action="append",
            default=[],
            metavar="REGEX",
            help="names of pipeline ranges, with groups (?P<phase>...), microbatch, stage, chunk; repeatable, before "
            "the known ones",
        ),
    )

    def check(self, options: Options) -> None:
        if options.range_rules:
            from graphlink.pipeline.named_ranges import user_rules

            user_rules(options.range_rules)

    def is_log(self, path: Path) -> bool:
        from graphlink.pipeline.paddle.logs import WORKER

        return WORKER.fullmatch(path.name) is not None

    def of_graph(self, rank: GraphedRank) -> Made:
        from graphlink.pipeline.named_ranges import user_rules
        from graphlink.pipeline.stagerun import stage_run, witness_of

        log.info("looking for pipeline ranges")
        rules, side_files = user_rules(rank.range_rules), rank.parts.get("nccl")
        seen = None if side_files is None else witness_of(side_files)
        staged = stage_run(rank.graph, rank.linked, rank.comm, rank.rank, rules, seen)
        return Made(staged, staged.warnings)

    def to_join(self, part: Any) -> Any:
        return part.run

    def over_ranks(self, parts: Mapping[int, Any], aligned: Aligned | None) -> Any:
        if not any(parts.values()):  # most runs have none, and need not load what analyses one
            return None
        from graphlink.pipeline.analyse import analyse
        from graphlink.pipeline.between_ranks import TOLERANCE_NS, aligned_ordinals
        from graphlink.pipeline.stagerun import on_run_clock

        ranks = sorted(parts)
        if aligned is None:
            return analyse([parts[rank] for rank in ranks])
        runs = []
        for rank in ranks:
            run, position = parts[rank], aligned.position.get(rank)
            if run is not None and position is not None:
                ordinal = aligned_ordinals(run, aligned.comms[rank], aligned.matching.matches, position)
                run = on_run_clock(replace(run, ordinal=ordinal), aligned.clocks.clocks[position])
            runs.append(run)
        return analyse(runs, max(TOLERANCE_NS, aligned.clocks.residual_ns))

    def of_rank(self, part: Any, rank: int) -> Any:
        from graphlink.pipeline.outputs import rank_pipeline

        return rank_pipeline(part, rank)

    def columns(self, graph: Graph, prepared: PreparedRank, joined: Joined) -> Columns:
        pipeline = joined.parts.get("pipeline")
        if pipeline is None:
            return Columns()
        from graphlink.pipeline.outputs import columns

        ranges = pipeline.ranges_of(prepared.parts["pipeline"].of_device)
        return Columns(columns(graph, ranges, pipeline.run, pipeline.idle, joined.clock))

    def instead(self, recordings: Recordings, options: Options) -> Any:
        if recordings.paddle_logs is None:
            return None
        from graphlink.pipeline.paddle.runs import pipeline_of

        return pipeline_of(Path(recordings.paddle_logs), options.step)

    def repeats(self, recordings: Recordings, summary: Any) -> bool:
        return not recordings.paddle_logs

    def write(self, part: Any, folder: Path) -> tuple[str, ...]:
        from graphlink import publish
        from graphlink.pipeline import file, svg

        log.info("writing the pipeline")
        with publish.writing(folder / output_names.BUBBLES) as out:
            out.writelines(file.blocks(part))
        publish.write(folder / output_names.PIPELINE, svg.encode(part))
        return output_names.BUBBLES, output_names.PIPELINE

    def tracks(self, out: BinaryIO, part: Any) -> bool:
        from graphlink.perfetto.packets import encode
        from graphlink.pipeline.outputs import trace_of

        return sum(map(out.write, encode(trace_of(part)))) > 0

    def of_run(self, result: RunResult, recorded: Any) -> Mapping[str, Any]:
        pipeline = result.parts.get("pipeline")
        if pipeline is None:
            return {}
        from graphlink.pipeline.file import summarised

        return {"pipeline": summarised(pipeline)}

    def blocks(self, summary: Any) -> Blocks:
        from graphlink.pipeline.records import pipeline_table

        return Blocks() if summary.pipeline is None else Blocks(behind=pipeline_table(summary.pipeline))

    def next_steps(self, summary: Any) -> Iterable[tuple[int, str, str]]:
        return [] if summary.pipeline is None else [(20, "bubbles {}", "where the pipeline is idle, and why")]

    def refuse(self, arguments: Namespace) -> None:
        logs = arguments.paddle_logs
        refuse_urls([logs] if logs else [])
        for option, given in (("linked", arguments.linked), ("range-rule", arguments.range_rules)):
            if logs is not None and given:
                raise UsageError(f"--{option} is not for --paddle-logs: they hold jobs, not traces")

    def lacks(self, rank: GraphedRank, built: Built) -> Iterable[Finding]:
        from graphlink.doctor.records import Finding

        warnings = rank.parts["pipeline"].warnings
        return [Finding("pipeline-doubts", 0.0, told=warnings)] if warnings else []

    def run_lacks(self, part: Any, ranks: int) -> Iterable[Finding]:
        from graphlink.doctor.records import Finding
        from graphlink.pipeline.autograd import RULE

        guessed = [run for run in part.runs if RULE in run.ranges.rules]
        if guessed:
            figures = {"ranges": sum(len(run.ranges.rule) for run in guessed)}
            which = tuple(run.rank for run in guessed)
            yield Finding("no-pipeline-ranges", len(guessed) / ranks, figures, ranks=which)
        if part.warnings:
            yield Finding("pipeline-doubts", 0.0, told=part.warnings)

    def page_part(self, reading: Reading) -> Any:
        from graphlink.output_names import BUBBLES
        from graphlink.pipeline.file import load

        return load(reading.folder / BUBBLES) if reading.summary.pipeline else None

    def about(self, summary: Any) -> str:
        return f"{counted(summary.pipeline.stages, 'stage')} of a pipeline, from logs" if summary.pipeline else ""
