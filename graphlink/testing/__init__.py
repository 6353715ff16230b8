"""A simulated machine: random GPU training programs with known truth, written as ET, Kineto and nsys files in every dialect.

    execution = run(random_program(seed=1))
    ids = write_kineto(execution, "kineto_0.json", dialect="2024", cuda_sync=True)
    write_et(execution, "et_0.json", layout="1.1.0-chakra.0.0.4")
    write_nsys([execution], "run.sqlite", schema="3.25")
    execution.waits, execution.event_edges  # what waited for what, by index

    pipeline_run(PipelineTraining("1F1B", stages=4, microbatches=8)).write("traces")  # a rank a file; .ranges, .idle say what is true

    run = cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2), [LateStart(1, share=0.2)])  # .ranks[r]: columns; .expected: the truth

For tests of tools that read such traces. Needs nothing of graphlink but this package; ``strategies`` needs hypothesis.
"""

from graphlink.testing import changes
from graphlink.testing.build import ThreadBuilder
from graphlink.testing.cluster import ClusterRun, cluster_run
from graphlink.testing.cluster_faults import (
    Differs,
    Dropped,
    EarlyEnd,
    Fault,
    LateStart,
    MissingRank,
    OtherOrder,
    ProfilerOverhead,
    ProfilerStart,
)
from graphlink.testing.cluster_large import large_columns
from graphlink.testing.cluster_program import ClusterGroup
from graphlink.testing.cluster_records import ClusterTraining, RankColumns, TrueClock, TrueMeetings
from graphlink.testing.cluster_truth import Expected, TrueConflict, TrueUnmatched
from graphlink.testing.comm_programs import Communicating, communicating_program
from graphlink.testing.dialects import DIALECTS, EPOCH_NS, Clock, DeviceClock, Dialect, RowIds, row_ids
from graphlink.testing.dirt import with_busy_cores, with_communication_of, with_slow_wakeups, with_spins
from graphlink.testing.et import Layout, et_document, write_et
from graphlink.testing.execution import CallRow, DeviceOp, Execution, Handover, HostOp, OverheadRow, SpinRow, Structure
from graphlink.testing.kineto import Variation, kineto_document, write_json, write_kineto
from graphlink.testing.machine import run, run_together
from graphlink.testing.nsys import NsysVariation, write_nsys
from graphlink.testing.pipeline_losses import HOWS, Loss, Place
from graphlink.testing.pipeline_names import RANGE_NAMES
from graphlink.testing.pipeline_orders import SCHEDULES, Slot, order
from graphlink.testing.pipeline_records import PipelineTraining, TrueIdle, TrueRange
from graphlink.testing.pipelines import PaddleJob, PipelineRun, pipeline_run
from graphlink.testing.program import (
    Api,
    Await,
    Begin,
    Call,
    CommArgs,
    End,
    Group,
    Host,
    Meeting,
    Overhead,
    Program,
    Signal,
    Spin,
    Thread,
    Work,
    thread_tids,
)
from graphlink.testing.programs import Shape, Training, random_program, training_program
from graphlink.testing.scenarios import SCENARIOS, Scenario

__all__ = [
    "DIALECTS",
    "EPOCH_NS",
    "HOWS",
    "RANGE_NAMES",
    "SCENARIOS",
    "SCHEDULES",
    "Api",
    "Await",
    "Begin",
    "Call",
    "CallRow",
    "Clock",
    "ClusterGroup",
    "ClusterRun",
    "ClusterTraining",
    "CommArgs",
    "Communicating",
    "DeviceClock",
    "DeviceOp",
    "Dialect",
    "Differs",
    "Dropped",
    "EarlyEnd",
    "End",
    "Execution",
    "Expected",
    "Fault",
    "Group",
    "Handover",
    "Host",
    "HostOp",
    "LateStart",
    "Layout",
    "Loss",
    "Meeting",
    "MissingRank",
    "NsysVariation",
    "OtherOrder",
    "Overhead",
    "OverheadRow",
    "PaddleJob",
    "PipelineRun",
    "PipelineTraining",
    "Place",
    "ProfilerOverhead",
    "ProfilerStart",
    "Program",
    "RankColumns",
    "RowIds",
    "Scenario",
    "Shape",
    "Signal",
    "Slot",
    "Spin",
    "SpinRow",
    "Structure",
    "Thread",
    "ThreadBuilder",
    "Training",
    "TrueClock",
    "TrueConflict",
    "TrueIdle",
    "TrueMeetings",
    "TrueRange",
    "TrueUnmatched",
    "Variation",
    "Work",
    "changes",
    "cluster_run",
    "communicating_program",
    "et_document",
    "kineto_document",
    "large_columns",
    "order",
    "pipeline_run",
    "random_program",
    "row_ids",
    "run",
    "run_together",
    "thread_tids",
    "training_program",
    "with_busy_cores",
    "with_communication_of",
    "with_slow_wakeups",
    "with_spins",
    "write_et",
    "write_json",
    "write_kineto",
    "write_nsys",
]
