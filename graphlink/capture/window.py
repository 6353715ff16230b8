"""PyTorch's recordings of one rank: execution trace and Kineto trace of the same steps.

prepare -> register -> open -> (begin_step ...) -> close -> write. The execution trace is on a little longer than Kineto
at both ends, so that it has every host row that Kineto has. Where one of the two fails, the other is kept.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from graphlink.capture.files import part_of, put, settle
from graphlink.capture.place import running
from graphlink.capture.support import config_fields
from graphlink.errors import GraphlinkError

STEP = "ProfilerStep#"  # by this name PyTorch and every reader of its traces knows a step
WAIT = "graphlink::wait"  # the range around a wait for gloo
GROUP = "graphlink::group "  # and around a send or receive of gloo, with the name of its process group
PROFILER_STARTS = ("_prepare_profiler", "_enable_profiler")  # of torch.autograd.profiler: by one of them all begin
ET_END, KINETO_END = '"finish_ts"', '"traceName"'  # the last key of each file
CUSPY = {"enable_cuda_sync_events": True, "enable_graph_dependencies": True, "enable_event_node_ids": True}
LEFT_TICKS = 3  # of 10 ms: a thread runs far less within the observer, for one op
LEAVING_S = 10.0  # at most
WANTED = {  # of _ExperimentalConfig, where this PyTorch has it
    "enable_cuda_sync_events": True,
    "profile_all_threads": True,
    "trace_only": True,  # without PyTorch's own table of events, which takes longer than the recording
}
_kept: list[Any] = []  # observers under which threads might crash: PyTorch frees one, and its lock, under all within


class Window:
    """``trouble``: what could not be written, in words. PyTorch fails with RuntimeError, the file system with OSError:
    passed on.
    """

    def __init__(self, *, stacks: bool = False, cuspy: bool = False) -> None:
        self._stacks, self._cuspy = stacks, cuspy
        self.trouble: list[str] = []
        self.steps: list[int] = []  # begun, without one that a profiler of the program's cut
        self.settings: dict[str, Any] = {}
        self._profiler: Any = None
        self.started = self._starting = self._recording = False
        self.ended = ""  # early: why
        self._observer: Any = None
        self._et: Path | None = None
        self._pid = os.getpid()
        self._step = contextlib.ExitStack()
        self._on = contextlib.ExitStack()  # what ends when the window is closed, the last first

    def prepare(self) -> None:
        """Make Kineto ready. GraphlinkError where a profiler is running already: it would be disturbed."""
        import torch

        running = torch.autograd._profiler_enabled() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
        if running or _scheduled(torch):  # the second tells of one of all threads, where PyTorch has it
            raise GraphlinkError("a profiler of PyTorch is running already", todo="stop it before the recording begins")
        activities: list[Any] = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
            activities.append(torch.profiler.ProfilerActivity.CUDA)  # of ROCm, too
        make, named = torch.profiler._KinetoProfile, [activity.name for activity in activities]
        if self._cuspy and hasattr(torch.profiler, "CuspyConfig") and len(activities) > 1:
            make, named = torch.profiler.profile, [*named, "Cuspy"]
            config = torch.profiler.ProfilerActivityConfig(profiler_configs=[torch.profiler.CuspyConfig(**CUSPY)])
            activities[1] = {activities[1]: config}
        elif self._cuspy:
            self.trouble.append("Cuspy is not in this PyTorch, or there is no GPU: Kineto records")
        fields = config_fields(torch)
        wanted = {name: value for name, value in WANTED.items() if name in fields}
        if self._stacks:  # which are in that table: PyTorch would warn, and make it
            wanted.pop("trace_only", None)
        self.settings = {
            "activities": named,
            "record_shapes": True,
            "with_stack": self._stacks,
            **wanted,
        }
        self._profiler = make(
            activities=activities,
            record_shapes=True,
            with_stack=self._stacks,
            experimental_config=torch._C._profiler._ExperimentalConfig(**wanted),
        )
        with _quiet():
            self._profiler.prepare_trace()
        self._on.callback(self._stop_observer)
        self._on.callback(self._stop_profiler)
        self._on.enter_context(self._giving_way())

    def register(self, et: Path) -> None:
        """Have the execution trace written to the part of ``et``, once the window is open."""
        import torch

        observer = torch.profiler.ExecutionTraceObserver()
        observer.register_callback(str(part_of(et)))
        if not observer._registered or not part_of(et).exists():
            observer._registered = (
                False  # PyTorch says that it is where another one is, which would be ended with this one
            )
            raise GraphlinkError("another observer of execution traces is registered, or the file cannot be opened")
        self._observer, self._et, self._pid = observer, et, os.getpid()

    def drain(self) -> None:
        """Wait for what the device still has to do: launched before the window, it would be in the recording without
        its launch.
        """
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def open(self) -> None:
        if self.ended:
            raise GraphlinkError(self.ended)
        self._on.enter_context(_visible_waits())
        with _quiet():
            if self._observer is not None:
                self._observer.start()
            self._starting = True
            self._profiler.start_trace()
            self._starting, self.started, self._recording = False, True, True
        self._on.callback(self._step.close)

    def begin_step(self, step: int) -> None:
        from torch.profiler import record_function

        self._step.close()
        if self.ended:
            return
        self.steps.append(step)
        self._step.enter_context(record_function(f"{STEP}{step}"))

    def close(self) -> None:
        """End both recordings. The execution trace's file is whole afterwards, under the name of its part."""
        self._on.close()

    @contextlib.contextmanager
    def _giving_way(self) -> Iterator[None]:
        """End this recording where the program starts a profiler of its own: PyTorch would end it unasked, and crash
        where it is then stopped.
        """
        import torch.autograd.profiler as module

        starts = {name: getattr(module, name) for name in PROFILER_STARTS if hasattr(module, name)}

        def giving_way(start: Callable[..., Any]) -> Callable[..., Any]:
            def begin(*arguments: Any, **named: Any) -> Any:
                if not self._starting:
                    self.ended = "the program started a profiler of its own, which ended this recording"
                    cut = f": step {self.steps.pop()} is not whole" if self.steps else ""
                    self.trouble.append(f"{self.ended}{cut}")
                    with contextlib.suppress(Exception):
                        self.close()
                return start(*arguments, **named)

            return begin

        for name, start in starts.items():
            setattr(module, name, giving_way(start))
        try:
            yield
        finally:
            for name, start in starts.items():
                setattr(module, name, start)

    def _stop_profiler(self) -> None:
        self._recording = False
        with _quiet():
            if not self.started:  # PyTorch lets go of what it made ready only so
                self._profiler.start_trace()
            self._profiler.stop_trace()

    def _stop_observer(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            if _left_by_others():
                self._observer.unregister_callback()
            else:
                _kept.append(self._observer)
                self.trouble.append("the execution trace is not ended: PyTorch might crash, with threads within it")

    def leave_to_parent(self) -> None:
        """Leave the recording to the parent, in a process that was forked while the window is open (a worker of a
        DataLoader): what it runs is not of this recording.

        It has the observer, its open file and its lock, and would write into the parent's, to the end of the program,
        or wait for ever, for a thread that held the lock when it was forked. And Kineto would keep 2.6 kB of each op in
        its memory, unless it ends the window, by a profiler of its own.
        """
        from torch import autograd

        if self._recording:
            self._on.callback(autograd._enable_record_function, True)
            autograd._enable_record_function(False)
        if self._et is None:
            return
        self._observer.stop()
        part = part_of(self._et, self._pid).resolve()
        with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            for opened in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(OSError):
                    if opened.readlink() == part:
                        os.dup2(nowhere.fileno(), int(opened.name))

    def write(self, kineto: Path, et: Path) -> dict[str, int]:
        """Write both files under their names; return bytes by name. What fails of the one does not keep the other from
        being written.

        ``et`` need not be what it was to be when the window opened: the rank may have become known since.
        """
        sizes = self._written(kineto, self._export)
        if self._et is None:
            return sizes
        if et != self._et and part_of(self._et).exists():
            part_of(self._et).replace(part_of(et))
        return {**sizes, **self._written(et, lambda path: settle(path, ET_END))}

    def drop(self) -> None:
        """Leave nothing running and no file behind; nothing is raised."""
        with contextlib.suppress(Exception):
            self.close()
        with contextlib.suppress(Exception):
            if self._et is not None:
                part_of(self._et).unlink(missing_ok=True)

    def _written(self, path: Path, write: Callable[[Path], int]) -> dict[str, int]:
        try:
            return {path.name: write(path)}
        except (OSError, RuntimeError, GraphlinkError) as error:
            self.trouble.append(f"{path.name} is missing: {error}")
            return {}

    def _export(self, path: Path) -> int:
        with _quiet():
            return put(path, self._export_plain, KINETO_END)

    def _export_plain(self, part: Path) -> None:
        self._profiler.export_chrome_trace(str(part))
        packed = part.with_name(f"{part.name}.gz")
        if packed.exists():  # as Cuspy writes
            with gzip.open(packed) as source, part.open("wb") as plain:
                shutil.copyfileobj(source, plain)
            packed.unlink()


def arm() -> None:
    """Have Cuspy note the dependencies inside each CUDA graph that is captured from now on, where this PyTorch can."""
    with contextlib.suppress(ImportError, AttributeError):
        from torch.profiler._cuspy._event_nodes import _EventNodeRecorder
        from torch.profiler._cuspy._graph_deps import _GraphDependencyRecorder

        _GraphDependencyRecorder().arm()
        _EventNodeRecorder().arm()


def _left_by_others() -> bool:
    """Wait until no other thread can be within PyTorch's observer, which was stopped. False: after ``LEAVING_S`` one
    still can.

    A thread has left it when it has run on for long enough, or waits: one that waits for its lock does so behind one
    that has not. Where the system does not tell (not Linux), a fixed time is waited.
    """
    stopped = _threads()
    if not stopped:
        time.sleep(0.05)
    until_s = time.monotonic() + LEAVING_S
    while any(
        state in "RD" and tid in stopped and ticks < stopped[tid][1] + LEFT_TICKS
        for tid, (state, ticks) in _threads().items()
    ):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.001)
    return True


def _threads() -> dict[str, tuple[str, int]]:
    """Return the state (R: runs or is ready to) of each other thread by its id, and for how many ticks it has run."""
    threads = {}
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                threads[task.name] = fields[0], int(fields[11]) + int(fields[12])
    threads.pop(str(threading.get_native_id()), None)
    return threads


def _scheduled(torch: Any) -> bool:
    """Tell whether a profiler of the program's is warming up: PyTorch does not tell, and crashes where two are made
    ready.
    """
    warms_up = torch.profiler.ProfilerAction.WARMUP
    profile = torch.profiler.profile
    referrers = gc.get_referrers(profile)  # an object refers to its type; to ask each of a training's objects takes s
    return any(type(referrer) is profile and referrer.current_action is warms_up for referrer in referrers)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence PyTorch's warnings about its own profiler: they are no news to who asked us to run it, and may be errors
    where they have been made so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _visible_waits() -> Iterator[None]:
    """Put a range around ``Work.wait`` of gloo, where the default process group has gloo, and take it away again.
    DDP's ``join`` and communication hooks wait for futures: around those as well, unless RPC has futures of its own.

    PyTorch records when a receive or collective ended, but nothing of who waited for it. With the range the wait ends
    where the range does, and what Python does next is not mistaken for it. NCCL's waits need none: they are calls and
    events on streams. What the program put there meanwhile stays, and around it a range that nobody records. Where
    there are several process groups, a range around each send and receive names its group, which PyTorch does not.
    """
    distributed = running()
    if distributed is None or "gloo" not in str(distributed.get_backend_config()):
        yield
        return
    import torch
    from torch.distributed import rpc

    def visible(name: Callable[[Any], str], function: Any) -> Any:
        def within(owner: Any, *arguments: Any, **named: Any) -> Any:
            with torch.profiler.record_function(name(owner)):
                return function(owner, *arguments, **named)

        return within

    places = [(distributed.Work, "wait", lambda _: WAIT)]
    if not (rpc.is_available() and rpc.api._is_current_rpc_agent_set()):
        places.append((torch._C.Future, "wait", lambda _: WAIT))
    if len(distributed.distributed_c10d._world.pg_map) > 1:
        messages = ("send", "recv", "recv_anysource")
        places += [(distributed.ProcessGroup, name, lambda group: GROUP + group.group_name) for name in messages]
    before = [vars(owner)[name] for owner, name, _ in places]  # as they are there: not all are got as such
    put = [visible(text, getattr(owner, name)) for owner, name, text in places]
    for (owner, name, _), range_ in zip(places, put, strict=True):
        setattr(owner, name, range_)
    try:
        yield
    finally:
        for (owner, name, _), range_, function in zip(places, put, before, strict=True):
            if vars(owner)[name] is range_:
                setattr(owner, name, function)
