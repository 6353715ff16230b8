"""Logs of Megatron are read, or refused with a reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from graphlink.errors import InputError
from graphlink.logs.megatron import MOST_TIMERS, read_megatron
from tests.logs.megatron_variants import MEGATRON, Variant


@pytest.mark.parametrize("variant", MEGATRON.values(), ids=MEGATRON)
def test_it_is_read_or_refused_with_a_reason(variant: Variant, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(variant.text if isinstance(variant.text, bytes) else variant.text.encode())
    if variant.refused:
        with pytest.raises(InputError, match=variant.refused) as refused:
            read_megatron([path])
        assert "elapsed time per iteration" in refused.value.text()
        return
    (log,) = read_megatron([path])
    memory = [
        (m.rank, m.lines, m.allocated_mib, m.max_allocated_mib, m.reserved_mib, m.max_reserved_mib) for m in log.memory
    ]
    has = dict(variant.has)
    assert memory == has.pop("ranks", [])
    assert {name: getattr(log, name) for name in has} == has
    assert {name: (t.mean_ms, t.min_ms, t.max_ms) for name, t in log.timers.items()} == variant.timers
    assert log.unread == variant.unread
    assert b"hunter2" not in msgspec.json.encode(log)


def test_timers_without_end_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text("".join(f"time (ms) | timer{k}: 1.0\n" for k in range(MOST_TIMERS + 3)))
    (log,) = read_megatron([path])
    assert (len(log.timers), log.unread) == (MOST_TIMERS, {f"timer beyond {MOST_TIMERS}": 3})


def test_times_beyond_all_sums_are_no_times(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    step = " iteration {}/ 9 | elapsed time per iteration (ms): {} | learning rate: 1.0E-04 |\n"
    lines = [*(step.format(k + 1, "9e307") for k in range(3)), step.format(4, "5.0")]
    path.write_text("".join([*lines, "time (ms) | forward: 9e307 | backward: inf\n" * 3]))
    (log,) = read_megatron([path])
    assert log.timers == {}
    assert log.unread == {"step time is no positive number": 3, "timer is no time": 6}
