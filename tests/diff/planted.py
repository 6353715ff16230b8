"""Changes of simulated programs whose size is known from the program alone: it is summed up from actions, not from
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.simulator import Training, training_program
from tests.simulator.program import Action, Api, Await, Begin, Call, End, Host, Program, Work

STEPS = 4
SEED = 3
COMPUTE, COPY, COMM = 7, 20, 24  # streams
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass(frozen=True, slots=True)
class Where:
    """An action: which step it is in (0: none), what is open around it, and its place in its thread."""

    step: int
    stack: tuple[str, ...]
    at: int

    def within(self, name: str) -> bool:
        return any(name in one for one in self.stack)


Edit = Callable[[Action, Where], list[Action]]


def base(steps: int = STEPS, seed: int = SEED) -> Program:
    return training_program(seed, Training(steps=steps, layers=4))


def walk(program: Program) -> Iterator[tuple[int, Action, Where]]:
    """Yield each action with its thread and place. The autograd thread is in the step whose backward it awaits."""
    for number, thread in enumerate(program.threads):
        step, stack = 0, list[str]()
        for at, action in enumerate(thread.actions):
            if isinstance(action, Begin):
                if action.name.startswith("ProfilerStep#"):
                    step = int(action.name.split("#")[1])
                stack.append(action.name)
            if isinstance(action, Await) and action.key.startswith("backward "):
                step = int(action.key.split()[1])
            yield number, action, Where(step, tuple(stack), at)
            if isinstance(action, End) and stack.pop().startswith("ProfilerStep#"):
                step = 0


def edited(program: Program, edit: Edit) -> Program:
    threads: list[list[Action]] = [[] for _ in program.threads]
    for number, action, where in walk(program):
        threads[number] += edit(action, where)
    return replace(
        program, threads=tuple(replace(t, actions=tuple(a)) for t, a in zip(program.threads, threads, strict=True))
    )


def a_step(program: Program, measure: Callable[[Action, Where], float]) -> float:
    """Return the mean over steps, without the first, of what is measured of actions."""
    steps = {where.step for _, _, where in walk(program)} - {0, 1}
    return sum(measure(action, where) for _, action, where in walk(program) if where.step > 1) / len(steps)


def works(action: Action) -> tuple[Work, ...]:
    return action.work if isinstance(action, Call) else ()


def scaled(factor: float, which: Callable[[Work, Where], bool]) -> Edit:
    """Device ops that take ``factor`` times as long."""

    def edit(action: Action, where: Where) -> list[Action]:
        if not works(action):
            return [action]
        new = tuple(
            replace(w, duration_ns=round(w.duration_ns * factor)) if which(w, where) else w for w in works(action)
        )
        return [replace(action, work=new)]  # type: ignore[type-var]

    return edit


def device_ns(which: Callable[[Work, Where], bool]) -> Callable[[Action, Where], float]:
    return lambda action, where: sum(w.duration_ns for w in works(action) if which(w, where))


def behind(name: str, new: Callable[[], list[Action]]) -> Edit:
    """Actions behind the end of each op of this name."""
    return lambda action, where: [action, *new()] if isinstance(action, End) and where.stack[-1] == name else [action]


def before_end(name: str, new: Callable[[], list[Action]]) -> Edit:
    """Actions before the end of each op of this name."""
    return lambda action, where: [*new(), action] if isinstance(action, End) and where.stack[-1] == name else [action]


def without(name: str) -> Edit:
    """No op of this name, with all inside it."""
    return lambda action, where: [] if name in where.stack else [action]


def launch(name: str = "ampere_sgemm_64x64_nn", ns: int = 150_000, stream: int = COMPUTE, kind: str = "kernel") -> Call:
    return Call(
        Api.LAUNCH,
        "cudaLaunchKernel" if kind == "kernel" else "cudaMemsetAsync",
        6_000,
        0,
        stream,
        work=(Work(name, ns, kind),),
    )


def sync(api: Api = Api.STREAM_SYNC, name: str = "cudaStreamSynchronize", event: int | None = None) -> Call:
    return Call(api, name, 4_000, 0, COMPUTE, event, return_ns=5_000)


def op(name: str, *inside: Action) -> list[Action]:
    return [Begin(name, ns=2_000), *inside, Host(1_000), End(500)]


def longer(ns: int, name: str) -> Edit:
    """Each op of this name computes so much longer on the host."""
    return before_end(name, lambda: [Host(ns)])


def calls_longer(ns: int, names: tuple[str, ...]) -> Edit:
    return lambda action, _: (
        [replace(action, call_ns=action.call_ns + ns)]
        if isinstance(action, Call) and action.name in names
        else [action]
    )


def host_slower(factor: float) -> Edit:
    """Everything that the host computes takes longer, but no GPU call."""

    def edit(action: Action, _: Where) -> list[Action]:
        if isinstance(action, Host | Begin | End) and action.ns:
            return [replace(action, ns=round(action.ns * factor))]
        return [action]

    return edit


def moved(old: int, new: int) -> Edit:
    """Launches of a stream go to another one."""
    return lambda action, _: (
        [replace(action, stream=new)] if isinstance(action, Call) and action.work and action.stream == old else [action]
    )


def renamed(old: str, new: str, where_in: str) -> Edit:
    def edit(action: Action, where: Where) -> list[Action]:
        if not works(action) or (where_in and not where.within(where_in)):
            return [action]
        return [replace(action, work=tuple(replace(w, name=new) if old in w.name else w for w in works(action)))]  # type: ignore[type-var]

    return edit


def noisy(program: Program, share: float, seed: int, factor: float = 1.0) -> Program:
    """All durations of a step, of the host and of the device, times one random factor of the step."""
    random = Random(seed)
    of_step = {where.step: factor * max(0.5, random.gauss(1.0, share)) for _, _, where in walk(program)}
    of_step[0] = 1.0

    def edit(action: Action, where: Where) -> list[Action]:
        by = of_step[where.step]
        if isinstance(action, Host | Begin | End):
            return [replace(action, ns=round(action.ns * by))]
        if isinstance(action, Call):
            new = tuple(replace(w, duration_ns=round(w.duration_ns * by)) for w in action.work)
            return [replace(action, work=new, call_ns=round(action.call_ns * by))]
        return [action]

    return edited(program, edit)
