from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

import graphlink.capture
from graphlink.capture import recording, session
from tests.capture.forked import Forked

Train = Callable[[], None]


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    """Each test begins and ends without a recording, a profiler or folders that were used."""
    torch = pytest.importorskip("torch", reason="needs PyTorch, as of the extra dev")
    session._windows.clear()
    graphlink.capture._captures.clear()
    yield
    gc.collect()  # an observer that a failed recording left stays registered until its object goes
    assert not recording._running
    assert not torch.autograd._profiler_enabled()


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    started = Forked()
    yield started
    started.end()


@pytest.fixture
def train() -> Train:
    import torch

    layer = torch.nn.Linear(8, 8)

    def once() -> None:
        layer(torch.ones(4, 8)).sum().backward()

    return once
