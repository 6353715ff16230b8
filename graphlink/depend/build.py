"""Makes the dependency graph of a rank from its linked rows: what waited for what, host time in nodes, device time
explained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from graphlink.choices import CHOICES, HTA_LIMIT, LATENCY_NS
from graphlink.depend.assemble import assemble
from graphlink.depend.commevents import stream_waits
from graphlink.depend.cuda import CudaWaits, cuda_waits
from graphlink.depend.device import device_side
from graphlink.depend.enqueued import Enqueued
from graphlink.depend.host import host_side
from graphlink.depend.hostcomm import WAIT_RANGE
from graphlink.depend.hta import NO_ROWS as HTA_NO_ROWS
from graphlink.depend.hta import hta_waits
from graphlink.depend.infer import infer_waits
from graphlink.depend.reject import Dependencies, merge
from graphlink.depend.sleep import Sleeps
from graphlink.depend.spin import untold_polls_ns
from graphlink.depend.timeline import behind_rows
from graphlink.errors import InputError, bad_value
from graphlink.graph_model import Graph, Sync
from graphlink.linking.call_roles import Role, roles
from graphlink.model import EMPTY, I64, NOWHERE, Communication, Linked, Waits
from graphlink.read.kineto_rows import MAX_SPAN_NS
from graphlink.records import NOTE, Short, ms
from graphlink.spans import Axis, Spans
from graphlink.tables import how_many, take

NO_ROWS = (
    f"{NOTE}the recording has no cuda_sync rows: waits are inferred from their effect, and HTA finds none "
    "(record with _ExperimentalConfig(enable_cuda_sync_events=True) to have them exact)"
)


ALL_THREADS: Final = "_ExperimentalConfig(profile_all_threads=True), as graphlink.capture does"


@dataclass(frozen=True, slots=True)
class Untold:
    """Waits that the recording does not show: their time stays in ops."""

    calls: int = 0  # blocked in synchronisation, and nothing says on what
    calls_ns: int = 0
    comms: int = 0  # silences with something pending on the host, and whether they waited for it cannot be seen
    comms_ns: int = 0
    spins: int = 0  # silences of the host that ended as a kernel ended, once
    spins_ns: int = 0


@dataclass(frozen=True, slots=True)
class Silent:
    """Thread ``tid`` ran nothing that is recorded over [from_ns, until_ns)."""

    tid: I64
    from_ns: I64
    until_ns: I64

    @staticmethod
    def of(axis: Axis, spans: Spans) -> Silent:
        tid = axis.tids[axis.thread(spans.start_ns)]
        return Silent(tid, axis.time_ns(spans.start_ns), axis.time_ns(spans.end_ns))

    @property
    def ns(self) -> int:
        return int((self.until_ns - self.from_ns).sum())

    def noted(self, run_ns: int) -> bool:
        """Tell whether all silences are less than 1 % of the run, of which there is only a note."""
        return 100 * self.ns < run_ns

    def warning(self, meanwhile: str, run_ns: int) -> str:
        """Return the warning of all silences."""
        kind = NOTE if self.noted(run_ns) else ""
        times = f"{len(self.tid):,} times, {self.ns / 1e6:,.3f} ms in all"
        return f"{kind}{times}, a thread was silent between ops {meanwhile}"


@dataclass(frozen=True, slots=True, repr=False)
class Built(Short):
    """A graph with what was found, kept and left out while it was made."""

    graph: Graph
    sync: Sync
    rejected: Waits  # that rows name exactly
    warnings: tuple[str, ...]
    handed: Sleeps  # that a tensor alone tells the end of: it went on later than waking takes
    pending: Silent  # while host-side operations were
    hidden: Silent  # while threads that Kineto did not record ran ops
    untold: Untold = Untold()


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """Say how dependencies are found.

    Attributes:
        sync: Where synchronisation is taken from: ``both``, ``hta`` or ``cuda``.
        gap_ns: Idle time in ns, from 0, up to which a host gap or a start delay stays with a node and is none of its
            own.
        hta_limit: Events of one window, from 0, above which HTA is skipped there.

    Raises:
        UsageError: a value is none of these.
    """

    sync: str = CHOICES["sync"][0]
    gap_ns: int = LATENCY_NS
    hta_limit: int = HTA_LIMIT

    def __post_init__(self) -> None:
        if self.sync not in CHOICES["sync"]:
            raise bad_value("sync", self.sync, f"one of {', '.join(CHOICES['sync'])}")
        for name, most in (("gap_ns", MAX_SPAN_NS), ("hta_limit", 1 << 62)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
                raise bad_value(name, value, f"a whole number from 0 to {most:,}")


class FoundWaits(msgspec.Struct, frozen=True):
    cuda: CudaWaits
    dependencies: Dependencies
    enqueued: Enqueued | None  # None: nothing is inferred
    warnings: tuple[str, ...]
    untold: Untold  # calls only


def build(linked: Linked, comm: Communication, options: BuildOptions | None = None) -> Built:
    """Build the graph of one rank, with counts of what was found, kept and rejected. O(n log n) in rows.

    Node columns have one entry per node, times are int64 ns since ``epoch_ns``; edges are CSR by target (``Graph``).

    Raises:
        InputError: the recording has no host op and no device op, or its dependencies go round in a circle.
    """
    options = options or BuildOptions()
    trace = linked.trace
    if not len(trace.host.start_ns) and not len(trace.device.start_ns):
        raise InputError(
            "no host op and no device op in the recording", path=trace.path, todo="record with activities CPU and CUDA"
        )
    return build_with(linked, comm, find(linked, options, comm), options)


def build_with(linked: Linked, comm: Communication, found: FoundWaits, options: BuildOptions) -> Built:
    """Build the graph as ``build`` does, with the waits that ``find`` found."""
    host = host_side(linked, comm, found.cuda, found.dependencies, options.gap_ns)
    device = device_side(linked, found.dependencies, host, options.gap_ns, found.enqueued)
    graph = assemble(linked, comm, found.dependencies, host, device)
    spun, axis = host.spins, host.nodes.axis
    pending, hidden = (Silent.of(axis, spans) for spans in (host.comm_waits.unknown, host.hidden))
    untold = replace(
        found.untold,
        calls=found.untold.calls + len(host.unshown_ns),
        calls_ns=found.untold.calls_ns + int(host.unshown_ns.sum()),
        comms=len(pending.tid),
        comms_ns=pending.ns,
        spins=spun.untold,
        spins_ns=spun.untold_ns,
    )
    # event waits that showed only in late starts, and waits without a call, are found and kept, too
    added = device.events.found_by[len(found.dependencies.device.source) :]
    inferred = how_many(added) + len(spun.source)
    counts = found.dependencies.counts
    by_source = counts.by_source | {"inferred": counts.by_source["inferred"] + inferred}
    counts = Sync(
        found=counts.found + inferred, kept=counts.kept + inferred, rejected=counts.rejected, by_source=by_source
    )
    warnings = [*found.warnings]
    if len(host.unshown_ns):
        warnings.append(
            f"synchronisation calls ({len(host.unshown_ns):,}) waited {host.unshown_ns.sum() / 1000:.1f} us for "
            "something that the recording does not show, behind what they are known to have waited for: gaps"
        )
    if len(polls_ns := untold_polls_ns(linked, found.dependencies, found.cuda.role)):
        few = NOTE if 100 * polls_ns.sum() < graph.end_ns.max() - graph.start_ns.min() else ""
        warnings.append(
            f"{few}loops that ask whether an event was reached ({len(polls_ns):,}) took {ms(polls_ns.sum())} ms, and "
            "nothing recorded tells what they waited for: that time stays in their ops, and gains nothing with device "
            "work (cuda_sync rows would tell)"
        )
    warnings += _silences(linked, pending, hidden, int(graph.end_ns.max()))
    if len(spun.source):
        warnings.append(
            f"{NOTE}{len(spun.source)} times the host waited for a kernel without any call (it polls what the kernel "
            "writes): inferred"
        )
    return Built(
        graph,
        counts,
        found.dependencies.rejected,
        tuple(warnings),
        take(host.sleeps, host.sleeps.handed == 1),
        pending,
        hidden,
        untold,
    )


def _silences(linked: Linked, pending: Silent, hidden: Silent, run_ns: int) -> Iterator[str]:
    if len(pending.tid):
        todo = f"graphlink.capture records waits in Python, as ranges {WAIT_RANGE}"
        if WAIT_RANGE in linked.trace.strings:
            todo = "waits in Python are recorded: so Python ran, or PyTorch waited inside of C++"
        yield pending.warning(
            "while a host-side receive or collective was pending, and nothing shows whether it waited: that time is "
            f"unexplained ({todo})",
            run_ns,
        )
    if len(hidden.tid):
        yield hidden.warning(
            "while threads ran ops that the ET has and the Kineto trace has not, and nothing shows whether it waited "
            f"for them: that time is unexplained (record all threads: {ALL_THREADS})",
            run_ns,
        )


def find(linked: Linked, options: BuildOptions, comm: Communication | None = None) -> FoundWaits:
    """Find waits from the sources that ``options.sync`` names, joined and checked; ``comm``: for those that the order
    of calls tells.
    """
    trace = linked.trace
    warnings: list[str] = []
    cuda = cuda_waits(linked, () if comm is None else stream_waits(linked, comm, roles(trace.calls, trace.strings)))
    others: list[Waits] = []
    enqueued: Enqueued | None = None
    untold = Untold()
    if options.sync == "hta":  # HTA alone: no rows of ours speak against it
        cuda = replace(
            cuda,
            waits=take(cuda.waits, EMPTY),
            told_call=np.zeros(len(cuda.told_call), np.bool_),
            told_op=np.zeros(len(cuda.told_op), np.bool_),
        )
    else:
        enqueued = Enqueued.of(linked, cuda)
        inferred, unexplained = infer_waits(linked, cuda, enqueued)
        others.append(inferred)
        untold = Untold(len(unexplained), int((trace.calls.end_ns - trace.calls.start_ns)[unexplained].sum()))
        if unexplained:
            calls = trace.calls
            kind = NOTE if 100 * untold.calls_ns < int(calls.end_ns.max() - calls.start_ns.min()) else ""
            warnings.append(
                f"{kind}synchronisation calls ({untold.calls:,}) waited {untold.calls_ns / 1000:.1f} us "
                "for something that the recording does not show; that time stays in their ops"
            )
        if not len(trace.syncs.kind) and len(trace.device.start_ns):
            warnings.append(NO_ROWS)
    known = (cuda.role != Role.OTHER) & (cuda.role < Role.COPY)
    behind = how_many(behind_rows(linked) & known & (linked.call_op == NOWHERE))
    if behind:
        warnings.append(
            f"{NOTE}synchronisation and event calls ({behind:,}) after the last row are left out: the profiler's own"
        )
    if cuda.rows_without_call:
        warnings.append(f"{cuda.rows_without_call} cuda_sync rows have no API call in the recording")
    if options.sync != "cuda" and len(trace.device.start_ns):
        hta, said = hta_waits(trace, linked.device_call, options.hta_limit)
        others.append(hta)
        warnings += [text for text in said if text != HTA_NO_ROWS or NO_ROWS not in warnings]
    return FoundWaits(cuda, merge(linked, cuda, tuple(others)), enqueued, tuple(warnings), untold)
