from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from graphlink.engine import pool

SLOW = [HealthCheck.too_slow]  # as a busy machine is
settings.register_profile("quick", max_examples=25, deadline=None, suppress_health_check=SLOW)
settings.register_profile("thorough", max_examples=300, deadline=None, suppress_health_check=SLOW)  # of make test-all
settings.load_profile("quick")
RUN_IN_PROCESSES = pool.run_all
gc.set_threshold(50_000)  # not 700: what tests make is rarely cyclic, and hypothesis takes the time of each collection


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay, out of what the garbage collector looks through."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _ranks_in_turn() -> Iterator[None]:
    """Run jobs of ranks one after the other in this process: starting one for each small rank takes far longer than its
    work.
    """

    def in_turn(
        work: Callable[[Any], Any], tasks: Sequence[Any], at_once: int, done: Callable[[int], None] | None = None
    ) -> list[Any]:
        results = []
        for task in tasks:
            results.append(work(task))
            if done is not None:
                done(len(results))
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "run_all", in_turn)
        yield


@pytest.fixture
def rank_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs of ranks in processes, as a user's are."""
    monkeypatch.setattr(pool, "run_all", RUN_IN_PROCESSES)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """URL of a bucket as moto plays it on this machine; environment variables say where, to child processes too."""
    for package in ("fsspec", "s3fs", "moto"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install fsspec s3fs 'moto[server]'")
    import fsspec
    from moto.server import ThreadedMotoServer

    system = fsspec.get_filesystem_class("s3")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").makedirs("bucket", exist_ok=True)
        yield "s3://bucket"
    server.stop()
    system.clear_instance_cache()
