"""A simulated machine: random GPU training programs with known truth, written as ET, Kineto and nsys files in every
dialect.

    execution = run(random_program(seed=1))
    ids = write_kineto(execution, "kineto_0.json", dialect="2024", cuda_sync=True)
    write_et(execution, "et_0.json", layout="1.1.0-chakra.0.0.4")
    write_nsys([execution], "run.sqlite", schema="3.25")
    execution.waits, execution.event_edges  # what waited for what, by index

    pipeline_run(PipelineTraining("1F1B", stages=4, microbatches=8)).write("traces")  # a rank a file; .ranges, .idle say what is true

    run = cluster_run(ClusterTraining(data=2, tensor=2, pipeline=2), [LateStart(1, share=0.2)])  # .ranks[r]: columns; .expected: the truth

For tests of tools that read such traces. Needs nothing of graphlink but this package; ``strategies`` needs hypothesis.
"""

from tests.simulator import changes
from tests.simulator.build import ThreadBuilder
from tests.simulator.cluster import ClusterRun, cluster_run
from tests.simulator.cluster_faults import (
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
from tests.simulator.cluster_large import large_columns
from tests.simulator.cluster_program import ClusterGroup
from tests.simulator.cluster_records import ClusterTraining, RankColumns, TrueClock, TrueMeetings
from tests.simulator.cluster_truth import Expected, TrueConflict, TrueUnmatched
from tests.simulator.comm_programs import Communicating, communicating_program
from tests.simulator.dialects import DIALECTS, EPOCH_NS, Clock, DeviceClock, Dialect, RowIds, row_ids
from tests.simulator.dirt import with_busy_cores, with_communication_of, with_slow_wakeups, with_spins
from tests.simulator.et import Layout, et_document, write_et
from tests.simulator.execution import CallRow, DeviceOp, Execution, Handover, HostOp, OverheadRow, SpinRow, Structure
from tests.simulator.kineto import Variation, kineto_document, write_json, write_kineto
from tests.simulator.machine import run, run_together
from tests.simulator.nsys import NsysVariation, write_nsys
from tests.simulator.pipeline_losses import HOWS, Loss, Place
from tests.simulator.pipeline_names import RANGE_NAMES
from tests.simulator.pipeline_orders import SCHEDULES, Slot, order
from tests.simulator.pipeline_records import PipelineTraining, TrueIdle, TrueRange
from tests.simulator.pipelines import PaddleJob, PipelineRun, pipeline_run
from tests.simulator.program import (
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
from tests.simulator.programs import Shape, Training, random_program, training_program
from tests.simulator.scenarios import SCENARIOS, Scenario

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
