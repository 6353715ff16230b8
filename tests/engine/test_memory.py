"""How many jobs fit, told from trees like ``/proc`` and ``/sys/fs/cgroup``."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
import zstandard

from graphlink.engine import memory

GB = 10**9


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return Machine(tmp_path)


class Machine:
    """8 cores. ``proc`` and ``cgroup`` are trees in a temporary folder."""

    def __init__(self, folder: Path):
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.cgroup.mkdir()

    def memory_gb(self, available: float) -> None:
        kb = int(available * GB) // 1024
        (self.proc / "meminfo").write_text(f"MemTotal: 999999999 kB\nMemFree: 1 kB\nMemAvailable:   {kb} kB\n")

    def member_of(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def group(self, path: str, **files: str) -> None:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text + "\n")

    def workers(self, estimates: list[int], jobs: int | None = None) -> int:
        return memory.workers(estimates, jobs, self.proc, self.cgroup)

    def cores(self) -> int:
        return memory.cores(self.proc, self.cgroup)

    def available_bytes(self) -> int | None:
        return memory.available_bytes(self.proc, self.cgroup)


@pytest.mark.parametrize(
    ("available_gb", "estimates_gb", "expected"),
    [
        (100, [1] * 20, 8),  # cores
        (100, [1] * 3, 3),  # tasks
        (10, [2] * 20, 4),  # 8 of 10 GB
        (10, [6, 1, 1, 1], 3),  # the largest meet: 6 + 1 + 1
        (10, [1, 1, 1, 6], 3),
        (10, [9, 1], 1),  # not even one
        (10, [], 1),
    ],
)
def test_as_many_as_cores_and_memory_allow(
    machine: Machine, available_gb: int, estimates_gb: list[int], expected: int
) -> None:
    machine.memory_gb(available_gb + 0.001)
    assert machine.workers([size * GB for size in estimates_gb]) == expected


def test_the_users_word_holds_but_no_worker_is_idle(machine: Machine) -> None:
    machine.memory_gb(1)
    assert machine.workers([9 * GB] * 20, jobs=12) == 12
    assert machine.workers([9 * GB] * 5, jobs=12) == 5


def test_unknown_memory_limits_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf_names", {}, raising=False)
    assert machine.available_bytes() is None
    assert machine.workers([900 * GB] * 20) == 8


def test_without_proc_the_system_is_asked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf_names", dict.fromkeys(answers, 0))
    monkeypatch.setattr(os, "sysconf", answers.__getitem__)
    assert machine.available_bytes() == 4_096_000


def test_memory_of_a_v2_cgroup_counts_dropable_cache_as_free(machine: Machine) -> None:
    machine.memory_gb(64)
    machine.member_of("0::/slice/job")
    machine.group("slice/job", memory__max="max", memory__current="5000000000")
    machine.group(
        "slice", memory__max="8000000000", memory__current="7000000000", memory__stat="anon 1\ninactive_file 3000000000"
    )
    assert machine.available_bytes() == 4 * GB
    machine.group(
        "slice/job", memory__max="2000000000", memory__current="1500000000", memory__stat="anon 1\ninactive_file 0"
    )
    assert machine.available_bytes() == GB // 2


def test_memory_of_a_v1_cgroup_seen_from_within_a_container(machine: Machine) -> None:
    machine.memory_gb(64)
    machine.member_of("4:memory:/docker/abc", "2:cpu,cpuacct:/docker/abc", "0::/")
    machine.group(
        "memory",
        memory__limit_in_bytes="3000000000",
        memory__usage_in_bytes="1000000000",
        memory__stat="total_inactive_file 500000000",
    )
    assert machine.available_bytes() == 2_500_000_000


def test_an_overdrawn_cgroup_has_nothing_left(machine: Machine) -> None:
    machine.memory_gb(64)
    machine.member_of("0::/")
    machine.group(".", memory__max="1000", memory__current="2000")
    assert machine.available_bytes() == 0
    assert machine.workers([GB] * 4) == 1


@pytest.mark.parametrize(
    ("inner", "outer", "cores"),
    [
        ("max 100000", "max 100000", 8),
        ("200000 100000", "max 100000", 2),
        ("max 100000", "150000 100000", 2),
        ("5000 100000", "300000 100000", 1),
    ],
)
def test_cpu_quota_of_v2(machine: Machine, inner: str, outer: str, cores: int) -> None:
    machine.member_of("0::/slice/job")
    machine.group("slice/job", cpu__max=inner)
    machine.group("slice", cpu__max=outer)
    assert machine.cores() == cores


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("300000", 3)])
def test_cpu_quota_of_v1(machine: Machine, folder: str, quota: str, cores: int) -> None:
    machine.member_of("2:cpu,cpuacct:/job")
    machine.group(f"{folder}/job", cpu__cfs_quota_us=quota, cpu__cfs_period_us="100000")
    assert machine.cores() == cores


def test_this_machine_says_something() -> None:
    assert memory.cores() >= 1
    available = memory.available_bytes()
    assert available is None or available > 0


TEXT = b'{"ph": "X", "cat": "cpu_op"},\n' * 40_000


def unpacked(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    return memory.unpacked_bytes(path)


@pytest.mark.parametrize("size", [0, 1, 100, 255, 256, 300, 65_791, 65_792, 1_200_000])
def test_the_unpacked_size_is_that_of_what_was_packed(tmp_path: Path, size: int) -> None:
    text = TEXT[:size]
    assert unpacked(tmp_path / "a", text) == size
    if size > 100:  # less grows when packed
        assert unpacked(tmp_path / "b", gzip.compress(text)) == size
        assert unpacked(tmp_path / "c", zstandard.compress(text)) == size


def test_zstd_without_a_size_counts_twenty_times(tmp_path: Path) -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    assert unpacked(tmp_path / "a", packed) == 20 * len(packed)


def test_a_gzip_size_that_cannot_be_counts_twenty_times(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT) + gzip.compress(b"")  # as bgzip ends its files
    assert unpacked(tmp_path / "a", packed) == 20 * len(packed)


def test_a_gzip_size_above_4_gib_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\x1f\x8b" + bytes(16))
    os.truncate(path, 400_000_000)  # sparse
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write((7 * GB % 2**32).to_bytes(4, "little"))
    assert memory.unpacked_bytes(path) == 7 * GB


def test_cut_headers_and_what_is_no_file(tmp_path: Path) -> None:
    assert unpacked(tmp_path / "a", b"\x1f\x8b\x08") == 3
    assert unpacked(tmp_path / "b", b"\x28\xb5\x2f\xfd") == 80
    assert memory.unpacked_bytes(tmp_path) == 0
    assert memory.unpacked_bytes(tmp_path / "none") == 0
    os.mkfifo(tmp_path / "fifo")
    assert memory.unpacked_bytes(tmp_path / "fifo") == 0  # and does not wait for a writer


def test_the_estimate_is_near_the_measured_peaks() -> None:
    for unpacked_bytes, peak_bytes in ((994_519, 123_617_280), (106_704_418, 224_141_312), (356_888_525, 472_317_952)):
        assert 0.95 < memory.estimate_bytes(unpacked_bytes) / peak_bytes < 1.15


def test_a_binary_trace_counts_as_its_text(tmp_path: Path) -> None:
    assert (
        unpacked(tmp_path / "kineto_0.pftrace", TEXT)
        == unpacked(tmp_path / "b.pftrace.gz", gzip.compress(TEXT))
        > len(TEXT)
    )
