"""What GPU time adds to a run: what each GPU was busy with and why it was idle, per rank and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from graphlink import output_names
from graphlink.errors import log
from graphlink.records import first_few
from graphlink.wings import RankPart, Telling, Verb, Wing

if TYPE_CHECKING:
    from graphlink.page.found import Reading
    from graphlink.run.records import RankWork

_FEW: Final = 8  # outliers that are named


class Hooks(Wing):
    verbs = (
        Verb(
            60,
            "idle",
            "DIR",
            "print what each GPU was busy with, and why it was idle",
            "gpu.verb_idle:idle",
            tells=("idle.report",),
        ),
    )
    tables = {"idle": "records:TABLE"}
    answers = {"gpu": "phases:table"}
    schemas = {"idle": "records:IdleFile", "idle.report": "table:IdleReport"}
    sections = {5: "strip:run_over_time", 10: "page:gpu_time"}
    fields = {"Rank": "phases:FIELDS"}
    lead = {"fact": "page:fact_words"}
    parts_of = {"communication": "page:hidden_communication"}

    def finish(self, work: RankWork) -> RankPart:
        from msgspec import UNSET
        from msgspec.structs import replace

        from graphlink import publish
        from graphlink.gpu.busy import host_over_time
        from graphlink.gpu.phases import phases
        from graphlink.gpu.time import bare_ns, blocks, gpu_time, idle_rows

        log.info("finding out why devices were idle")
        gpu = gpu_time(work.graph, work.linked, work.comm, work.joined.wait_ns, work.joined.excluded_ns)
        name, bare = output_names.idle(work.rank), bare_ns(work.prepared.inputs.kineto, work.rank)
        with publish.writing(work.folder / name) as out:
            out.writelines(blocks(work.rank, gpu, work.linked.trace))
        fields = {
            "gpu": list(gpu.gpu),
            "steps": list(gpu.steps),
            "iterations": UNSET if gpu.iterations is None else replace(gpu.iterations, bare_ns=bare),
            "phases": phases(gpu, work.linked, work.prepared.built.graph.epoch_ns) or UNSET,
            "host_over_time": UNSET if gpu.gpu else host_over_time(work.graph),
        }
        rows = (idle_rows(gpu),) if work.options.timeline != "none" else ()
        return RankPart(fields, (name,), rows, gpu.warnings)

    def rank_lines(self, rank: Any) -> Iterable[tuple[str, tuple[str, str]]]:
        from msgspec import UNSET

        from graphlink.gpu.phases import phases_line
        from graphlink.gpu.table import gpu_lines, steps_line

        lines = [line for device in rank.gpu for line in gpu_lines(device)]
        lines += [("steps", steps_line(rank)), ("phases", "" if rank.phases is UNSET else phases_line(rank.phases))]
        return [("critical path", line) for line in lines]

    def first(self, summary: Any, folder: str) -> Sequence[str]:
        from graphlink.gpu.fact import main_fact

        fact = "".join(word if isinstance(word, str) else word.text for word in main_fact(summary))
        return [fact] if fact else []

    def ranked(self, ranks: Sequence[Any]) -> Sequence[Any]:
        from graphlink.gpu.table import idle_percent

        return sorted(ranks, key=lambda rank: (-idle_percent(rank), rank.rank))

    def rank_cells(self, rank: Any) -> Mapping[str, str]:
        from graphlink.gpu.table import exposed_percent, idle_causes, idle_percent, replay_words

        return {
            "idle %": f"{idle_percent(rank):.1f}" if rank.gpu else "",
            "idle because": "".join(
                f"{cause}{replay_words(*rank.gpu)}" for cause, _ in idle_causes(rank).most_common(1)
            ),
            "comm %": f"{exposed_percent(rank):.1f}" if rank.gpu else "",
        }

    def remarks(self, ranks: Sequence[Any]) -> Sequence[str]:
        from graphlink.gpu.table import far_from_usual, idle_percent

        usual, outliers = far_from_usual(ranks)
        named = [f"rank {rank.rank} {idle_percent(rank):.1f} %" for rank in outliers]
        return [f"far from the usual idle time ({usual:.1f} %): {first_few(named, _FEW)}"] if named else []

    def next_steps(self, summary: Any) -> Iterable[tuple[int, str, str]]:
        return [(10, "idle {}", "why each GPU is idle")] if any(rank.gpu for rank in summary.ranks) else []

    def kept(self, ranks: Sequence[Any]) -> Sequence[Any]:
        from graphlink.gpu.table import with_fewer_strips

        return with_fewer_strips(ranks)

    def page_part(self, reading: Reading) -> Any:
        from graphlink.gpu.records import load

        return {rank: reading.of_rank(rank, reading.folder / output_names.idle(rank), load) for rank in reading.told}

    def worth_telling(self, ranks: Sequence[Any]) -> Telling:
        from graphlink.gpu.table import telling

        return telling(ranks)
