"""Changes of simulated programs, each as a table of a file of ``--what-if`` and as the program that is changed so: its
truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from graphlink.graph.target import written
from graphlink.graph.write_et import write_et
from graphlink.ranks.group_ids import assign
from graphlink.replay.changes_file import load_changes
from graphlink.replay.coupled import play_coupled
from graphlink.replay.folder import load
from graphlink.replay.machines import play_ideal
from graphlink.replay.matching import matched
from graphlink.replay.whatif import Changed, fit
from graphlink.replay.workload import Workload, workload
from graphlink.run.job import Inputs, Options, prepare
from tests.simulator import Api, Call, ClusterRun, Execution, Program, write_kineto
from tests.simulator.machine import run_together
from tests.simulator.program import Action, Await, Begin, End, Host, Thread, Work, thread_tids

Programs = tuple[Program, ...]
SYNCS = (Api.STREAM_SYNC, Api.DEVICE_SYNC, Api.EVENT_SYNC)
LAUNCHES = re.compile("Launch|Memcpy|Memset")  # also where the other change has removed what they launched
ORDER = ("network", "time", "wait")


@dataclass(frozen=True)
class Change:
    """``tables``: of the file, by the name of their table; ``make``: the programs with the change."""

    table: str
    text: str
    make: Callable[[Programs], Programs]


@dataclass(frozen=True)
class At:
    """Where an action stands: rank and thread, names of open ops, step. ``path``: the names down to the innermost op,
    which a call belongs to; of ranges alone all."""

    rank: int
    thread: int
    open: tuple[str, ...]
    step: int | None
    path: tuple[str, ...]


@dataclass
class Walk:
    """Walks over the actions of a thread."""

    rank: int
    thread: int
    open: list[Begin] = field(default_factory=list)
    step: int | None = None

    def over(self, actions: Sequence[Action]) -> Iterator[tuple[Action, At]]:
        for action in actions:
            if isinstance(action, Begin):
                self.open.append(action)
                if action.name.startswith("ProfilerStep#"):
                    self.step = int(action.name.partition("#")[2])
            if isinstance(action, Await) and action.key.startswith("backward "):
                self.step = int(action.key.split()[1])
            names = tuple(one.name for one in self.open)
            ops = [i for i, one in enumerate(self.open) if not one.annotation]
            yield action, At(self.rank, self.thread, names, self.step, names[: ops[-1] + 1] if ops else names)
            if isinstance(action, End):
                name = self.open.pop().name
                self.step = None if name.startswith("ProfilerStep#") else self.step


def each(programs: Programs, what: Callable[[Action, At], Action]) -> Programs:
    """The programs with other actions."""

    def thread(rank: int, index: int, one: Thread) -> Thread:
        return replace(one, actions=tuple(what(action, at) for action, at in Walk(rank, index).over(one.actions)))

    return tuple(
        replace(p, threads=tuple(thread(r, i, t) for i, t in enumerate(p.threads))) for r, p in enumerate(programs)
    )


def each_work(
    programs: Programs, which: Callable[[Work, Call, At], bool], what: Callable[[Work], Work | None]
) -> Programs:
    """The programs with other device ops, or none in their place."""

    def changed(action: Action, at: At) -> Action:
        if not isinstance(action, Call) or not action.work:
            return action
        made = [what(work) if which(work, action, at) else work for work in action.work]
        left = tuple(work for work in made if work is not None)
        return replace(
            action, work=left, api=action.api if left else Api.OTHER, blocking=action.blocking and bool(left)
        )

    return each(programs, changed)


def scaled(factor: float) -> Callable[[Work], Work]:
    return lambda work: replace(work, duration_ns=max(1, round(work.duration_ns * factor)))


def longer(ns: int) -> Callable[[Work], Work]:
    return lambda work: replace(work, duration_ns=max(0, work.duration_ns + ns))


def is_kernel(work: Work) -> bool:
    return work.kind == "kernel" and work.comm is None


def exactly(name: str) -> str:
    """A pattern in TOML that finds a name and no longer one."""
    return f"'^{re.escape(name)}$'"


def works(programs: Programs) -> list[tuple[Work, Call, At]]:
    out: list[tuple[Work, Call, At]] = []

    def seen(action: Action, at: At) -> Action:
        out.extend((work, action, at) for work in (action.work if isinstance(action, Call) else ()))
        return action

    each(programs, seen)
    return out


# device ops


def device_ops(random: Random, programs: Programs) -> Change:
    """Device ops that are chosen by one of all ways, scaled, longer, shorter or removed."""
    found = [(w, c, at) for w, c, at in works(programs) if is_kernel(w)]
    work, call, at = random.choice(found)
    tids = thread_tids(programs[at.rank])
    in_path = [name for name in at.path if not name.startswith("ProfilerStep#")]
    ways: list[tuple[str, Callable[[Work, Call, At], bool]]] = [
        (f"name = {exactly(work.name)}", lambda w, c, a: w.name == work.name),
        (f"stream = {call.stream}", lambda w, c, a: c.stream == call.stream),
        ("", lambda w, c, a: True),
    ]
    if len(programs) > 1:
        ways.append((f"rank = {at.rank}", lambda w, c, a: a.rank == at.rank))
    elif len(tids) > 1:
        ways.append((f"thread = {tids[at.thread]}", lambda w, c, a: a.thread == at.thread))
    if in_path:
        name = random.choice(in_path)
        ways.append((f"path = '(^|/){re.escape(name)}(/|$)'", lambda w, c, a: name in a.path))
    if at.step is not None:
        ways.append((f'step = "{at.step}"', lambda w, c, a: a.step == at.step))
    text, chosen = random.choice(ways)
    factor, us = random.choice((0.25, 0.5, 0.8, 1.5, 2.0, 3.0)), random.choice((-20, -5, 5, 20, 60))
    act, what = random.choice(
        (
            (f"scale = {factor}", scaled(factor)),
            (f"add_us = {us}", longer(us * 1000)),
            ("remove = true", lambda _: None),
        )
    )
    return Change(
        "time",
        f"[[time]]\nsort = 'kernel'\n{text}\n{act}\n",
        lambda ps: each_work(ps, lambda w, c, a: is_kernel(w) and chosen(w, c, a), what),
    )


# the host


def host(random: Random, programs: Programs) -> Change:
    """All of the host at another speed, of one thread or rank where there are several: of one thread only where none
    wakes another, as what passes between the last op of one and the first of the other is in a gap of the other."""
    factor = random.choice((0.5, 0.7, 1.5, 2.0))
    rank, tids = random.randrange(len(programs)), thread_tids(programs[0])
    index = random.randrange(len(tids)) if len(programs) == 1 else 0
    alone = len(programs) == 1 and not any(isinstance(a, Await) for t in programs[0].threads for a in t.actions)
    one = f"thread = {tids[index]}" if alone else f"rank = {rank}"
    text = "".join(
        f"[[time]]\nsort = '{sort}'\n{one}\nscale = {factor}\n" for sort in ("host", "gap")
    )  # a thread may have no gap

    def shorter(ns: int) -> int:
        return max(1, round(ns * factor))

    def changed(action: Action, at: At) -> Action:
        if at.rank != rank or (alone and at.thread != index):
            return action
        if isinstance(action, Host | Begin | End):
            return replace(action, ns=shorter(action.ns))
        if isinstance(action, Call):
            return replace(action, call_ns=shorter(action.call_ns), return_ns=shorter(action.return_ns))
        return replace(action, wake_ns=shorter(action.wake_ns)) if isinstance(action, Await) else action

    def threads(program: Program, here: bool) -> Program:
        def mine(i: int) -> bool:
            return here and (i == index or not alone)

        later = (
            replace(t, start_ns=round(t.start_ns * factor)) if mine(i) else t for i, t in enumerate(program.threads)
        )
        return replace(program, threads=tuple(later))

    return Change("time", text, lambda ps: tuple(threads(p, r == rank) for r, p in enumerate(each(ps, changed))))


def host_ops(random: Random, programs: Programs) -> Change | None:
    """Ops of a name that take longer."""
    names = {a.name for p in programs for t in p.threads for a in t.actions if isinstance(a, Begin) and "::" in a.name}
    if not names:
        return None
    name, us = random.choice(sorted(names)), random.choice((3, 15, 50))

    def changed(action: Action, at: At) -> Action:
        return (
            replace(action, ns=action.ns + us * 1000) if isinstance(action, Begin) and action.name == name else action
        )

    return Change(
        "time", f"[[time]]\nsort = 'host'\nname = {exactly(name)}\nadd_us = {us}\n", lambda ps: each(ps, changed)
    )


def launch_cost(random: Random, programs: Programs) -> Change:
    """Launches that take longer, of one rank or of all."""
    us = random.choice((1, 3, 8))
    rank = random.choice([None, *range(len(programs))]) if len(programs) > 1 else None
    one = "" if rank is None else f"rank = {rank}\n"

    def changed(action: Action, at: At) -> Action:
        if not isinstance(action, Call) or not LAUNCHES.search(action.name) or rank not in (None, at.rank):
            return action
        return replace(action, call_ns=action.call_ns + us * 1000)

    return Change("time", f"[[time]]\n{one}launch_us = {us}\n", lambda ps: each(ps, changed))


# waits


def without_waits(random: Random, programs: Programs) -> Change | None:
    """Waits of all calls, of one name or of one thread removed."""
    calls = [
        (a, i)
        for p in programs
        for i, t in enumerate(p.threads)
        for a in t.actions
        if isinstance(a, Call) and a.api in SYNCS
    ]
    if not calls:
        return None
    one, index = random.choice(calls)
    tids = thread_tids(programs[0])
    ways: list[tuple[str, Callable[[Call, At], bool]]] = [
        ("", lambda c, at: True),
        (f"which = '{one.name}'", lambda c, at: c.name == one.name),
    ]
    if len(programs) == 1:
        ways.append((f"thread = {tids[index]}", lambda c, at: at.thread == index))
    text, chosen = random.choice(ways)

    def changed(action: Action, at: At) -> Action:
        if not isinstance(action, Call) or not chosen(action, at):
            return action
        waits = action.api in SYNCS or action.api is Api.EVENT_QUERY
        return replace(action, api=Api.OTHER if waits else action.api, blocking=False)

    return Change("wait", f"[[wait]]\n{text}\nremove = true\n", lambda ps: each(ps, changed))


def moved_waits(random: Random, programs: Programs) -> Change | None:
    """Waits of one call moved to before the next op of a name, or to the end of their step. Not of events, which may be
    recorded again on the way: a graph does not tell what they would then be of. A call that awaited nothing is no wait
    in the graph, and stays.
    """
    calls = [(rank, row) for rank, one in enumerate(run_together(programs)) for row in one.calls if row.sources]
    names = sorted({row.call.name for _, row in calls if row.call.api in (Api.STREAM_SYNC, Api.DEVICE_SYNC)})
    waits = {(rank, *row.site) for rank, row in calls}
    steps = any(
        isinstance(a, Begin) and a.name.startswith("ProfilerStep#")
        for p in programs
        for t in p.threads
        for a in t.actions
    )
    ops = sorted(
        {
            a.name
            for p in programs
            for t in p.threads
            for a in t.actions
            if isinstance(a, Begin) and a.name.startswith("aten::")
        }
    )
    if not names or not ops:
        return None
    call, op = random.choice(names), None if steps and random.random() < 0.7 else random.choice(ops)
    to = "move_to_end_of_step = true" if op is None else f"move_before = {exactly(op)}"

    def thread(one: Thread, rank: int, index: int) -> Thread:
        walked = list(Walk(rank, index).over(one.actions))
        last = max((k for k, (a, _) in enumerate(walked) if isinstance(a, Begin) and op in (None, a.name)), default=-1)
        out: list[Action] = []
        late: list[Call] = []
        for k, (action, at) in enumerate(walked):
            here = isinstance(action, Begin) and (action.name == op if op is not None else len(at.open) == 1)
            if here:
                out += late
                late = []
            place = k <= last and (op is not None or at.step is not None)
            if (
                isinstance(action, Call)
                and action.api in SYNCS
                and action.name == call
                and place
                and (rank, index, k) in waits
            ):
                late.append(action)
                continue
            out.append(action)
        assert not late
        return replace(one, actions=tuple(out))

    def make(ps: Programs) -> Programs:
        return tuple(
            replace(p, threads=tuple(thread(t, r, i) for i, t in enumerate(p.threads))) for r, p in enumerate(ps)
        )

    return Change("wait", f"[[wait]]\nwhich = '{call}'\n{to}\n", make)


# communication


def communication(random: Random, programs: Programs) -> Change | None:
    """Communication of a kind, on all ranks: scaled, longer or removed."""
    names = sorted({w.name for w, _, _ in works(programs) if w.comm is not None})
    if not names or len(programs) == 1:
        return None
    name = random.choice(names)
    factor, us = random.choice((0.3, 0.5, 2.0, 4.0)), random.choice((5, 30, 100))
    ways: list[tuple[str, Callable[[Work], Work | None]]] = [
        (f"scale = {factor}", scaled(factor)),
        (f"add_us = {us}", longer(us * 1000)),
        ("remove = true", lambda _: None),
    ]
    act, what = random.choice(ways)
    text = f"[[time]]\nsort = 'comm'\nname = {exactly(name)}\n{act}\n"
    return Change("time", text, lambda ps: each_work(ps, lambda w, c, a: w.name == name, what))


def network(random: Random, programs: Programs) -> Change | None:
    """A network of rings whose bandwidth and latency are those of the change, in one group or in all."""
    groups = {(g.name, g.desc): g for p in programs for g in p.groups}
    of = {w.comm.group for w, _, _ in works(programs) if w.comm is not None}
    names = sorted({g.name for g in groups.values() if g.name in of})
    if not names:
        return None
    name = random.choice([None, *names])
    gb_per_s, us = random.choice((20, 50, 200, 400)), random.choice((1, 3, 10))

    def changed(program: Program) -> Callable[[Work], Work]:
        sizes = {g.name: len(g.ranks) for g in program.groups}

        def one(work: Work) -> Work:
            assert work.comm is not None
            c, n = work.comm, sizes[work.comm.group]
            shares = {
                "allreduce": (2 * (n - 1) / n, 2 * (n - 1)),
                "_allgather_base": (n - 1, n - 1),
                "send": (1, 1),
                "recv": (1, 1),
            }
            shares |= {
                "_reduce_scatter_base": ((n - 1) / n, n - 1),
                "all_to_allv": ((n - 1) / n, n - 1),
                "broadcast": (1, n - 1),
            }
            share, steps = shares[c.name]
            ns = c.in_nelems * c.elem_bytes * share / gb_per_s + steps * us * 1000
            return replace(work, duration_ns=round(ns))

        return one

    def make(ps: Programs) -> Programs:
        out = []
        for program in ps:
            mine = {g.name for g in program.groups if name in (None, g.name)}
            chosen = each_work(
                (program,),
                lambda w, c, a, mine=mine: w.comm is not None and w.comm.group in mine,
                changed(program),
            )
            out.append(chosen[0])
        return tuple(out)

    of_group = "" if name is None else f"group = '{name}'\n"
    return Change("network", f"[[network]]\n{of_group}bandwidth_gb_per_s = {gb_per_s}\nlatency_us = {us}\n", make)


ALONE = (device_ops, device_ops, host, host_ops, launch_cost, without_waits, moved_waits)
TOGETHER = (device_ops, device_ops, host, host_ops, launch_cost, without_waits, communication, communication, network)


def two_changes(seed: int, programs: Programs) -> tuple[Change, Change]:
    """Two random changes, in the order in which they are made."""
    random, found = Random(seed), list[Change]()
    while len(found) < 2:
        one = random.choice(ALONE if len(programs) == 1 else TOGETHER)(random, programs)
        again = one is not None and any(
            "move_" in one.text and "move_" in other.text for other in found
        )  # it knows waits by their place
        found += [one] if one is not None and not again else []
    first, second = sorted(found, key=lambda c: ORDER.index(c.table))
    return first, second


# recording and replay


@dataclass(frozen=True)
class Recorded:
    """The graphs of a run, its groups, and when it began and ended by what it recorded (ns)."""

    work: Workload
    groups: dict[int, tuple[int, ...]]
    folder: Path


def record(folder: Path, executions: Sequence[Execution], *, cuda_sync: bool = True) -> Recorded:
    """The graphs of a run of programs, from files to files and back."""
    folder.mkdir(exist_ok=True)
    prepared = {}
    for rank, execution in enumerate(executions):
        path = folder / f"kineto_{rank}.json"
        write_kineto(execution, path, dialect="2024", cuda_sync=cuda_sync)
        prepared[rank] = prepare(Inputs(kineto=path, rank=rank), Options(sync="cuda"))
    ids = assign({rank: one.plan.groups for rank, one in prepared.items()})
    for rank, one in prepared.items():
        graph = one.built.graph.of_rank(rank, len(executions))
        with (folder / f"trace.{rank}.et").open("wb") as out:
            write_et(out, written(graph, one.comm, one.plan, ids[rank]))
    groups = {number: ranks for of in ids.values() for (ranks, _), number in of.items()}
    return Recorded(workload(load({rank: folder / f"trace.{rank}.et" for rank in prepared})), groups, folder)


def span_ns(executions: Sequence[Execution]) -> int:
    """From the first start of any row of any rank to the last end."""
    return max(e.end_ns for e in executions) - min(e.start_ns for e in executions)


def total_ns(work: Workload, groups: dict[int, tuple[int, ...]]) -> int:
    return play_ideal(work).total_ns if len(work.ranks) == 1 else play_coupled(work, matched(work, groups)).total_ns


def predicted(recorded: Recorded, text: str) -> Changed:
    """The workload with the changes of a file."""
    path = recorded.folder / "what-if.toml"
    path.write_text(text)
    return fit(recorded.work, load_changes(path), recorded.groups)


def programs_of(run: ClusterRun) -> Programs:
    return tuple(run.recordings[rank].execution.program for rank in sorted(run.recordings))


@dataclass(frozen=True)
class Outcome:
    """Times in ns: of what was recorded, of the changed programs run again, and as predicted."""

    before: int
    truth: int
    got: int
    text: str

    @property
    def error_pct(self) -> float:
        return 100 * (self.got / self.truth - 1)


def outcome(folder: Path, programs: Programs, changes: Sequence[Change], *, cuda_sync: bool = True) -> Outcome:
    executions = run_together(programs)
    recorded = record(folder, executions, cuda_sync=cuda_sync)
    before = total_ns(recorded.work, recorded.groups)
    lead = span_ns(executions) - before  # rows outside the graphs
    changed = programs
    for change in changes:
        changed = change.make(changed)
    truth = span_ns(run_together(changed)) - lead
    text = "".join(change.text for change in changes)
    found = predicted(recorded, text)
    assert not [title for title in found.refused if not title.startswith("[[time]] gap")], (text, found.refused)
    return Outcome(before, truth, total_ns(found.work, recorded.groups), text)
