"""All that a recording can lack, what that costs in the graph, and what would record it: all findings of the doctor, by
name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from graphlink.depend.hostcomm import WAIT_RANGE

# What a finding costs, the worst first: nodes, edges or figures are missing, or the graph is not made at all; they are
# there, but guessed from something else; nothing of the graph, but time, room, or what only other outputs need.
Level = Literal["lost", "inferred", "note"]


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that a recording can lack.

    ``lacks`` and ``costs`` are texts with figures in braces; a clause of ``costs`` ends with ";". ``record`` is the
    option, variable or code line that would record it; ``by_capture``: ``graphlink.capture`` does so.
    """

    name: str
    level: Level
    lacks: str
    costs: str
    record: str
    by_capture: bool = False


_ACTIVITIES: Final = "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]); with nsys --trace=cuda,nvtx"
_DEVICE_SIDE: Final = (
    "the device's side: CUPTI (or roctracer) found, allowed to (NVreg_RestrictProfilingToAdminUsers=0) and used by no "
    "other profiler; "
    "fewer steps, if buffers were dropped"
)
_COST: Final = (
    "{inferred:wait} in the graph, inferred from when things ended; {explained} of {calls:synchronisation call} "
    "explained so; {unexplained:call} blocked {unexplained_ms} ms for something unknown; {waits:event wait}, seen by "
    "the order of calls around communication, else only where an op started late"
)
_OBSERVER: Final = "profile(..., execution_trace_observer=ExecutionTraceObserver().register_callback('et_0.json'))"
_BOTH: Final = "the execution trace and the Kineto trace of one profile(): " + _OBSERVER
_EXPORT: Final = "nsys export --type sqlite --include-blobs=true REPORT.nsys-rep"
_TOGETHER: Final = "torch.distributed.barrier() on all ranks before the profiler starts, and the same schedule on each"
POOLS: Final = (
    "GROUP_API", "COLL_API", "P2P_API", "KERNEL_LAUNCH", "GROUP", "COLL", "P2P", "PROXY_CTRL", "PROXY_DETACH",
    "CE_COLL", "CE_SYNC",
    "CE_BATCH",
)  # fmt: skip
ENOUGH: Final = 100_000  # events of a kind, that hold some steps of any run
ENOUGH_RINGS: Final = " ".join(f"NCCL_PROFILE_{pool}_POOL_SIZE={ENOUGH}" for pool in POOLS)
WANTED_MASK: Final = 95  # group, collective, P2P, proxy op, proxy step, kernel channel
_MASK: Final = f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}"
LOOK: Final = (
    "look with {} whether another process uses the GPU, and record without it (graphlink idle OUT shows where)"
)
INSPECTOR_BYTES: Final = 8192  # messages below are left out by default

# fmt: off
_ALL: Final = (
    # Rows, ids and times of a device recording, of Kineto and nsys alike
    Kind("empty-recording", "lost", "no host op and no device op", "there is no graph", _ACTIVITIES, by_capture=True),
    Kind("no-host-rows", "lost", "no host ops: {calls} API calls and {ops} device ops stand alone",
         "host time is gaps between calls; no op names, no edges between threads, and a wait ends at the next call",
         "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])", by_capture=True),
    Kind("no-device-rows", "lost", "no device ops, though {calls} API calls were recorded",
         "no launch, stream, event or sync edge; what the device did is host "
         "time", _ACTIVITIES + "; if it was on, " + _DEVICE_SIDE,
         by_capture=True),
    Kind("host-only", "note", "no device ops and no API calls: {rows} host ops",
         "the graph holds the host alone, which is right for a run on the CPU",
         "nothing, if it ran on the CPU; of a run on a GPU: " + _ACTIVITIES),
    Kind("launches-without-ops", "lost", "{calls:launch call} without a device op",
         "what they launched is not in the graph: device time is missing, and waits for it stay host time; right for "
         "calls captured into "
         "a graph, and at the end of a cut recording", _DEVICE_SIDE),
    Kind("no-calls", "lost", "no API calls: {ops} device ops without a "
                             "launch", "no launch and no sync edge: host and device are not tied",
         _ACTIVITIES, by_capture=True),
    Kind("launches-before-window", "lost", "{orphans} of {ops} device ops were launched before the recording",
         "they have no launch edge and no caller, only the order of their streams; collectives among them lose their "
         "parameters",
         "torch.cuda.synchronize() and a barrier before the first recorded step", by_capture=True),
    Kind("launches-missing", "lost", "the launch calls of {orphans} of {ops} device ops are not there",
         "they have no launch edge and no caller, only the order of their streams",
         "the file as the profiler wrote it, not cut or filtered; fewer steps, if the profiler dropped buffers"),
    Kind("starts-before-launch", "lost", "{orphans} of {ops} device ops start before their launch call",
         "their launch edges would be against time and are left out",
         "record again after a step of warm-up (schedule(warmup=1)): the clocks of host and device "
         "differ", by_capture=True),
    Kind("clock-unknown", "inferred", "nothing shows how far the clock of a device is off, and {calls} calls waited",
         "its rows stay where they can be, and a call may have waited for something else than the graph says",
         "a recording with 5 launches on an idle stream, or a wait for the device of 20 us: a step more"),
    Kind("integer-us", "inferred", "times are rounded to microseconds: {zero} of {rows} rows have no length",
         "order inside a microsecond is a guess, and 1 us of slack is given to each edge",
         "a PyTorch of mid 2024 or newer (its traces have baseTimeNanoseconds)"),
    Kind("broken-rows", "lost", "{rows} rows are damaged", "they are left out or corrected, as the warning says",
         "the file as the profiler wrote it; record again"),
    Kind("unknown-device-rows", "lost",
         "{rows} rows of a device are of a category that is not known, and do not say on which stream or device they "
         "ran",
         "they are left out: device time is missing, and waits for it stay host time",
         "with each row of the device args.device and args.stream, or a process labelled as a device (process_labels) "
         "and a thread a "
         "stream"),
    Kind("repeated-calls", "inferred", "{rows:API call} with the correlation id of an earlier one",
         "device ops go to the one that flow or External id tells, else to the last that began before",
         "one recording a file: several were joined in this one"),
    Kind("calls-without-id", "inferred", "{rows} device ops have no correlation id of a call of their own",
         "flows, the External id and order tell their calls; what they do not tell has no launch edge",
         "a newer PyTorch (of ROCm: 2.6 and newer), and the file as the profiler wrote it"),
    Kind("syncs-without-id", "inferred", "{rows:cuda_sync row} without a correlation id that a call has",
         "each is of the one synchronisation call that lasted around it",
         "the file as the profiler wrote it"),
    Kind("calls-contradicted", "inferred", "{rows} device ops have a correlation id that flows, External id or order "
                                           "contradict",
         "they go to the call that flow and External id agree on, else to that of the correlation id, whose launch "
         "edge may be wrong",
         "the file as the profiler wrote it; record again"),
    Kind("rows-twice", "inferred", "{rows:row} there twice", "they count once",
         "the file as the profiler wrote it: parts of it were joined twice"),
    Kind("merged-ranks", "inferred", "the recordings of {rows} ranks are merged into one file",
         "marks of processes, else the order in the file, say which rows are of one rank; its host and number "
         "are not told",
         "the file of each rank as the profiler wrote it"),
    Kind("calls-twice", "inferred", "{rows} API calls are recorded twice, one inside the other",
         "the outer one counts", "nsys profile --trace=cuda without a second layer (--cuda-trace-all-apis=false)"),
    Kind("ends-overrun", "inferred",
         "{rows} device ops are recorded as running on behind others of their stream, or behind a wait for them",
         "they are taken to end where the next begins, or the wait was over: what they took is the most that it can "
         "have been",
         "record again: the profiler took a wrong end"),
    Kind("ends-late", "inferred", "{rows} ops end after the op that they began in",
         "that one is taken to last as long: its own time may be less",
         "the file as the profiler wrote it; record again"),
    Kind("ends-beyond", "inferred", "{rows:host row} recorded as running on after all else",
         "they are taken to end where the next row of their thread begins: what is inside them may be outside",
         "record again: the profiler took a wrong end"),
    Kind("steps-overlap", "inferred", "{rows} marks of steps run into the next one",
         "they end where it begins", "nothing where it is up to 1 us each; else marks of steps one after the other"),
    Kind("calls-overlap", "inferred", "{calls} API calls run on into the next call or op of their thread",
         "they are taken to end there, so a wait in them is cut short",
         "a PyTorch of mid 2024 or newer where times are whole microseconds; else one recording a file, as the "
         "profiler wrote it"),
    Kind("no-backward-links", "lost", "{rows} ops of autograd, and neither fwdbwd flows nor sequence numbers",
         "no thread edge from forward to backward ops: what a backward waited for is not seen",
         "profile(activities=[ProfilerActivity.CPU, ...]), which writes both; with nsys emit_nvtx()", by_capture=True),
    Kind("backward-twice", "note", "{rows} backward ops have a sequence number that another one has, too",
         "each is paired with the last forward op of that number, which is right where backward runs in parts "
         "(retain_graph, zero bubble)",
         "nothing, if it does; else one recording a file"),
    Kind("no-shapes", "lost", "no shapes of {rows} host "
                              "ops", "nodes lack inputs' shapes and types, and host-side communication its size",
         "profile(record_shapes=True), or an execution trace, which always has them", by_capture=True),
    Kind("profiler-overhead", "note", "the profiler itself took {overhead_ms} ms in {rows} rows",
         "that time is in the graph as the run's own; bubbles call it profiler_artefact",
         "schedule(wait=1, warmup=1, active=3): fewer steps after a step of warm-up; with nsys "
         "--capture-range=cudaProfilerApi",
         by_capture=True),
    Kind("no-steps", "note", "no steps were found", "--step cannot choose, and steps are not compared",
         "prof.step() at the end of each training step", by_capture=True),
    # Waits
    Kind("no-cuda-sync", "inferred", "no cuda_sync rows", _COST,
         "profile(experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True))",
         by_capture=True),
    Kind("graph-order", "inferred", "what {ops} device ops in CUDA graphs of several streams wait for is not recorded",
         "the order of each stream holds, and what late starts show",
         "PyTorch 2.15 and newer: CuspyConfig(enable_graph_dependencies=True), on before the graphs are captured"),
    Kind("no-hip-sync", "inferred", "no rows that tell what HIP calls waited for", _COST,
         "nothing yet: ROCm's profilers write no such rows"),
    Kind("nsys-no-sync", "inferred", "no synchronisation rows in the export", _COST,
         "nsys profile --trace=cuda --cuda-event-trace=true, exported without leaving tables out"),
    Kind("cuda-sync-gaps", "inferred", "{without} of {calls} synchronisation calls have no row that tells what they "
                                       "waited for; {unexplained} synchronisation calls blocked for something that no "
                                       "row tells",
         "{inferred} waits are inferred from when things ended; {unexplained_ms} ms of calls stay unexplained",
         "a newer PyTorch: until February 2024 rows of cudaEventSynchronize were left out (kineto pull request 862), "
         "and rows of streams "
         "without work still are (kineto issue 904)"),
    Kind("no-event-records", "inferred", "none of {rows} rows of event waits names the cudaEventRecord that was waited "
                                         "for",
         "no event edges come of them; {inferred:wait} in the graph, inferred from when things ended",
         "a PyTorch built for CUDA 12.8 or older, or with kineto pull request 1552: since CUDA 12.9 Kineto does not "
         "see event records "
         "(before September 2023 it did not write them)"),
    Kind("event-records-outside", "inferred", "{unnamed} of {rows} rows of event waits name no cudaEventRecord of the "
                                              "recording",
         "no event edges come of them, which is right where the event was never recorded",
         "torch.cuda.synchronize() before the first recorded step, so that nothing waits for a record before "
         "it", by_capture=True),
    Kind("nsys-no-event-records", "inferred", "{unnamed} of {rows} rows of event waits belong to no recorded event",
         "no event edges come of them; {inferred:wait} in the graph, inferred from when things ended",
         "nsys profile --trace=cuda --cuda-event-trace=true, exported whole: a window cut out of an export loses its "
         "events"),
    Kind("cuda-sync-without-calls", "lost", "{lone} of {rows} cuda_sync rows have no API "
                                            "call", "no sync edge comes of them",
         "torch.cuda.synchronize() before the first recorded step; the file as the profiler wrote it, with its "
         "cuda_runtime rows",
         by_capture=True),
    Kind("waits-impossible", "lost", "{rows} waits are recorded as over before what they waited for had ended",
         "no edge comes of them, and {blocked_ms} ms of their calls are work in the graph",
         "record again after a step of warm-up (schedule(warmup=1)): the clocks of host and device differ",
         by_capture=True),
    Kind("records-after-waits", "lost", "{rows} rows of event waits name a cudaEventRecord that was called after them",
         "no event edge comes of them", "the file as the profiler wrote it; one recording a file"),
    Kind("host-comm", "inferred", "{comms} operations of gloo, and who waited for them is not all recorded",
         "waits are inferred from when rows ended and threads went on; {late} times, {late_ms} ms in all, a thread was "
         "silent while something was pending: that time is unexplained",
         f"a record_function('{WAIT_RANGE}') around each wait for gloo (graphlink.capture does so for those in "
         "Python); NCCL's kernels "
         f"show it"),
    Kind("standstill", "inferred", "{unexplained_ms} ms stood still and no edge says why",
         "{calls_ms} ms in calls are work in the graph and do not shrink with what they waited for: no gain of that "
         "time can be told; "
         "{threads_ms} ms of silent threads are work or gaps in the graph: no gain of that time can be told, and what "
         "these threads waited "
         "for may gain more than is told; device ops begin {streams_ms} ms late",
         "what the other findings say of each piece"),
    Kind("late-starts", "note", "device ops began late {delays:time}, {late_ms} ms in all, and nothing recorded says "
                                "why",
         "that time is device delays in the graph, which shrink with nothing but --scale delay; their gain says how "
         "much depends on them",
         "cuda_sync rows, if there are none: they name what a stream waited for; else " + LOOK.format("nvidia-smi")),
    # Communication, and of which rank a recording is
    Kind("comm-unknown", "lost", "parameters or group of {unknown} of {comms} communication ops are unknown",
         "they are COMP_NODEs whose time counts as communication: no size, no group, and ranks do not meet in them",
         "an execution trace of the same steps, and a PyTorch of mid 2024 or newer; what was launched before the "
         "recording never has them",
         by_capture=True),
    Kind("comm-doubtful", "inferred",
         "{doubtful} kernels may be communication or computation, by their name or by the op around their launch",
         "they are computation in the graph, {time_ms} ms",
         "an op of torch.library around the launch, named as the collective is: my_library::all_reduce"),
    Kind("groups-unknown", "lost", "the members of {groups} process groups are unknown, summed over ranks",
         "their {calls} calls are computation in the graph",
         "init_process_group and new_group before the profiler starts, and an execution trace, which lists the "
         "members", by_capture=True),
    Kind("groups-assumed", "inferred", "the members of a process group are not recorded",
         "it is the only one used, so it is taken to be of all ranks",
         "a PyTorch of mid 2024 or newer, or an execution trace of schema 1.0.2 or newer", by_capture=True),
    Kind("no-rank", "inferred", "the recording does not say of which rank it "
                                "is", "it is taken from the file's name, else 0",
         "init_process_group before the profiler starts (distributedInfo), or a file name with the rank: "
         "kineto_3.json", by_capture=True),
    Kind("odd-header", "note", "the head of the recording contradicts itself", "it is passed over", "record again"),
    # The execution trace of a rank
    Kind("no-et", "lost", "no execution trace",
         "{rows} host nodes lack what only it has: schema, tensors, scope, fw_parent; {unknown} of {comms} "
         "communication ops stay unknown",
         _OBSERVER, by_capture=True),
    Kind("no-kineto", "lost", "an execution trace without a Kineto trace",
         "there is no graph of it: its {nodes} nodes have no times and no device ops",
         "profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) around the same steps", by_capture=True),
    Kind("et-of-other-run", "lost", "the execution trace belongs to another run than the Kineto trace",
         "graphlink refuses the pair; what else is said here is of the Kineto trace alone", _BOTH, by_capture=True),
    Kind("et-differs", "inferred", "the execution trace and the Kineto trace agree in names, but belong to two runs of "
                                   "one program, it seems",
         "sizes, groups and tensors in the graph may be of the other run", _BOTH, by_capture=True),
    Kind("et-partial", "lost", "the execution trace covers {covered} of {rows} host rows",
         "the other nodes lack what only it has, and communication among them may stay "
         "unknown", "the same steps in both: " + _OBSERVER,
         by_capture=True),
    Kind("et-raised", "note", "the execution trace lacks {raised} of {rows} host rows, each alone or one in another: "
                              "an exception ended these ops, or they ended after it did, and PyTorch writes no node "
                              "of such",
         "these nodes lack what only it has", "nothing: activation checkpointing ends ops like this"),
    Kind("et-beyond-window", "note", "{beyond} of {nodes} nodes of the execution trace are not in the Kineto "
                                     "trace", "they are in no graph",
         "the same steps in both: " + _OBSERVER, by_capture=True),
    Kind("matched-by-order", "inferred", "no record-function ids: the execution trace is matched by the order of names "
                                         "on each thread",
         "{matched} of {rows} host rows are matched so",
         "an ExecutionTraceObserver that is on while Kineto records (PyTorch numbers ops only then), and a PyTorch of "
         "mid 2024 or newer",
         by_capture=True),
    Kind("no-record-function-ids", "note", "no record-function ids",
         "nothing now: an execution trace of this run could only be matched by order",
         "an ExecutionTraceObserver that is on while Kineto records (PyTorch numbers ops only then)", by_capture=True),
    Kind("et-names-differ", "inferred", "some of the execution trace does not fit the Kineto trace",
         "{unmatched} host rows are left unmatched", _BOTH, by_capture=True),
    Kind("et-broken-rows", "lost", "{rows} nodes of the execution trace could not be read", "they are left out",
         "the file as the observer wrote it, after unregister_callback()", by_capture=True),
    # nsys exports
    Kind("nsys-no-nvtx", "lost", "no NVTX ranges of host ops",
         "no host ops: {calls} API calls stand alone, and {ops} device ops have no name of what launched them",
         "nsys profile --trace=cuda,nvtx, and with torch.autograd.profiler.emit_nvtx(): around the steps"),
    Kind("nsys-no-blobs", "lost", "the export holds no payloads of NCCL's ranges",
         "communicator, size and peer of {comms} communication ops are unknown: they are computation in the graph; "
         "ranks are numbered by "
         "file, " "process and device", _EXPORT + ", of a report with --trace=cuda,nvtx"),
    Kind("nsys-cut", "lost", "the export is a window cut out of a longer one",
         "calls, event records and ranges around the window are missing: {orphans} of {ops} device ops have no launch",
         "the window at the recording: nsys profile --capture-range=cudaProfilerApi, and the export whole"),
    Kind("nsys-graphs-whole", "inferred", "{ops} launches of CUDA graphs are one row each",
         "kernels inside a graph are no nodes, and streams inside it are not "
         "seen", "nsys profile --cuda-graph-trace=node"),
    Kind("nsys-rank-by-order", "inferred", "the export does not tell ranks",
         "they are numbered by the number after rank in the file's name, else by file, process and device",
         _EXPORT + " (NCCL's communicators tell ranks), or a file a rank, named run_rank3.sqlite"),
    Kind("nsys-no-session-time", "inferred", "the export does not say when its time 0 was",
         "times are those of the report, not of the day: ranks of several exports are not aligned but by collectives",
         "a whole export of nsys 2021 or newer: nsys export --type sqlite REPORT.nsys-rep"),
    Kind("nsys-odd-rows", "note", "the export holds damaged rows", "they are read as the warning says",
         "export again with the newest nsys: nsys export --type sqlite REPORT.nsys-rep"),
    # Ranks together
    Kind("missing-ranks", "lost", "{missing} of {world} ranks were not recorded",
         "who came last to a collective is unknown, and so are waits, clocks and pipeline of the whole run; simulators "
         "need every rank",
         "the profiler on every rank, one folder for all files", by_capture=True),
    Kind("silent-ranks", "lost", "of {silent} ranks no communication with a known group was recorded, though others "
                                 "have some",
         "the others are matched without them, and what they did with them is computation in the graphs",
         "an execution trace of these ranks", by_capture=True),
    Kind("no-seq", "inferred",
         "no sequence numbers: {guessed} of {meetings} collectives and messages are matched over ranks by function, "
         "size and order",
         "where ranks began apart or dropped rows, the wrong ones may meet",
         "a PyTorch of 2026 (Seq in the Kineto trace), or an execution trace, which has them for collectives of NCCL; "
         "nothing for gloo and nsys, which have none"),
    Kind("began-apart", "lost", "the ranks began to record {spread_ms} ms apart",
         "{meetings} collectives or messages wait for ranks that did not record yet: they are excluded, and in no "
         "figure of waits",
         _TOGETHER, by_capture=True),
    Kind("first-meeting-late", "note",
         "{meetings} first collectives or messages after the start of the profiler waited longer than the later ones",
         "they are excluded, and in no figure of "
         "waits", _TOGETHER + ", with a step of warm-up (schedule(warmup=1))", by_capture=True),
    Kind("unmatched-communication", "lost", "{ops} collectives or messages have no counterpart on other recorded ranks",
         "they are computation in the graphs for ASTRA-sim, and in no figure of "
         "waits", "the same steps on all ranks: " + _TOGETHER,
         by_capture=True),
    Kind("collectives-differ", "lost", "{conflicts} collectives are not the same on all ranks",
         "graphlink refuses the run, but for --keep-unmatched", "recordings of one run, each rank once"),
    Kind("clocks-untied", "lost", "nothing connects the clocks of {ranks} ranks to those of the others",
         "their times cannot be compared with those of the others: no waits, no skew",
         "steps with collectives that all ranks take part in, recorded on all of them"),
    Kind("clocks-doubtful", "inferred", "clocks and collectives of the ranks contradict each other",
         "clocks are shifted as the warning says, or times of two ranks are comparable only within that",
         "hosts with synchronised clocks (chrony, PTP), and device rows: kernels of a collective end together, rows "
         "of gloo do not"),
    Kind("left-aside", "note", "files were ignored, or read as another kind than their name says", "as said",
         "one folder for each run, with a Kineto trace and an execution trace of every rank under the same number"),
    Kind("no-pipeline-ranges", "inferred", "no names of pipeline ranges",
         "phase, microbatch and stage of {ranges} ranges are inferred from communication and autograd",
         "with torch.profiler.record_function(f'PP:{stage}F{microbatch}') around each forward, B around each "
         "backward, or --range-rule"),
    Kind("pipeline-doubts", "inferred", "the recording does not tell all of the pipeline",
         "see the warning; bubbles and schedule are of the rest",
         "the same steps on all ranks, and record_function ranges as in docs/pipelines.md"),
    # Side files of NCCL and c10d
    Kind("nccl-alone", "lost", "side files of NCCL without a trace",
         "there is no graph of them: their {calls} calls belong to no kernel",
         "a Kineto trace of the same steps beside them: profile(activities=[ProfilerActivity.CPU, "
         "ProfilerActivity.CUDA])",
         by_capture=True),
    Kind("nccl-calls-missing", "lost", "{missing} calls or more are not in the dump, by the numbers of those that are",
         "their kernels have no algorithm, channels or steps; {between} of them lie between calls that are there, so "
         "order alone tells "
         "nothing", "larger rings, and the recorder on before the steps"),
    Kind("nccl-no-kernel-events", "lost", "no kernel channel events beside {calls} calls",
         "nothing connects the dump's clock with the GPU's, and a call ends where it was enqueued",
         f"{_MASK} (64 are kernel channels)"),
    Kind("nccl-no-gpu-stop", "lost", "{without} of {channels} kernel channels have no end on the GPU",
         "how long a channel ran is unknown; only its start ties the clocks",
         "a newer NCCL and its example plugin: early ones write StopGpuClk 0"),
    Kind("nccl-no-proxy-steps", "note", "no steps of the proxy beside {calls} calls",
         "the time of collectives is not split into GPU, peer and wire; right for calls inside a host (NVLink), "
         "which need no proxy",
         f"{_MASK} (8 and 16 are proxy ops and steps)"),
    Kind("nccl-no-seq", "inferred", "{without} of {calls} calls have no sequence number",
         "they are matched with kernels by order and size",
         "nothing: the library numbers collectives only"),
    Kind("nccl-no-times", "inferred", "{without} of {calls} calls have no times",
         "those between joined calls are joined by their numbers, the others with nothing",
         "the dump once more; of the inspector with NCCL_INSPECTOR_DUMP_VERBOSE=1"),
    Kind("flight-no-timing", "note", "entries of the Flight Recorder have no duration_ms",
         "how long a collective ran is known from its kernel alone", "TORCH_NCCL_ENABLE_TIMING=1"),
    Kind("inspector-large-only", "note",
         f"none of {{calls}} messages is below {INSPECTOR_BYTES} bytes, which the inspector leaves out by default",
         "small collectives, if there were some, are matched with nothing", "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0"),
    Kind("nccl-broken-rows", "lost", "parts of the dump could not be used", "{events} events are left out",
         "a dump that was written to its end: destroy the communicators, or stop the profiler, before the process "
         "ends"),
    Kind("nccl-unmatched", "note", "{left} of {ops} communication ops have no call in the side files",
         "they have no algorithm, channels or steps from there",
         "the recorder on before the steps and off after them, with rings that hold all of them"),
    # What a recording made here would lack
    Kind("env-no-torch", "lost", "no PyTorch that records", "neither an execution trace nor a Kineto trace",
         "pip install 'torch>=2.3'"),
    Kind("env-no-kineto", "lost", "no Kineto", "no times: there is no graph", "a PyTorch built with USE_KINETO=1"),
    Kind("env-no-et", "lost", "no execution trace",
         "nodes lack schema, tensors and scope; communication may stay unknown",
         "pip install -U torch"),
    Kind("env-no-all-threads", "lost", "host ops of threads that the step did not start are not recorded",
         "their time is gaps, and what they launch has no op",
         "pip install -U torch (_ExperimentalConfig(profile_all_threads=True))"),
    Kind("env-no-device", "note", "no GPU that PyTorch can record",
         "the graph holds the host alone: right for a run on the CPU",
         "a GPU, and a PyTorch built for it"),
    Kind("env-no-cuda-sync", "inferred", "no rows that tell what a synchronisation call waited for",
         "all waits are inferred from when things ended",
         "pip install -U torch (_ExperimentalConfig(enable_cuda_sync_events=True)); on ROCm nothing yet"),
    Kind("env-no-event-records", "inferred", "rows of event waits will not name the cudaEventRecord",
         "waits of streams and of the host for events are inferred from when things ended",
         "a PyTorch built for CUDA 12.8 or older, or with kineto pull request 1552"),
    Kind("env-no-cuspy", "note", "no Cuspy: Kineto alone records the GPU",
         "what nodes of CUDA graphs wait for is inferred, and counters of the GPU are not there",
         "PyTorch 2.15 and newer with cupti-python and libcupti 13.3"),
    Kind("env-no-groups", "lost", "Kineto will not list process groups",
         "members of groups come from the execution trace alone, or stay unknown", "pip install -U torch"),
    Kind("env-no-flight-recorder", "note", "no Flight Recorder",
         "a collective that is missing on a rank, and members of groups, are known from the traces alone",
         "TORCH_NCCL_TRACE_BUFFER_SIZE=20000"),
    Kind("env-no-nccl-proxy", "note", "no start and stop of NCCL's proxy profiler",
         "what a collective waited for (GPU, peer, wire) is not split",
         "a libnccl with NCCL pull request 1210, built with NCCL_PROXY_PROFILER_ENABLED"),
    Kind("env-no-nccl-plugin", "note", "no profiler plugin of NCCL",
         "algorithm, protocol and channels of collectives are unknown, and their time is not split",
         "NCCL_PROFILER_PLUGIN=<libnccl-profiler-example.so of NCCL's ext-profiler>"),
    Kind("env-no-nsys", "note", "nsys is not on PATH", "no export of nsys beside or in place of Kineto",
         "NVIDIA Nsight Systems, and nsys on PATH"),
    Kind("env-nccl-mask", "lost",
         "NCCL_PROFILER_PLUGIN is set, but NCCL_PROFILE_EVENT_MASK is not, or lacks collectives",
         "the plugin's code takes 0 in its place and records nothing", f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}"),
    Kind("env-nccl-kernel-events", "lost", "NCCL_PROFILE_EVENT_MASK lacks kernel channel events (64)",
         "the dump's clock is not tied to the GPU's, and a collective ends where it was enqueued",
         f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}"),
    Kind("env-nccl-proxy-steps", "lost", "NCCL_PROFILE_EVENT_MASK lacks proxy ops and steps (8 and 16)",
         "a collective's time is not split into GPU, peer and wire", f"NCCL_PROFILE_EVENT_MASK={WANTED_MASK}"),
    Kind("env-nccl-rings", "lost",
         "rings of the NCCL plugin are small: 8 events of a kind (16 of proxy control) by its code",
         "only the last few groups of a run survive", ENOUGH_RINGS),
    Kind("env-nccl-dump-file", "lost", "NCCL_PROFILE_DUMP_FILE is not set",
         "the plugin writes no file, but where exampleProfilerStart names one",
         "NCCL_PROFILE_DUMP_FILE=out/nccl (a file a communicator and rank)"),
    Kind("env-flight-timing", "note", "TORCH_NCCL_ENABLE_TIMING is not set",
         "entries of the Flight Recorder have no duration_ms",
         "TORCH_NCCL_ENABLE_TIMING=1"),
    Kind("env-inspector-verbose", "lost", "NCCL_INSPECTOR_DUMP_VERBOSE is not 1",
         "lines of the inspector have no times of events: they are joined with nothing",
         "NCCL_INSPECTOR_DUMP_VERBOSE=1"),
    Kind("env-inspector-min-size", "lost", f"the inspector leaves out messages below {INSPECTOR_BYTES} bytes",
         "small collectives are matched with nothing, and order no longer tells the others",
         "NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0"),
    Kind("env-inspector-kernel-timing", "lost", "the inspector leaves out events without GPU timing",
         "such collectives are not there, and nothing says so", "NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING=0"),
    Kind("env-inspector-interval", "lost", "the inspector writes at the end only",
         "what exceeds its rings (1024 collectives) is lost",
         "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=100000"),
)
# fmt: on
KINDS: Final = {kind.name: kind for kind in _ALL}
