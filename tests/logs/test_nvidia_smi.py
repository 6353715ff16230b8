"""Logs of nvidia-smi are read, or refused with a reason; nothing is dropped without being counted."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from graphlink.errors import InputError
from graphlink.logs.nvidia_smi import read_nvidia_smi
from graphlink.logs.records import Figure
from tests.logs.smi_variants import CSV, SMI, Variant, screen


def shown(value: object) -> object:
    return (value.mean, value.max) if isinstance(value, Figure) else value


@pytest.mark.parametrize("variant", SMI.values(), ids=SMI)
def test_it_is_read_or_refused_with_a_reason(variant: Variant, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(variant.text if isinstance(variant.text, bytes) else variant.text.encode())
    if variant.refused:
        with pytest.raises(InputError, match=variant.refused) as refused:
            read_nvidia_smi([path])
        assert "--query-gpu=" in refused.value.text()
        return
    (log,) = read_nvidia_smi([path])
    gpus = {(gpu.host, gpu.gpu): gpu for gpu in log.gpus}
    assert {*gpus} == {*variant.gpus}
    for which, figures in variant.gpus.items():
        assert {name: shown(getattr(gpus[which], name)) for name in figures} == figures
    for reason, count in variant.unread.items():
        assert log.unread[reason] == count
    if not variant.unread and "cut" not in str(log.unread):
        assert set(log.unread) <= {"row of processes", "before a header"}
    assert b"hunter2" not in msgspec.json.encode(log)


def test_samples_and_absent_ones_are_all_samples(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(CSV.replace("310.50 W", "[N/A]"))
    power = read_nvidia_smi([path])[0].gpus[0].power_w
    assert power is not None and (power.samples, power.absent) == (1, 1)


def test_the_host_of_several_files_is_their_name(tmp_path: Path) -> None:
    paths = [tmp_path / "node1.csv", tmp_path / "node2.csv.gz", tmp_path / "a" / "smi.csv", tmp_path / "b" / "smi.csv"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(CSV.encode()) if path.suffix == ".gz" else CSV.encode())
    hosts = [log.gpus[0].host for log in read_nvidia_smi(paths)]
    assert hosts == ["node1", "node2", str(paths[2]), str(paths[3])]


def test_what_tells_gpus_apart_is_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text, apart in ((CSV, True), (screen(), True), ("utilization.gpu [%]\n98 %\n", False)):
        path.write_text(text)
        assert read_nvidia_smi([path])[0].told_apart is apart


def test_a_line_of_any_length_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(CSV + "x" * 5_000_000 + "\n" + CSV)
    (log,) = read_nvidia_smi([path])
    assert (log.gpus[0].samples, log.unread) == (4, {"line too long": 1})
