from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# neither asks how busy the machine is
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """URL of a bucket as moto plays it on this machine; environment variables say where, to child processes too."""
    for package in ("fsspec", "s3fs", "moto"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install fsspec s3fs 'moto[server]'")
    import fsspec
    from moto.server import ThreadedMotoServer

    system = fsspec.get_filesystem_class("s3")
    system.clear_instance_cache()  # it knows the address of another module's server
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    with pytest.MonkeyPatch.context() as patch:
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        fsspec.filesystem("s3").makedirs("bucket", exist_ok=True)  # all servers of a process have the same buckets
        yield "s3://bucket"
    server.stop()
    system.clear_instance_cache()
