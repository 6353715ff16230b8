"""Whether what is promised for a change comes true when the program is changed so, and whether the order is right."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET

import graphlink
from graphlink.advice import heaviest as heaviest_work
from graphlink.advice.advise import advised, change_of, in_order, main_advice
from graphlink.advice.communication import _only_copied, buckets, exposed
from graphlink.advice.edits import _LINES, line_for
from graphlink.advice.kinds import _rates, candidates
from graphlink.advice.on_host import LAUNCHES, optimizers
from graphlink.advice.outputs import BEFORE_AMPERE, Candidate, Outputs
from graphlink.advice.records import Advice, AdviceReport, Kind
from graphlink.advice.stages import _slowest, stages
from graphlink.advice.table import advice_rows, advice_table, first_lines
from graphlink.cli import main
from graphlink.graph.read_et import read_et
from graphlink.graph_model import EdgeKind
from graphlink.logs.records import Figure, GpuLog, Logs, SmiLog
from graphlink.model import System
from graphlink.operations.records import load as read_operations
from graphlink.pipeline.file import StageEntry
from graphlink.pipeline.records import PartsNs, Pipeline, Theory
from graphlink.ranks.summary import Run as RunSummary
from graphlink.ranks.summary import Straggler
from graphlink.records import Table
from graphlink.replay.band import BOUND
from graphlink.replay.changes import Changes
from graphlink.replay.folder import graph_files, load
from graphlink.replay.records import Band, Span
from graphlink.replay.workload import workload
from graphlink.report.summary import Machine
from graphlink.wings import wing
from tests.replay.hand import COLL, GPU, N
from tests.replay.hand import load as hand
from tests.simulator import Api, Call, Program, Thread, Work, run, write_kineto
from tests.simulator.cluster import cluster_run
from tests.simulator.cluster_records import ClusterTraining
from tests.simulator.pipeline_losses import Loss, Place
from tests.simulator.pipelines import PipelineTraining, pipeline_run
from tests.simulator.program import Action, Begin, CommArgs, End, Group, Host

DEMO = Path(__file__).parents[2] / "fixtures" / "demo"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
LOADER, SYNC = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "aten::_local_scalar_dense"
GEMM, ADD = (
    "volta_sgemm_128x64_nn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>(int)",
)
COPY, NCCL = "Memcpy HtoD (Pageable -> Device)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
US = 1_000


def op(name: str, work: Work, host_us: int, stream: int = 7) -> list[Action]:
    call = "cudaMemcpyAsync" if work.kind == "gpu_memcpy" else "cudaLaunchKernel"
    return [Begin(name, ns=host_us * US), Call(Api.LAUNCH, call, 4 * US, stream=stream, work=(work,)), End()]


def program(
    *,
    load: int = 10,
    host: int = 8,
    gemm: int = 20,
    add: int = 5,
    copy: int = 5,
    comm: int = 10,
    gap: int = 1,
    wait: bool = True,
) -> Program:
    """Five training steps on one stream, and what they take in us; ``gap``: between two device ops."""
    actions: list[Action] = []
    for step in range(5):
        actions += [
            Begin(f"ProfilerStep#{step}", annotation=True),
            Begin(LOADER, annotation=True),
            Host(load * US),
            End(),
        ]
        actions += op("aten::copy_", Work(COPY, copy * US, "gpu_memcpy", size_bytes=4096), host)
        for _ in range(8):
            actions += [*op("aten::mm", Work(GEMM, gemm * US), host), *op("aten::add", Work(ADD, add * US), host)]
        reduced = CommArgs("allreduce", in_nelems=1024, out_nelems=1024, group="0", seq=step + 1)
        actions += [Begin("record_param_comms", comm=reduced, ns=host * US)]
        actions += [
            Call(Api.LAUNCH, "cudaLaunchKernel", 4 * US, stream=7, work=(Work(NCCL, comm * US, comm=reduced),)),
            End(),
        ]
        waits = Call(Api.STREAM_SYNC, "cudaStreamSynchronize", 2 * US, stream=7, blocking=True, return_ns=US)
        actions += [Begin(SYNC), *([waits] if wait else []), End(), End()]
    apart = [
        replace(a, work=tuple(replace(w, gap_ns=gap * US) for w in a.work)) if isinstance(a, Call) else a
        for a in actions
    ]
    return Program((Thread("main", tuple(apart)),), groups=(Group("0", "default_pg", (0, 1)),), rank=0, world_size=2)


def report(one: Program, folder: Path) -> AdviceReport:
    write_kineto(run(one), folder / "kineto_0.json", dialect="2026")
    options = graphlink.Options(sync="cuda", timeline="none")
    return graphlink.link(folder / "kineto_0.json", out=folder / "out", options=options, force=True).advice()


def changed(one: Program, what: Callable[[Action], Action]) -> Program:
    return replace(one, threads=tuple(replace(t, actions=tuple(map(what, t.actions))) for t in one.threads))


def of_work(name: str, ns: Callable[[int], int]) -> Callable[[Action], Action]:
    def change(action: Action) -> Action:
        if not isinstance(action, Call):
            return action
        return replace(
            action, work=tuple(replace(w, duration_ns=ns(w.duration_ns)) if w.name == name else w for w in action.work)
        )

    return change


def halved(name: str) -> Callable[[Action], Action]:
    """Halve the host time of the ops of a name, and of the calls in them."""
    inside = False

    def change(action: Action) -> Action:
        nonlocal inside
        if isinstance(action, Begin):
            inside = action.name == name
            return replace(action, ns=action.ns // 2) if inside else action
        return replace(action, call_ns=action.call_ns // 2) if inside and isinstance(action, Call) else action

    return change


def carried_out(one: Program, advice: Advice, folder: Path, number: int) -> Program:
    """The program, changed as the advice supposes, which is that of a number in a folder."""
    if advice.kind == "data_loading":

        def without(action: Action) -> Action:
            if isinstance(action, Begin) and action.name == LOADER:
                return replace(action, ns=1)
            return Host(1) if isinstance(action, Host) else action

        return changed(one, without)
    if advice.kind == "launch_bound":
        less = round(-1000 * float(shlex.split(advice.command)[-1]))
        launch = 4 * US

        def quicker(action: Action) -> Action:
            if isinstance(action, Call) and action.work:
                return replace(action, call_ns=max(launch - less, 1))
            if isinstance(action, Begin) and (action.name.startswith("aten::") or action.comm) and action.name != SYNC:
                return replace(action, ns=max(action.ns - max(less - launch, 0), 1))
            return action

        return changed(one, quicker)
    if advice.kind == "blocking_sync":
        return changed(
            one,
            lambda a: (
                replace(a, api=Api.OTHER, blocking=False) if isinstance(a, Call) and a.api == Api.STREAM_SYNC else a
            ),
        )
    if advice.kind == "heaviest_work":
        (change,) = change_of(folder, graph_files(folder), number).time
        assert change.name is not None and change.scale == 0.5
        name = re.sub(r"\\(.)", r"\1", change.name.pattern[1:-1])
        if change.sort == "kernel":
            return changed(one, of_work(name, lambda ns: ns // 2))
        return changed(one, halved(name))
    of_kind = {
        "exposed_communication": of_work(NCCL, lambda _: 1),
        "copies": of_work(COPY, lambda _: 1),
        "tensor_cores": of_work(GEMM, lambda ns: ns // 2),
        "small_kernels": of_work(ADD, lambda ns: ns // 2),
        "late_starts": lambda a: a,  # all begin as late as usual
    }
    return changed(one, of_kind[advice.kind])


@pytest.mark.parametrize(
    ("figures", "first"),
    [
        ({"load": 600}, "data_loading"),
        (
            {"host": 12, "load": 1, "gemm": 4, "gap": 0},
            "launch_bound",
        ),  # where the host is late, no recording shows a gap
        ({"gemm": 90, "wait": False}, "tensor_cores"),
        ({"add": 60, "wait": False}, "small_kernels"),
        ({"copy": 900, "wait": False}, "copies"),
        ({"comm": 900, "wait": False}, "exposed_communication"),
        ({"load": 120, "gemm": 16, "host": 3}, None),
        ({"load": 200, "gemm": 30, "add": 20, "copy": 90, "comm": 120}, None),
    ],
)
def test_what_is_promised_comes_true(tmp_path: Path, figures: dict[str, int], first: str | None) -> None:
    one = program(**figures)  # type: ignore[arg-type]
    told = report(one, tmp_path)
    before = run(one).makespan_ns
    true_pct = {
        a.kind: 100 * (1 - run(carried_out(one, a, tmp_path / "out", k)).makespan_ns / before)
        for k, a in enumerate(told.advice, 1)
        if a.gain_pct is not None
    }
    promised = {a.kind: a.gain_pct for a in told.advice if a.gain_pct is not None}
    print(*(f"{kind:24}{promised[kind]:8.2f}{true_pct[kind]:8.2f}" for kind in promised), sep="\n")
    for kind, pct in promised.items():
        assert abs(pct - true_pct[kind]) <= 2, kind
    of_step = [a.gain_step_pct for a in told.advice if a.gain_step_pct is not None]
    assert len(of_step) == len(promised) and of_step == sorted(of_step, reverse=True)
    assert first in (None, next(iter(promised)))


@pytest.mark.parametrize(
    ("gains", "about", "bare_pct", "order"),
    [
        ({"launch_bound": 41, "data_loading": 32, "copies": 1}, "data_loading", 40, "data_loading launch_bound copies"),
        (
            {"launch_bound": 41, "data_loading": 12, "copies": 13},
            "data_loading",
            40,
            "launch_bound copies data_loading",
        ),
        ({"launch_bound": 41, "data_loading": 32}, "launch_bound", 40, "launch_bound data_loading"),
        ({"blocking_sync": 8, "heaviest_work": 5}, "heaviest_work", 6.4, "heaviest_work blocking_sync"),
        ({"blocking_sync": 8, "heaviest_work": 5}, "heaviest_work", 30, "blocking_sync heaviest_work"),
    ],
)
def test_launches_and_waits_stand_behind_the_main_fact(
    gains: dict[Kind, float], about: Kind, bare_pct: float, order: str
) -> None:
    """Launches that gain up to twice as much; a wait that would leave GPUs no time for what they compute."""
    advice = [
        Candidate(
            Advice(kind=kind, what="", evidence="", todo="", gain_ns=1, gain_pct=gain),
            None,
            LAUNCHES * (kind == "launch_bound"),
        )
        for kind, gain in gains.items()
    ]
    assert [one.advice.kind for one in in_order(advice, [about], bare_pct, 0, most_once=False)] == order.split()


@pytest.mark.parametrize("late", [True, False])
def test_a_late_stage_has_a_gain_and_stands_above_the_messages_in_which_it_shows(late: bool, tmp_path: Path) -> None:
    places = [Place(2, "F", number, step=step) for number in range(2, 8) for step in range(3)]
    losses = tuple(Loss("launch_starved", 2_000_000, (place,)) for place in places) if late else ()
    more = {"steps": 3, "optimizer_ns": 400_000, "norm_ns": 100_000, "kernels": 2, "transfer_ns": 100_000}
    pipeline_run(PipelineTraining(visible=True, losses=losses, **more)).write(tmp_path / "in")  # type: ignore[arg-type]
    options = graphlink.Options(sync="cuda", timeline="none")
    told = graphlink.link(tmp_path / "in", out=tmp_path / "out", options=options).advice().advice
    place, idle = next((k, one) for k, one in enumerate(told) if one.kind == "pipeline_bubble")
    messages = next(k for k, one in enumerate(told) if one.kind == "exposed_communication")
    if not late:
        assert idle.gain_pct is None and messages < place and "another schedule is another program" in idle.why_not
        return
    assert place == 0 and idle.gain_pct is not None and idle.gain_pct > 10 and idle.why_not == ""
    assert "less for the host of stage 2 (rank 2)" in idle.todo and "rank 2 arrived last" in idle.evidence
    assert not any(one.kind == "straggler" for one in told)  # one cause is one advice
    assert main([*shlex.split(idle.command)[1:], "--json", str(tmp_path / "r.json")]) == 0
    (what_if,) = msgspec.json.decode((tmp_path / "r.json").read_bytes())["what_if"]
    assert what_if["gain_pct"] == idle.gain_pct


def test_a_stage_that_took_long_once_says_so_without_a_gain(tmp_path: Path) -> None:
    pipeline = graphlink.link(
        DEMO.parent / "real" / "pipeline", out=tmp_path / "out", options=graphlink.Options(timeline="none")
    )
    told = pipeline.advice().advice
    (idle,) = [one for one in told if one.kind == "pipeline_bubble"]
    assert idle.gain_pct is None and all(one.gain_pct is not None for one in told[: told.index(idle)])
    assert pipeline.summary.pipeline is not None
    share = f"{100 * pipeline.summary.pipeline.bubble_rate_makespan:.1f} % of the time of its steps"
    assert share in idle.evidence and "DIR" not in idle.evidence
    # one split of the time, the stage, and what takes it longer: a forward of 200 ms, once
    assert re.search(r"\(dependency_stall\) [\d.]+ %", idle.evidence) and "itself" not in idle.evidence
    whole, parts = re.findall(
        r"; stage 3 \(rank 3\) waited for no other stage for ([\d.]+) ms \((.*?)\)", idle.evidence
    )[0]
    rows = msgspec.json.decode((tmp_path / "out" / "bubbles.json").read_bytes())["stages"]
    shown = {"work": rows[3]["work_ns"], **rows[3]["idle_ns"]}
    made_of = dict(part.split() for part in parts.split(", "))
    assert whole == "261.060" and made_of == {name: f"{shown[name] / 1e6:.3f}" for name in made_of}
    assert abs(sum(map(float, made_of.values())) - 261.060) < 0.005
    assert ": more to compute, 200.717 ms in one F alone; graphlink bubbles" in idle.evidence
    assert idle.todo.startswith("record more steps, after a warm-up: stage 3 (rank 3) took that long in one pass")
    # what the command prints that it names
    command = re.findall(r"graphlink (bubbles .* --schedule 1f1b --microbatches 8) computes ([\d.]+) ms", idle.evidence)
    assert main([*shlex.split(command[0][0]), "--json", str(tmp_path / "b.json")]) == 0
    computed_ns = msgspec.json.decode((tmp_path / "b.json").read_bytes())["what_if"]["makespan_ns"]
    assert command[0][1] == f"{computed_ns / 1e6:.3f}"
    assert "pipeline_bubble" in {one.kind for one in main_advice(pipeline).advice}  # without a GPU, too


def test_communication_counts_without_waiting_that_is_excluded(tmp_path: Path) -> None:
    """As the main fact does: what was waited for in a collective that counts nowhere."""
    report(program(comm=900, wait=False), tmp_path)
    made = graphlink.open(tmp_path / "out").summary
    device = made.ranks[0].gpu[0]
    assert device.exposed_comm_ns > 2_000_000
    rank = msgspec.structs.replace(made.ranks[0], gpu=[msgspec.structs.replace(device, excluded_ns=1_500_000)])
    run_ = Outputs(msgspec.structs.replace(made, ranks=[rank]), (0,), workload(load(graph_files(tmp_path / "out"))), {})
    (told, *_) = [one.advice.evidence for one in candidates(run_) if one.advice.kind == "exposed_communication"]
    exposed, whole = (f"{(ns - 1_500_000) / 1e6:,.3f} ms" for ns in (device.exposed_comm_ns, device.comm_ns))
    assert told.startswith(f"{exposed} of {whole} are exposed; 1.500 ms more of waiting")


def test_a_wait_that_goes(tmp_path: Path) -> None:
    one = program(load=300, gemm=60)
    told = {a.kind: a for a in report(one, tmp_path).advice}
    assert told["blocking_sync"].gain_pct is not None
    true_pct = 100 * (1 - run(carried_out(one, told["blocking_sync"], tmp_path, 0)).makespan_ns / run(one).makespan_ns)
    assert true_pct > 5 and abs(told["blocking_sync"].gain_pct - true_pct) <= 2
    assert told["blocking_sync"].evidence.startswith("5 waits (cudaStreamSynchronize)")


def test_the_command_computes_the_gain_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(program(load=200, gemm=30, add=20), tmp_path)
    assert told.advice
    for one in (a for a in told.advice if a.command):
        words = shlex.split(one.command)
        assert main([*words[1:], "--json", str(tmp_path / "r.json")]) == 0
        (what_if,) = msgspec.json.decode((tmp_path / "r.json").read_bytes())["what_if"]
        assert what_if["gain_pct"] == one.gain_pct, one.command
    capsys.readouterr()


def test_what_has_no_gain_says_why_and_comes_last(tmp_path: Path) -> None:
    run_ = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    (rank,) = run_.summary.ranks
    (gpu,) = rank.gpu
    causes = {**gpu.idle_by_cause_ns, "memory_management": 7_000, "profiler_artefact": 9_000}
    slow = msgspec.structs.replace(rank, gpu=[msgspec.structs.replace(gpu, idle_by_cause_ns=causes)])
    whole = msgspec.structs.replace(run_.summary, ranks=[slow])
    work = workload(load({0: tmp_path / "out" / "trace.0.et"}))
    told = advised(Outputs(whole, (0,), work, {}), {}, "out", whole=True)[0]
    assert [a.kind for a in told.advice if a.why_not] == ["allocator", "profiler"]
    assert all(a.gain_ns is None for a in told.advice if a.why_not)
    text = "\n".join(line if isinstance(line, str) else str(line.rows) for line in advice_table(told, 99))
    assert (
        "not computed: the calls come once, or are not recorded by op" in text
        and "GPUs were idle for 0.007 ms for it" in text
    )


def test_of_the_allocator_what_came_once_is_not_counted_and_said(tmp_path: Path) -> None:
    """cudaMalloc takes 90 ms in the first op, which starts CUDA, and 1 ms in two others."""
    calls = [
        (name, Call(Api.OTHER, "cudaMalloc", ns * US)) for name, ns in (("aten::empty", 90_000), ("aten::zeros", 1_000))
    ]
    actions: list[Action] = op("aten::mm", Work(GEMM, 5 * US), 8)
    for name, call in (*calls, calls[1]):
        actions += [Begin(name, ns=5 * US), call, End(), *op("aten::mm", Work(GEMM, 5 * US), 8)]
    told = {each.kind: each for each in report(Program((Thread("main", tuple(actions)),)), tmp_path).advice}
    assert told["allocator"].gain_ns is not None and abs(told["allocator"].gain_ns - 2_000 * US) <= 20 * US
    assert "92.000 ms of the host" in told["allocator"].evidence
    assert told["allocator"].supposed.endswith("; 90.000 ms of them came once, or outside ops, and are not counted")
    assert "--step" not in told["once"].todo, "no steps are marked"
    assert "CUDA starts" in told["once"].todo


def test_what_an_op_allocates_for_another_and_waits_for_to_free_memory_is_the_allocators(tmp_path: Path) -> None:
    """PyTorch out of memory: an ``aten::empty`` inside a convolution waits for all work, frees, and allocates."""

    def steps(allocates: bool) -> Program:
        actions: list[Action] = []
        for step in range(5):
            actions += [Begin(f"ProfilerStep#{step}", annotation=True)]
            for _ in range(3):
                actions += [*op("aten::mm", Work("multiply", 400 * US), 8), Begin("aten::conv2d", ns=5 * US)]
                sync = Call(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 2 * US, blocking=True, return_ns=US)
                calls = (sync, Call(Api.OTHER, "cudaFree", 60 * US), Call(Api.OTHER, "cudaMalloc", 90 * US))
                actions += [Begin("aten::empty", ns=3 * US), *(calls if allocates else ()), End()]
                actions += [*op("aten::cudnn_convolution", Work("conv", 300 * US), 8), End()]
            actions += [End()]
        return Program((Thread("main", tuple(actions)),))

    told, twin = (report(steps(allocates), tmp_path) for allocates in (True, False))
    saved = 100 * (1 - twin.replayed_ns / told.replayed_ns)
    (own,) = (one for one in told.advice if one.kind == "allocator")
    assert own.gain_pct is not None and abs(own.gain_pct - saved) < 2 < 15 < saved
    assert not any("aten::empty" in one.what for one in told.advice if one.kind == "blocking_sync")


def test_the_first_screen_of_a_large_run_says_why_it_has_no_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    nodes = made.summary.ranks[0].graph_nodes
    monkeypatch.setattr("graphlink.advice.wing.MOST_NODES", nodes - 1)
    text = "\n".join(map(str, wing("advice").first(made.summary, "a b")))
    assert f"no more than {nodes - 1:,} nodes: there are {nodes:,}" in text and "graphlink advice 'a b'" in text


def test_of_a_larger_run_the_first_screen_replays_what_the_main_fact_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report(program(load=2000), tmp_path)
    monkeypatch.setattr("graphlink.advice.wing.FEW_NODES", 5)
    _, table, *commands = wing("advice").first(graphlink.open(tmp_path / "out").summary, str(tmp_path / "out"))
    assert not isinstance(table, str) and [row[0] for row in table.rows][:3] == ["saves", "per cent", "do"]
    assert table.rows[0][1].endswith("the run waits for its data") and "--dataloader-workers 8" in str(commands)
    assert "tries all other changes, too" in str(commands)


def of_rows(
    folder: Path,
    *rows: tuple[str, str, float, float, int],
    kernels: tuple[tuple[str, float, int], ...] = (),
    kernel_us: int = 1,
) -> AdviceReport:
    """Return the advice for a recording: category, name, start, length (us), correlation; kernels: name, start,
    correlation."""
    events = [
        {
            "ph": "X",
            "cat": sort,
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": start,
            "dur": took,
            "args": {"correlation": call},
        }
        for sort, name, start, took, call in rows
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": kernel_us}
        | {"args": {"correlation": call, "stream": 7, "device": 0}}
        for name, start, call in kernels
    ]
    (folder / "kineto_0.json").write_text(json.dumps({"traceEvents": events}))
    options = graphlink.Options(sync="cuda", timeline="none")
    return graphlink.link(folder / "kineto_0.json", out=folder / "out", options=options, force=True).advice()


@pytest.mark.parametrize("again", [False, True])
def test_first_launches_that_load_their_kernels_are_no_work_to_make_faster(tmp_path: Path, *, again: bool) -> None:
    """Where kernels are launched again, and quickly, launches have a usual time; that of the first ones came once."""
    calls = [("cuda_runtime", "cudaLaunchKernel", 18_005.0 * k, 18_000, k + 1) for k in range(3)]
    kernels = [(f"k{k}", 18_005.0 * k + 18_002, k + 1) for k in range(3)]
    for k in range(20 * again):
        calls.append(("cuda_runtime", "cudaLaunchKernel", 54_015.0 + 10 * k, 5, k + 4))
        kernels.append(("k0", 54_015.0 + 10 * k + 7, k + 4))
    told = of_rows(tmp_path, *calls, kernels=tuple(kernels)).advice
    assert told[0].kind == "once" and told[0].evidence.startswith("54.01") and "in 3 calls" in told[0].evidence
    assert not any(one.kind == "heaviest_work" for one in told)
    assert again or not any(one.kind == "launch_bound" for one in told)


@pytest.mark.parametrize(
    ("name", "kernel", "launched", "do"),
    [
        ("aten::mm", "sm80_xmma_gemm_bf16bf16_bf16f32_f32_nn", 1, "multiplies on tensor cores already"),
        ("aten::sum", "void at::native::reduce_kernel<512, 1>(int)", 1, "torch.compile of function step (train.py:12)"),
        ("aten::my", "mine", 1, "its name does not tell"),
        ("aten::mm", "", 0, "more cores (torch.set_num_threads)"),
        ("aten::unique", "tiny", 0, "run it on the GPU"),
        ("aten::empty", "tiny", 0, "it computes nothing, but makes tensors or views"),
        ("aten::attend", "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", 1, "cuDNN's attention"),
        (
            "flash_attn::_flash_attn_forward",
            "void flash::flash_fwd_kernel<64>",
            1,
            "FlashAttention-3 (flash_attn_interface)",
        ),
        ("aten::my", "ampere_sgemm_128x64_tn", 1, "fp16 by torch.autocast"),
        ("aten::cat", "tiny", 1, "torch._foreach_ ops, in place of a loop; or torch.compile of function step"),
        ("aten::cat", "tiny", 9, "let one launch do what it launches"),
    ],
)
def test_what_to_do_about_work_follows_from_what_it_does(
    tmp_path: Path, name: str, kernel: str, launched: int, do: str
) -> None:
    """An op of 100 us, or its kernel of 1 ms, in a function of which the line is known."""
    rows, kernels, on_gpu = [("python_function", "train.py(12): step", 0.0, 99_000, 0)], [], kernel not in ("", "tiny")
    for k in range(20):
        at, call = 120.0 * k, 100 * k + 1
        rows += [("cpu_op", name, at, 10 if on_gpu else 100, 0)]
        rows += [("cuda_runtime", "cudaLaunchKernel", at + 1 + n, 1, call + n) for n in range(launched)]
        kernels += [(kernel, (1_001.0 if on_gpu else 120) * k + 20 + 2 * n, call + n) for n in range(launched)]
        if kernel == "tiny":
            rows += [
                ("cpu_op", "aten::add", at + 101, 5, 0),
                ("cuda_runtime", "cudaLaunchKernel", at + 102, 2, 9_000 + k),
            ]
            kernels += [("add", at + 110, 9_000 + k)]
    told = of_rows(tmp_path, *rows, kernels=tuple(kernels), kernel_us=1_000 if on_gpu else 1).advice
    (heavy,) = (one for one in told if one.kind == "heaviest_work" and one.what.startswith(kernel if on_gpu else name))
    assert do in heavy.todo and heavy.evidence.endswith("in function step (train.py:12)")
    assert "stacks=True" not in heavy.todo and heavy.todo.endswith(("shows what calls it", "multiples of 8"))
    assert ("on the CPU" in heavy.evidence) == (name == "aten::unique")


@pytest.mark.parametrize("of_bmm", ["Attention", "Loss"])
def test_behind_a_loader_the_longest_kernel_is_advised_on(tmp_path: Path, of_bmm: str) -> None:
    """A softmax beside batched products is attention; elsewhere it is any other one."""
    rows, kernels = [("user_annotation", LOADER, 9_000.0 * k, 9_000, 0) for k in range(2)], []
    softmax, products = ("Attention", "aten::_softmax", "softmax<8>"), (of_bmm, "aten::bmm", "Cijk_Ailk")
    for k, (module, name, kernel) in enumerate([softmax, softmax, products] * 6):
        at_us = 18_000.0 + 100 * k
        rows += [("cpu_op", module, at_us, 50, 0), ("cpu_op", name, at_us + 1, 40, 0)]
        rows += [("cuda_runtime", "cudaLaunchKernel", at_us + 5, 5, k + 1)]
        kernels += [(kernel, at_us + 20 + 900 * k, k + 1)]
    told = of_rows(tmp_path, *rows, kernels=tuple(kernels), kernel_us=900).advice
    (heavy,) = (one for one in told if one.kind == "heaviest_work")
    assert heavy.what == "softmax<8> is the kernel that takes the GPUs longest"
    assert ("scaled_dot_product_attention" in heavy.todo) == (of_bmm == "Attention")


@pytest.mark.parametrize("steps", [1, 2])
def test_a_range_that_is_there_once_in_one_step_may_come_in_each(tmp_path: Path, steps: int) -> None:
    rows = [("user_annotation", f"ProfilerStep#{k}", 10_000.0 * k, 9_990 if k == 0 else 2_010, 0) for k in range(steps)]
    rows += [("cpu_op", "aten::mm", 10_000.0 * k + 100 * n, 90, 0) for k in range(steps) for n in range(1, 20)]
    told = of_rows(tmp_path, *rows, ("user_annotation", "## backward ##", 3000, 6900, 0)).advice
    heavy = next((one for one in told if one.what.startswith("## backward ##")), None)
    assert heavy is not None and heavy.kind == ("heaviest_work" if steps == 1 else "once")
    if steps == 1:
        assert "1 call, outside of the ops in it" in heavy.evidence and "no op" in heavy.todo


@pytest.mark.parametrize("steps", [1, 3])
def test_of_one_step_no_range_behind_the_gradients_is_advised_against(tmp_path: Path, steps: int) -> None:
    """It may be there for the next step, as what waits for its data is."""
    rows = [("user_annotation", f"ProfilerStep#{k}", 10_000.0 * k, 9_990, 0) for k in range(steps)]
    for begin in (10_000.0 * k for k in range(steps)):
        rows += [("cpu_op", "autograd::engine::evaluate_function: MmBackward0", begin + 10, 4_000, 0)]
        rows += [("user_annotation", "log", begin + 5_000, 4_000, 0)]
    assert any(one.kind == "aside" for one in of_rows(tmp_path, *rows).advice) == (steps > 1)


def test_late_starts_that_nothing_explains_stand_first_where_nothing_gains_a_hundredth(tmp_path: Path) -> None:
    path = TRACES / "inference" / "sglang_decode_graph.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    made = graphlink.link(path, out=tmp_path / "out", options=graphlink.Options(sync="cuda", timeline="none"))
    first, *others = made.advice().advice
    assert first.kind == "late_starts" and first.gain_ns is None and "before the first recorded step" in first.todo
    assert all((one.most_pct or 0) < 1 for one in others)


@pytest.mark.parametrize(
    ("todo", "line"),
    [
        ("num_workers=4 of the DataLoader, pin_memory=True", "DataLoader(..., num_workers=4, pin_memory=True)"),
        ("num_workers=4 of the DataLoader", "DataLoader(..., num_workers=4)"),
        (f"{BEFORE_AMPERE.types}; sizes", 'with torch.autocast("cuda", dtype=torch.float16): ...'),
        ("fused=True of AdamW, or foreach=True", "torch.optim.AdamW(..., fused=True)"),
        ("larger buckets, 2 in one (bucket_cap_mb=50 of DDP)", "DistributedDataParallel(model, bucket_cap_mb=50)"),
        ("fewer ops, torch.compile; fused=True of Adam", "model = torch.compile(model)"),  # what is said first
        ("a larger batch", ""),
    ],
)
def test_what_to_do_has_a_line_to_paste(todo: str, line: str) -> None:
    assert line_for(todo) == line


def test_lines_to_paste_are_python_or_commands_and_fit_on_a_line() -> None:
    for _, line in _LINES:
        assert len(line) <= 66, line
        if not line.startswith(("nvidia-smi", "rocm-smi")):
            ast.parse(line.replace("\\1", "N"))


@pytest.mark.parametrize(("gains", "said"), [((30.0, 20.0), False), ((20.0, 30.0), True)])
def test_what_is_printed_first_of_a_gain_is_what_advice_is_ordered_by(
    gains: tuple[float, float], *, said: bool
) -> None:
    told = [
        Advice(kind="copies", what="what", evidence="", todo="", gain_ns=10**6, gain_pct=pct / 2, gain_step_pct=pct)
        for pct in gains
    ]
    report = AdviceReport(ranks=[0, 1], machine="ideal", replayed_ns=10**7, path_ns=10**7, advice=told, notes=[])
    printed = advice_table(report, 8)
    head, *lines = (line for line in printed if isinstance(line, str))
    first, second = (line for line in lines if "saves" in line)
    assert first == f"1. saves {gains[0]} % of a step (1.000 ms in all, {gains[0] / 2} %): what"
    assert second.startswith(f"2. saves {gains[1]} % of a step")
    order = [row for table in printed if isinstance(table, Table) for row in table.rows if row[0] == "order"]
    assert [text.partition(":")[0] for _, text in order] == ["behind 1"] * said
    assert "times in seen are added up over the ranks" in head


def test_a_bound_is_said_to_be_the_most_that_is_saved() -> None:
    band = Band(level_pct=90, steps=2, unexplained_ns=[], latency_ns=[], why=BOUND)
    told = Advice(
        kind="copies", what="what", evidence="", todo="this", gain_ns=9, gain_pct=30.0, band=band, command="that"
    )
    report = AdviceReport(ranks=[0], machine="ideal", replayed_ns=30, path_ns=30, advice=[told], notes=[])
    assert "'at most 0.000 ms (30.0 %" in str(first_lines(report, "DIR")[1])
    report = msgspec.structs.replace(report, advice=[msgspec.structs.replace(told, band=None)])
    assert "at most" not in str(first_lines(report, "DIR")[1])


@pytest.mark.parametrize(
    ("kind", "gain_pct", "order"),
    [
        ("heaviest_work", 20.0, "straggler heaviest_work copies"),
        ("heaviest_work", 14.0, "heaviest_work copies straggler"),
        ("exposed_communication", 20.0, "straggler exposed_communication copies"),
    ],
)
def test_work_and_messages_stand_behind_a_late_rank_that_gains_half_as_much(
    kind: Kind, gain_pct: float, order: str
) -> None:
    gains: dict[Kind, float] = {kind: 30.0, "copies": 18.0, "straggler": gain_pct}
    told = [
        Candidate(Advice(kind=kind, what="", evidence="", todo="", gain_pct=gain), Changes())
        for kind, gain in gains.items()
    ]
    assert [one.advice.kind for one in in_order(told, [], 0, 0, most_once=False)] == order.split()


def test_a_run_of_which_nothing_would_help_says_so(tmp_path: Path) -> None:
    told = AdviceReport(ranks=[0], machine="ideal", replayed_ns=5, path_ns=5, advice=[], notes=[])
    assert advice_table(told, 8)[-1] == "no change was found that would save time"


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces")
def test_of_rocm_nothing_is_to_do_with_tools_of_cuda(tmp_path: Path) -> None:
    recording = TRACES / "rocm" / "mi300_resnet_rank0of8.json.gz"
    folder = graphlink.link(recording, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    told = folder.advice().advice
    todo = {one.kind: one.todo for one in told}
    (copies,) = [one for one in told if one.kind == "copies"]
    assert "pinned" not in copies.todo and ": within a GPU 100.0 %; " in copies.evidence, "all copies are on the GPU"
    assert "rocm-smi" in todo["late_starts"] and not any("nvidia-smi" in text for text in todo.values())
    once = graphlink.link(TRACES / "rocm" / "mi250_minitoy.json.gz", out=tmp_path / "once").advice().advice[0]
    assert "HIP_ENABLE_DEFERRED_LOADING=0" in once.todo and "CUDA" not in once.todo
    other = graphlink.link(TRACES / "other-devices" / "mtia_inference_rank_0.json.gz", out=tmp_path / "other").advice()
    todo = {one.kind: one.todo for one in other.advice}
    assert "the tool of its vendor" in todo["late_starts"] and not any("nvidia-smi" in text for text in todo.values())


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces")
def test_what_multiplies_in_fp8_is_not_told_to(tmp_path: Path) -> None:
    told = graphlink.link(TRACES / "deepseek" / "dualpipe_train.json.gz", out=tmp_path / "out").advice().advice[0]
    assert "multiplies on tensor cores" in told.todo and "fp8 where" not in told.todo


@pytest.mark.parametrize(
    ("pct", "said"),
    [(0.9, ["saves most", "per cent"]), (1.0, ["saves most", "per cent", "do", "  that  # computes that gain"])],
)
def test_of_a_small_gain_the_first_screen_says_no_more_than_what_it_is(pct: float, said: list[str]) -> None:
    small = Advice(
        kind="memory", what="what", evidence="", todo="this", gain_ns=9, gain_pct=0.1, gain_step_pct=pct, command="that"
    )
    told = AdviceReport(ranks=[0], machine="ideal", replayed_ns=9000, path_ns=9000, advice=[small], notes=[])
    _, rows, *commands = first_lines(told, "out")
    assert [*(name for name, _ in rows.rows), *commands] == said  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("high_ns", "said"),
    [
        (9 * 10**6, "90 % band: steps take 6.000 to 9.000 ms on average: saves 10.0 % to 40.0 % of a step"),
        (11 * 10**6, "90 % band: too uncertain to tell from no gain: a second run of 6 steps with this change takes"),
    ],
)
def test_where_the_run_is_uncertain_its_steps_are_told_if_they_are_not(high_ns: int, said: str) -> None:
    run = Span(ns=99 * 10**6, low_ns=80 * 10**6, high_ns=120 * 10**6)
    step = Span(ns=8 * 10**6, low_ns=6 * 10**6, high_ns=high_ns)
    of = Band(level_pct=90, steps=6, unexplained_ns=[0, 0], latency_ns=[0, 0], run=run, step=step)
    gain = Advice(
        kind="copies", what="what", evidence="", todo="this", gain_ns=10**6, gain_pct=1, gain_step_pct=20, band=of
    )
    assert dict(advice_rows(gain, 100 * 10**6))["sure"].startswith(said)


def test_gains_say_of_how_long_a_run_they_are_where_its_path_is_shorter() -> None:
    gain = Advice(kind="copies", what="what", evidence="", todo="this", gain_ns=10**6, gain_pct=10, command="that")
    told = AdviceReport(ranks=[0, 1], machine="coupled", replayed_ns=10**7, path_ns=10**7, advice=[gain], notes=[])
    for whole_ns, basis in ((10**7, "10.000 ms"), (2 * 10**7, "10.000 ms of the run's 20.000")):
        lines = first_lines(msgspec.structs.replace(told, replayed_ns=whole_ns), "out")
        assert lines[1].rows[:2] == [  # type: ignore[union-attr]
            ("saves most", "1.000 ms (10.0 %): what"),
            ("per cent", f"of the critical path, {basis}: the chain of work that decides when the run ends"),
        ]
    head = advice_table(msgspec.structs.replace(told, once="99 % once"), 8)
    assert head[:2] == ["99 % once", ""] and head[2].startswith(  # type: ignore[union-attr]
        "2 ranks together: gains are per cent of the critical path, 10.000 ms. "
    )


def test_the_data_of_a_real_run_come_among_the_first_two(tmp_path: Path) -> None:
    """GPU utilisation of 55.5 % and 59 of 178 ms a step in the DataLoader, as the TensorBoard plugin published. With
    steps as CUDA graphs the GPU would work while the next batch is loaded, which gains more."""
    path = TRACES / "legacy" / "v100_resnet50_2021_operator_steps.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    told = graphlink.link(path, out=tmp_path / "out", options=graphlink.Options(sync="cuda", timeline="none")).advice()
    (data,) = (one for one in told.advice[:2] if one.kind == "data_loading")
    assert data.gain_pct is not None and 30 < data.gain_pct < 36
    assert data.command.endswith("--dataloader-workers 2")
    (launches,) = (one for one in told.advice if one.kind == "launch_bound")
    assert "the host comes sooner to all else" in launches.supposed


@pytest.mark.parametrize(
    ("name", "what", "first"),
    [
        ("cuda-sync/alexnet.json.gz", "cudaDeviceGetStreamPriorityRange in aten::empty_strided", True),
        ("simple-add-a100/kineto_0.json.gz", "cudaDeviceGetStreamPriorityRange in aten::empty", True),
        pytest.param(
            "late-wakeup/v100_resnet50_slow_event_sync.json.gz",
            "cudaLaunchKernel in aten::add",
            False,
            marks=pytest.mark.long,  # as the next, and large
        ),
        ("late-wakeup/mi300_normalization_cold_autograd.json.gz", "hipLaunchKernel in aten::native_batch_norm", False),
    ],
)
def test_what_took_time_once_is_no_work_to_make_faster(tmp_path: Path, name: str, what: str, first: bool) -> None:
    """Starting CUDA takes 20 to 30 s there, and one ``aten::add`` 1.57 s: they come first only where nothing else
    gains a hundredth."""
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    run_ = graphlink.link(path, out=tmp_path / "out", options=graphlink.Options(sync="cuda", timeline="none"))
    told = run_.advice().advice
    (once,) = (one for one in told if one.kind == "once")
    how = "once" if len(run_.summary.ranks[0].steps) > 1 else "in one piece"
    call, op = what.split(" in ")
    assert once.what == f"{what} took long {how}" and once.gain_pct is None
    assert f" ms of {op} in {call}" in once.evidence
    assert ("the code of a kernel is loaded" in once.todo) == ("LaunchKernel" in call) != ("starts" in once.todo)
    assert (told[0] is once) is first
    assert not any(first or op in one.what for one in told if one.kind == "heaviest_work")
    assert run_.summary.ranks[0].top_gain.name != op


def test_what_comes_in_each_step_stands_above_what_came_once(tmp_path: Path) -> None:
    """The first step starts something for 30 ms; an op takes 1 ms in each step."""
    actions: list[Action] = []
    for step in range(5):
        actions += [Begin(f"ProfilerStep#{step}", annotation=True)]
        actions += [Begin("aten::start"), Host(30_000 * US), End()] if step == 0 else []
        actions += [Begin("aten::slow"), Host(1_000 * US), End(), End()]
    path = tmp_path / "kineto_0.json"
    write_kineto(run(Program((Thread("main", tuple(actions)),))), path, dialect="2026")
    run_ = graphlink.link(path, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    heavy, once = run_.advice().advice
    assert (heavy.kind, once.kind) == ("heaviest_work", "once")
    assert heavy.gain_step_pct is not None and heavy.gain_step_pct > 45
    assert once.why_not == "most of this time came once, and not in each step"
    (gain,) = run_.summary.ranks[0].once
    assert (gain.name, gain.count) == ("aten::start", 1) and abs(gain.once_ns - 30_000_000) < 100_000


def test_a_first_step_that_takes_longer_than_all_others_came_once(tmp_path: Path) -> None:
    """None of its calls has most of the time of an op; the same op is heavy in each step."""
    actions: list[Action] = []
    for step in range(5):
        actions += [Begin(f"ProfilerStep#{step}", annotation=True)]
        actions += [Begin("aten::slow"), Host((1_000 + 9_000 * (step == 0)) * US), End()] * 3 + [End()]
    path = tmp_path / "kineto_0.json"
    write_kineto(run(Program((Thread("main", tuple(actions)),))), path, dialect="2026")
    run_ = graphlink.link(path, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    report = run_.advice()
    assert not run_.summary.ranks[0].once
    assert "went into the first step, beyond the 3.0" in report.once
    assert [one.kind for one in report.advice] == ["heaviest_work", "once"]
    assert report.advice[1].what == "the first step took long once"
    assert re.match(r"the first step 27\.\d+ ms more", report.advice[1].evidence)


def test_what_gains_nothing_in_a_step_that_counts_stands_behind_what_came_once() -> None:
    steps: dict[Kind, tuple[float, float | None]] = {
        "heaviest_work": (10, 0),
        "blocking_sync": (20, 0),
        "copies": (1, 8),
        "once": (0, None),
    }

    def told(*, least: float) -> list[str]:
        advice = [
            Candidate(
                Advice(
                    kind=kind,
                    what="",
                    evidence="",
                    todo="",
                    gain_pct=None if step is None else pct,
                    gain_step_pct=None if step is None else max(step, least),
                ),
                None if step is None else Changes(),
            )
            for kind, (pct, step) in steps.items()
        ]
        return [one.advice.kind for one in in_order(advice, [], 100, 0, most_once=False)]

    assert told(least=0) == ["copies", "once", "blocking_sync"]
    assert told(least=1) == ["copies", "heaviest_work", "blocking_sync", "once"]


@pytest.mark.parametrize(("sizes", "factor"), [({"data": 4}, 1.8), ({"data": 2, "tensor": 2}, 1.3)])
def test_a_straggler_that_is_as_quick_as_the_others(tmp_path: Path, sizes: dict[str, int], factor: float) -> None:
    training = ClusterTraining(**{"tensor": 1, "pipeline": 1, **sizes}, straggler=(1, factor))  # type: ignore[arg-type]
    slow, even = (cluster_run(one) for one in (training, replace(training, straggler=None)))
    slow.write(tmp_path / "in")
    options = graphlink.Options(sync="cuda", timeline="none")
    told = graphlink.link(tmp_path / "in", out=tmp_path / "out", options=options).advice()
    (late,) = (one for one in told.advice if one.kind == "straggler")
    ends = [max(one.ended_ns for one in run.times) for run in (slow, even)]
    true_pct = 100 * (ends[0] - ends[1]) / told.replayed_ns
    assert late.gain_pct is not None and abs(late.gain_pct - true_pct) <= 0.5
    assert "kernel work takes" in late.evidence


def test_a_run_of_several_ranks_with_a_straggler_a_pipeline_and_room_in_memory(tmp_path: Path) -> None:
    """What no replay tells has its evidence; ranks that would wait for each other for ever have no gains."""
    figure = Figure(mean=20_000.0, max=30_000.0, samples=4, absent=0)
    gpu = GpuLog(
        host="a", gpu=0, name="H100", samples=4, from_time=None, to_time=None, utilisation_percent=None, memory_used_mib=figure,
        memory_total_mib=81_920.0, power_w=None, temperature_c=None,
    )  # fmt: skip
    smi = SmiLog(
        path="smi.csv",
        form="csv",
        told_apart=True,
        gpus=[gpu, msgspec.structs.replace(gpu, memory_used_mib=None)],
        unread={},
    )
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    late = Straggler(
        rank=1, times_late=3, meetings=4, wait_share=0.9, lateness_median_ns=7, chance=0.5, evidence="last in 3 of 4"
    )
    together = msgspec.json.decode(
        b'{"world_size": 2, "ranks": 2, "groups": [], "matched": {"collectives": 4, "messages": 0, "complete": 4, '
        b'"by_sequence": 0,'
        b' "alone": {},'
        b' "unmatched": 0, "listed": [], "conflicts": []}, "clocks": {"residual_ns": 0, "ranks": []}, "waits": [], '
        b'"set_apart": [],'
        b' "straggler": null}',
        type=RunSummary,
    )
    pipeline = Pipeline(
        stages=2, microbatches=4, chunks=1, schedule="1F1B", causes_ns={"warmup": 3_000_000, "cooldown": 1_000_000}
    )
    whole = msgspec.structs.replace(
        one,
        run=msgspec.structs.replace(together, straggler=late),
        pipeline=pipeline,
        logs=Logs(nvidia_smi=[smi], megatron=[]),
    )
    work = workload({rank: read_et(tmp_path / "out" / "trace.0.et") for rank in (0, 1)})
    told = advised(Outputs(whole, (0, 1), work, {}), {1: [0, 1, 2]}, "out", whole=True)[0]
    why = {a.kind: a for a in told.advice if a.gain_ns is None}
    assert why["straggler"].evidence.startswith("last in 3 of 4") and "--rank 1" in why["straggler"].todo
    assert why["pipeline_bubble"].evidence == (
        "4.000 ms on 2 ranks together: its first microbatch had not come (warmup) 75.0 %, its last microbatch was done "
        "(cooldown) 25.0 %"
    )
    assert why["memory"].evidence == "at most 30,000 of 81,920 MiB were in use (nvidia-smi)"
    assert told.machine == "coupled"
    nothing = msgspec.structs.replace(smi, gpus=[])
    without = msgspec.structs.replace(whole, logs=Logs(nvidia_smi=[nothing], megatron=[]))
    assert "memory" not in {
        a.kind for a in advised(Outputs(without, (0, 1), work, {}), {}, "out", whole=True)[0].advice
    }


@pytest.mark.parametrize(
    ("parts", "todo", "why_not"),
    [
        ((9, 1, 0, 2), "more microbatches, another schedule", "another schedule is another program"),
        (
            (1, 9, 0, 2),
            "equal stages: move layers from the stages that others wait for to others",
            "another schedule could save only its own part, 8.3 %",
        ),
        ((1, 2, 9, 0), "begin to send and to receive earlier", "its own part, 8.3 %"),
        ((1, 0, 1, 10), "make the stages that others wait for quicker", "its own part, 8.3 %"),
        ((1, 0, 1, 10), "cores of its own for the stages that others wait for", "its own part, 8.3 %"),  # no GPU
    ],
)
def test_a_schedule_is_advised_where_theory_says_that_it_loses_most(
    tmp_path: Path, parts: tuple[int, ...], todo: str, why_not: str
) -> None:
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    parts_ns = PartsNs(**dict(zip(PartsNs.__struct_fields__, (*parts, sum(parts)), strict=True)))
    theory = Theory(parts_ns=parts_ns)
    causes = {"warmup": 8, "dependency_stall": 3, "unknown": 1}
    if todo.startswith("cores"):
        one, causes = msgspec.structs.replace(one, ranks=[]), {"launch_starved": 8, "dependency_stall": 4}
    pipeline = Pipeline(stages=4, microbatches=8, chunks=2, schedule="interleaved-ZB", causes_ns=causes, theory=theory)
    files = {0: read_et(tmp_path / "out" / "trace.0.et")}
    run = Outputs(msgspec.structs.replace(one, pipeline=pipeline), (0,), workload(files), {})
    (told,) = [each.advice for each in stages(run)]
    assert told.todo.startswith(todo) and why_not in told.why_not
    assert re.search(r"on 4 ranks together: .* \((warmup|launch_starved)\) 66.7 %", told.evidence)


@pytest.mark.parametrize(
    ("part", "stage", "cause", "why"),
    [
        (
            "rest",
            1,
            "launch_starved",
            "launch_starved 0.000, exposed_communication 0.000), the others for 0.000, 0.000 ms of the difference",
        ),
        ("schedule", 1, "schedule", "waited for no other stage"),
        ("imbalance", 2, "imbalance", "was at work for"),
        ("communication", 0, "communication", "exchanged messages for"),
    ],
)
def test_the_stage_that_others_wait_for_is_busy_by_itself_longest(part: str, stage: int, cause: str, why: str) -> None:
    rows = {0: (30, 5, 9, 50), 1: (30, 50, 1, 9), 2: (45, 4, 1, 60)}  # works, launches late, sends, waits for others
    entries = [
        StageEntry(
            rank=rank, stage=rank, makespan_ns=99, work_ns=work, optimizer_ns=0,
            idle_ns={"launch_starved": late, "exposed_communication": sends, "dependency_stall": waits},
        )
        for rank, (work, late, sends, waits) in rows.items()
    ]  # fmt: skip
    _, words, shows, told = _slowest(SimpleNamespace(stages=entries, ranges=[]), part)
    assert (words["stage"], words["least"], told) == (f"stage {stage} (rank {stage})", "stage 0 (rank 0)", cause)
    assert why in shows


def test_what_to_do_about_copies_follows_what_is_copied(tmp_path: Path) -> None:
    """By the time in which nothing hides them, and not by how many there are, nor by how long they take."""
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    for name, words in (
        ("Memcpy HtoD (Pageable -> Device)", "copy the next batch early, while this step computes: pin_memory=True"),
        (
            "Memcpy DtoH (Device -> Pageable)",
            "copy into pinned memory with non_blocking=True, go on, and read it later",
        ),
        ("Memcpy DtoH (Device -> Pinned)", "begin copies of pinned memory earlier"),
        ("Memcpy DtoD (Device -> Device)", "contiguous(), clone(), cat"),
        ("CopyDeviceToDevice", "contiguous(), clone(), cat"),
        ("Memcpy PtoP (Device -> Device)", "between GPUs"),
        ("Memcpy HtoD (Host -> Device)", "if that is not so yet"),
    ):
        hidden = "Memcpy HtoD (Pinned -> Device)" if "Pinned" not in name else "Memcpy DtoD (Device -> Device)"
        nodes = [
            N(0, name="7", start_us=0),
            N(1, GPU, us=90, name=GEMM, start_us=10, lane=7),
            N(2, GPU, us=80, name=hidden, start_us=15, lane=8),
            N(3, GPU, us=10, name=name, start_us=200, lane=8),
            N(4, GPU, us=90, name="Memset (Device)", start_us=300, lane=8),
        ]
        (told,) = [
            each.advice for each in candidates(Outputs(one, (0,), hand(nodes), {})) if each.advice.kind == "copies"
        ]
        assert words in told.todo
        assert " 100.0 %; 2 pieces, half of their time in those of 80.0 us and more" in told.evidence
    for name, call_us, words in (
        ("Pinned", 1, " of other work could run"),
        ("Host", 1, ", which is quicker"),
        ("Pinned", 21, "fewer and larger pieces: most of that time is of copies that take less than a launch"),
    ):
        nodes = [N(0, us=call_us, name="7"), N(1, GPU, us=9, name=GEMM, start_us=10, lane=7)]
        copy = f"Memcpy HtoD ({name} -> Device)"
        nodes += [N(2, GPU, us=20, deps=((0, EdgeKind.LAUNCH),), name=copy, start_us=30, lane=8)]
        (longer,) = [
            each.advice for each in candidates(Outputs(one, (0,), hand(nodes), {})) if each.advice.kind == "copies"
        ]
        assert longer.todo.startswith("copy less: keep on the GPU") and longer.todo.endswith(words), longer.todo
        assert "only 0.009 ms" in longer.todo, "there is less to hide them behind than they take"
    bare = hand([N(0, name="7"), N(1, GPU, us=90, name="Memset (Device)", start_us=10)])
    assert "copies" not in {each.advice.kind for each in candidates(Outputs(one, (0,), bare, {}))}


def test_copies_that_are_recorded_without_length_have_no_rate() -> None:
    copies = [
        (f"Memcpy {how}", ns) for how in ("DtoD (Device -> Device)", "HtoD (Pinned -> Device)") for ns in (0, 500)
    ]
    kernels = [(None, SimpleNamespace(whole_name=name, ns=ns, bytes=4_000)) for name, ns in copies[:3]]
    assert _rates(SimpleNamespace(kernels=kernels)) == "; 8.0 GB/s within a GPU"


@pytest.mark.parametrize("each_step", [True, False])
def test_what_is_copied_before_the_first_kernel_comes_once(each_step: bool, tmp_path: Path) -> None:
    """Weights, whatever waits for them: no change of the steps saves it. Copied again in each step, they have a gain."""
    upload: list[Action] = []
    for _ in range(4):
        copy = Work("Memcpy HtoD (Pageable -> Device)", 500 * US, "gpu_memcpy", size_bytes=4_000_000)
        call = Call(Api.LAUNCH, "cudaMemcpyAsync", 4 * US, stream=7, work=(copy,), blocking=True, return_ns=US)
        upload += [Begin("aten::copy_", ns=8 * US), call, End()]
    actions: list[Action] = [] if each_step else [*upload]
    for step in range(5):
        actions += [Begin(f"ProfilerStep#{step}", annotation=True), *upload] if each_step else []
        for _ in range(4):
            actions += op("aten::mm", Work(GEMM, 100 * US), 8)
        actions += [End()] if each_step else []
    told = report(Program((Thread("main", tuple(actions)),)), tmp_path).advice
    copies = [one for one in told if one.kind in ("copies", "blocking_sync")]
    if each_step:
        assert all(one.gain_pct is not None for one in copies) and copies[0].gain_pct > 10  # type: ignore[operator]
        assert copies[0].evidence.endswith("; 8.0 GB/s from pageable memory"), copies
    else:
        (once,) = copies
        assert once.gain_pct is None and once.why_not.endswith("comes once") and "each step" not in once.todo


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces")
def test_waits_for_weights_that_are_copied_once_are_no_advice(tmp_path: Path) -> None:
    recording = TRACES / "cuda-sync" / "alexnet.json.gz"
    told = graphlink.link(recording, out=tmp_path / "out", options=graphlink.Options(timeline="none")).advice().advice
    (copies,) = [one for one in told if one.kind == "copies"]
    assert copies.gain_pct is None and "16 pieces" in copies.evidence


def test_copies_that_an_op_waits_for_are_one_cause_with_its_waits(tmp_path: Path) -> None:
    """A checkpoint of 2 ms each step: what waits for it gains more. A value that is read takes less than a launch."""
    (tmp_path / "item").mkdir()
    took = {"checkpoint": 2_000, "item": 2}
    for name, us in took.items():
        actions: list[Action] = []
        for step in range(5):
            actions += [Begin(f"ProfilerStep#{step}", annotation=True)]
            for _ in range(4):
                actions += op("aten::mm", Work(GEMM, 100 * US), 8)
            copy = Work("Memcpy DtoH (Device -> Pageable)", us * US, "gpu_memcpy", size_bytes=4096)
            call = Call(Api.LAUNCH, "cudaMemcpyAsync", 4 * US, stream=7, work=(copy,), blocking=True, return_ns=US)
            batch = Work("Memcpy HtoD (Pinned -> Device)", 30 * US, "gpu_memcpy", size_bytes=4096)
            actions += [*op("aten::to", batch, 8), Begin("aten::copy_", ns=8 * US), call, End(), Host(50 * US), End()]
        (tmp_path / name).mkdir(exist_ok=True)
        told = report(Program((Thread("main", tuple(actions)),)), tmp_path / name).advice
        kinds = [one.kind for one in told if one.kind in ("copies", "blocking_sync") and (one.most_pct or 0) > 1]
        wait = next(one for one in told if one.kind in ("copies", "blocking_sync"))
        assert kinds.count("copies") + kinds.count("blocking_sync") == (1 if name == "checkpoint" else 2), kinds
        assert ("copy into pinned memory" in wait.todo) == (name == "checkpoint")


def test_a_gain_beyond_idle_time_says_what_it_takes(tmp_path: Path) -> None:
    """A copy of 1 ms on another stream that the host waits for: without the wait kernels run beside it."""
    actions: list[Action] = []
    for step in range(5):
        actions += [Begin(f"ProfilerStep#{step}", annotation=True)]
        copy = Work("Memcpy HtoD (Pinned -> Device)", 1_000 * US, "gpu_memcpy", size_bytes=4096)
        wait = Call(Api.STREAM_SYNC, "cudaStreamSynchronize", 2 * US, stream=20, blocking=True, return_ns=US)
        actions += [*op("aten::copy_", copy, 8, 20), Begin(SYNC), wait, End()]
        actions += [*op("aten::mm", Work(GEMM, 1_000 * US), 8), Begin(SYNC), replace(wait, stream=7), End(), End()]
    told = report(Program((Thread("main", tuple(actions)),)), tmp_path).advice
    (sync,) = (one for one in told if one.kind == "blocking_sync")
    assert sync.gain_pct is not None and sync.gain_pct > 30
    assert re.search(r"; more than the 0\.\d+ ms in which no op ran .*: copies and communication that", sync.supposed)


@pytest.mark.parametrize(
    ("callers", "of_gradients"),
    [
        (("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",), True),
        (("CompiledFunctionBackward",), True),  # all that a compiled graph does is in it
        (("autograd::engine::evaluate_function: LinearBackward", "LinearBackward"), False),
        (("_Reduce",), False),
        (("evaluate",), True),
    ],
)
def test_buckets_are_for_gradients_and_not_for_what_ops_of_the_model_exchange(
    tmp_path: Path, callers: tuple[str, ...], of_gradients: bool
) -> None:
    """Which nobody waits for before the last of a step; and the op ``_Reduce`` has a backward."""
    actions: list[Action] = []
    for step in range(3):
        actions += [Begin(f"ProfilerStep#{step}", annotation=True), Begin("_ReduceBackward"), Host(5 * US), End()]
        for k in range(8):
            of = CommArgs("allreduce", in_nelems=9_000 * (k + 1), out_nelems=9_000 * (k + 1), group="0", seq=k + 1)
            actions += [*(Begin(name, ns=2 * US) for name in callers), Begin("c10d::allreduce_", ns=9 * US)]
            actions += [Begin("record_param_comms", comm=of)]
            work = Work(NCCL, (9 + 4 * k) * US, comm=of)
            actions += [Call(Api.LAUNCH, "cudaLaunchKernel", 4 * US, stream=20, work=(work,)), End(), End()]
            actions += [End() for _ in callers]
        actions += [Call(Api.DEVICE_SYNC, "cudaDeviceSynchronize", 2 * US, blocking=True, return_ns=US), End()]
    groups = (Group("0", "default_pg", (0, 1)),)
    report(Program((Thread("main", tuple(actions)),), groups, rank=0, world_size=2), tmp_path)
    out = tmp_path / "out"
    made = Outputs(graphlink.open(out).summary, (0,), workload(load(graph_files(out))), {})
    joined, (hidden,) = [*buckets(made)], exposed(made)
    assert bool(joined) is of_gradients
    assert all("larger buckets of gradients" in one.advice.todo for one in joined)
    assert ("layers need these results at once" in hidden.advice.todo) is not of_gradients
    assert hidden.advice.todo.startswith("record the other ranks, too")
    assert all("; 1 of 2 ranks is linked" in one.advice.evidence for one in (hidden, *joined))
    whole = replace(made, summary=msgspec.structs.replace(made.summary, ranks=2 * made.summary.ranks))
    (hidden,) = exposed(whole)
    assert "record" not in hidden.advice.todo and "linked" not in hidden.advice.evidence


@pytest.mark.parametrize(
    ("waits", "how", "copied"),
    [
        ("Memcpy DtoD (Device -> Device)", EdgeKind.EVENT, True),
        ("Memcpy DtoD (Device -> Device)", EdgeKind.STREAM, False),  # the order of a stream says nothing of results
        (GEMM, EdgeKind.EVENT, False),
    ],
)
def test_collectives_whose_results_are_copied_alone_could_be_joined(waits: str, how: EdgeKind, copied: bool) -> None:
    nodes = [N(0, name="7"), N(1, COLL, deps=((0, EdgeKind.LAUNCH),)), N(2, GPU, 5, ((1, how),), waits)]
    assert _only_copied(hand(nodes), np.array([False, True, False])) is copied


def test_a_wait_for_a_collective_is_no_gain_and_stands_behind_the_rank_that_comes_last(tmp_path: Path) -> None:
    """DDP calls its collectives without waiting: what ends the wait sooner is a rank 3 as quick as the others."""
    ddp = DEMO.parent / "real" / "ddp"
    told = graphlink.link(ddp, out=tmp_path / "out", options=graphlink.Options(timeline="none")).advice()
    (wait,) = [one for one in told.advice if one.kind == "blocking_sync"]
    assert wait.what == "gloo:all_reduce makes the host wait for other ranks"
    assert wait.evidence.startswith("24 waits in Python between ops, ")  # 3 did not block
    assert wait.gain_ns is None and wait.code == "" and "only the rank that comes last" in wait.why_not
    late = told.advice[0]
    assert late.kind == "straggler" and late.command.endswith("--scale rank3:host=0.7227")
    assert "rank 3 arrived last in 4 of 6 collectives" in late.evidence
    assert "; aten::mm takes 101.228 ms there, 57.844 on the others" in late.evidence
    assert late.todo.startswith("free cores for rank 3")


@pytest.mark.parametrize(
    ("to_us", "said", "do"),
    [
        (500, "0.580 ms in all, 0.500 ms of it for Memcpy HtoD", "make what is copied on the GPU"),
        (20, "0.100 ms in all, 0.080 ms of it for Memcpy DtoH", "copy into pinned memory"),
        (0, "0.080 ms, all for Memcpy DtoH", "copy into pinned memory"),
    ],
)
def test_waits_of_an_op_are_told_by_what_most_of_their_time_is_for(
    tmp_path: Path, to_us: int, said: str, do: str
) -> None:
    """One copy to the GPU and two back from it, 40 us each: not by how many there are."""
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    back = "Memcpy DtoH (Device -> Pageable)"
    nodes, last, at_us = [N(0, name="aten::copy_")], 0, 0
    for name, us in (("Memcpy HtoD (Pageable -> Device)", to_us), (back, 40), (back, 40)):
        copy, rest = len(nodes), len(nodes) + 1
        waits = ((last, EdgeKind.HOST), (copy, EdgeKind.SYNC))
        nodes.append(N(copy, GPU, us, ((last, EdgeKind.LAUNCH),), name, start_us=at_us + 1))
        nodes.append(
            N(rest, deps=waits, name="aten::copy_ (cont.)", start_us=at_us + us + 1, calls=("cudaMemcpyAsync",))
        )
        last, at_us = rest, at_us + us + 1
    (told,) = [
        each.advice for each in candidates(Outputs(one, (0,), hand(nodes), {})) if each.advice.kind == "blocking_sync"
    ]
    assert told.evidence.startswith(f"3 waits (cudaMemcpyAsync), {said}")
    assert told.todo.startswith(do) and "non_blocking=True" in told.todo


@pytest.mark.parametrize(
    ("op", "calls", "do", "code"),
    [
        ("op", ("cudaDeviceSynchronize",), "no torch.cuda.synchronize() in the step", "event = torch.cuda.Event"),
        ("op", ("cudaStreamSynchronize",), "no .cpu(), print or .item()", None),
        ("aten::item", ("cudaStreamSynchronize",), "no .item() of device tensors", "losses.append(loss.detach())"),
        ("aten::is_nonzero", ("cudaStreamSynchronize",), "no `if` or `while`", "y = torch.where(mask"),
        ("aten::masked_select", ("cudaStreamSynchronize",), "no nonzero, masked_select", "y = torch.where(mask"),
        ("op", (), "ask for what it waits for later", None),
    ],
)
def test_what_to_do_about_a_wait_follows_the_op_and_the_call_that_wait(
    tmp_path: Path, op: str, calls: tuple[str, ...], do: str, code: str | None
) -> None:
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    nodes = [N(0, name=op), N(1, GPU, 40, ((0, EdgeKind.LAUNCH),), GEMM, start_us=1)]
    nodes.append(N(2, deps=((0, EdgeKind.HOST), (1, EdgeKind.SYNC)), name=f"{op} (cont.)", start_us=41, calls=calls))
    told = [
        each.advice for each in candidates(Outputs(one, (0,), hand(nodes), {})) if each.advice.kind == "blocking_sync"
    ]
    assert [each.todo.startswith(do) for each in told] == [True]
    assert line_for(told[0].todo).startswith(code or "") and (code is not None or not line_for(told[0].todo))


def test_a_receive_of_a_pipeline_is_no_bound_but_says_whose_message_it_waits_for(tmp_path: Path) -> None:
    pipeline = DEMO.parent / "real" / "pipeline"
    told = graphlink.link(pipeline, out=tmp_path / "out", options=graphlink.Options(timeline="none")).advice().advice
    (wait,) = [one for one in told if one.kind == "blocking_sync"]
    assert wait.gain_ns is None and "only the rank that sends can end the wait sooner" in wait.why_not
    assert re.search(r", [\d.]+ ms for what rank 1 sends$", wait.evidence)
    (messages,) = [one for one in told if one.kind == "exposed_communication"]
    assert "isend" in messages.todo and "buckets" not in messages.todo


def test_kernels_without_tensor_cores_are_part_of_what_the_operations_say(tmp_path: Path) -> None:
    made = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none"))
    of = read_operations(tmp_path / "out" / "ops.0.json").tensor_cores
    (one,) = [one for one in made.advice().advice if one.kind == "tensor_cores"]
    unused_ms = (of.eligible_ns - of.eligible_used_ns - of.eligible_unknown_ns) / 1e6
    multiplies_ms, others_ms = (float(text) for text in re.findall(r"([\d.]+) ms", one.evidence)[:2])
    assert multiplies_ms == 0.247 and multiplies_ms + others_ms == pytest.approx(unused_ms, abs=0.001)


@pytest.mark.parametrize("inside", [True, False])
def test_products_without_tensor_cores_are_one_advice_though_their_op_is_not_recorded(
    inside: bool, tmp_path: Path
) -> None:
    launch = Call(Api.LAUNCH, "cudaLaunchKernel", 4 * US, stream=7, work=(Work("ampere_sgemm_128x64_nn", 300 * US),))
    alone: list[Action] = [Begin("aten::mm", ns=8 * US), launch, End()] if inside else [launch]
    one = [action for _ in range(6) for action in (*alone, *op("aten::mm", Work("ampere_sgemm_64x64_tn", 90 * US), 8))]
    told = report(Program((Thread("main", tuple(one)),)), tmp_path).advice
    named = [one for one in told if "torch.autocast" in one.todo]
    assert [one.kind for one in named] == ["tensor_cores"] and "take 2.340 ms" in named[0].evidence, named


def test_a_recording_of_the_host_alone_has_no_advice_about_launches(tmp_path: Path) -> None:
    one = Program((Thread("main", (Begin("aten::mm"), Host(20 * US), End(), Begin("aten::add"), Host(US), End())),))
    assert not {a.kind for a in report(one, tmp_path).advice} & {
        "launch_bound",
        "blocking_sync",
        "tensor_cores",
        "small_kernels",
    }


def test_ranks_that_wait_for_ever_and_waits_of_two_ranks_have_no_gain(tmp_path: Path) -> None:
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    mine = [
        N(0, name="7"),
        N(1, GPU, deps=((0, EdgeKind.LAUNCH),), name="Memcpy HtoD"),
        N(2, COLL, deps=((1, EdgeKind.STREAM),)),
    ]
    mine.append(N(3, name="7 (cont.)", deps=((0, EdgeKind.HOST), (1, EdgeKind.SYNC))))
    stuck = hand(mine, mine[:2])
    told = {a.kind: a for a in advised(Outputs(one, (0, 1), stuck, {}), {}, "out", whole=False)[0].advice}
    assert told["copies"].why_not.startswith("ranks wait for each other for ever") and told["copies"].gain_pct is None
    told = {a.kind: a for a in advised(Outputs(one, (0, 1), hand(mine, mine), {}), {}, "out", whole=False)[0].advice}
    assert told["blocking_sync"].gain_ns is None and "7" in told["blocking_sync"].why_not
    assert told["copies"].command == "graphlink replay out --rank 0 --rank 1 --scale copy=0"


def test_an_advice_is_replayed_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = report(program(load=200, gemm=30, add=20), tmp_path)
    out = str(tmp_path / "out")
    for k, one in enumerate(told.advice, 1):
        status = main(["replay", out, "--advice", str(k), "--json", "-"])
        printed = capsys.readouterr()
        if one.gain_pct is None:
            assert status == 2 and f"--advice {k} ({one.what}) has no gain: " in printed.err
        else:
            (what_if,) = msgspec.json.decode(printed.out.encode())["what_if"]
            assert (status, what_if["gain_pct"]) == (0, one.gain_pct)
        assert len(one.command) <= len(f"graphlink replay {out} ") + 80
    assert any(one.command.endswith(f"--advice {k}") for k, one in enumerate(told.advice, 1))
    assert main(["replay", out, "--advice", "99"]) == 2
    assert f"--advice 99: there are {len(told.advice)}" in capsys.readouterr().err
    assert main(["replay", out, "--advice", "1", "--list"]) == 2


@pytest.mark.parametrize(
    ("capability", "of_that"), [((7, 0), True), ((7, 5), True), ((9, 0), False), ((8, 6), False), (UNSET, False)]
)
def test_before_ampere_no_bf16_is_advised(tmp_path: Path, capability: Any, *, of_that: bool) -> None:
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    rank = msgspec.structs.replace(
        one.ranks[0], machine=Machine(host="", gpus=[], capability=capability, system=System())
    )
    told = Outputs(msgspec.structs.replace(one, ranks=[rank]), (0,), hand([N(0)]), {}).tools
    assert (told is BEFORE_AMPERE) is of_that


@pytest.mark.parametrize(
    ("kernel", "caller", "do"),
    [
        (NCCL, "LinearBackward", "overlap it: other gradient buckets, other parallel sizes"),
        (NCCL, "forward", "overlap it: let other work run meanwhile, other parallel sizes"),
        ("ncclDevKernel_AllGather_RING_LL", "forward", "overlap it: prefetch of shards, other parallel sizes"),
        ("nccl:all_to_all", "LinearBackward", "overlap it: let other work run meanwhile, other parallel sizes"),
    ],
)
def test_how_to_hide_communication_follows_from_its_sort(tmp_path: Path, kernel: str, caller: str, do: str) -> None:
    """Gradients are only where there is a backward pass."""
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    nodes = [N(0, name=caller), N(1, name="aten::mm"), N(2, COLL, us=90, name=kernel, start_us=9, lane=7)]
    (told,) = exposed(Outputs(one, (0,), hand(nodes), {}))
    assert f"then {do};" in told.advice.todo  # DEMO is one rank of two


@pytest.mark.parametrize("conv", ["aten::conv2d", "aten::mm"])
@pytest.mark.parametrize(
    "kernel", ["triton_poi_fused_add_0", "void elementwise_kernel<4>", "multi_tensor_apply_kernel<4>"]
)
def test_what_is_done_already_or_does_not_fit_is_not_advised(tmp_path: Path, conv: str, kernel: str) -> None:
    """Compiled code, optimizers of many tensors at once, and layouts of convolutions where there are none."""
    rows, kernels = list[tuple[str, str, float, float, int]](), []
    for k in range(12):
        at_us = 100.0 * k
        for name in (conv, "aten::contiguous", "Optimizer.step#SGD.step")[k % 3 : k % 3 + 1]:
            rows += [("user_annotation" if "#" in name else "cpu_op", name, at_us, 60, 0)]
        rows += [("cuda_runtime", "cudaLaunchKernel", at_us + 5, 5, k + 1)]
        kernels += [(kernel, at_us + 20 + 900 * k, k + 1)]
    told = of_rows(tmp_path, *rows, kernels=tuple(kernels), kernel_us=900).advice
    made = Outputs(graphlink.open(tmp_path / "out").summary, (0,), workload(load(graph_files(tmp_path / "out"))), {})
    todo = "\n".join([*(one.todo for one in told), *(one.advice.todo for one in optimizers(made))])
    assert ("memory_format=torch.channels_last for convolutions" in todo) == (conv == "aten::conv2d")
    assert ("foreach=True" in todo) == ("multi_tensor" not in kernel)
    assert any(one.code == "model = torch.compile(model)" for one in told) == ("triton" not in kernel)


def test_the_same_work_of_many_ranks_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look goes over all nodes of all ranks."""
    one = graphlink.link(DEMO, out=tmp_path / "out", options=graphlink.Options(timeline="none")).summary
    many = msgspec.structs.replace(
        one, ranks=[msgspec.structs.replace(one.ranks[0], rank=number) for number in range(5)]
    )
    files, asked = dict.fromkeys(range(5), graph_files(tmp_path / "out")[0]), list[str]()
    monkeypatch.setattr(heaviest_work, "_advised", lambda run, name: bool(asked.append(name)))
    made = Outputs(many, tuple(range(5)), workload(load(files)), {})
    next(heaviest_work.heaviest(made))
    assert len(asked) == 1
