from __future__ import annotations

import gzip
import re
import shlex
from pathlib import Path

import pytest

from tests.simulator.__main__ import main

FIXTURES = Path(__file__).parents[2] / "fixtures"
COMMANDS = re.findall(
    r"^python -m tests\.simulator make fixtures/(\S+)(.*)$", (FIXTURES / "README.md").read_text(), re.MULTILINE
)


def content(path: Path) -> bytes:
    """Of a gzip file what is in it: its header differs between Python versions."""
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@pytest.mark.parametrize(("folder", "options"), COMMANDS, ids=[folder for folder, _ in COMMANDS])
def test_the_command_in_the_readme_makes_the_fixture(folder: str, options: str, tmp_path: Path) -> None:
    main(["make", str(tmp_path), *shlex.split(options)])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(
        path.name for path in (FIXTURES / folder).iterdir() if path.name.startswith(("et_", "kineto_"))
    )
    for name in names:
        assert content(tmp_path / name) == content(FIXTURES / folder / name), name
        assert (FIXTURES / folder / name).stat().st_size < 150_000


def test_every_fixture_has_a_command() -> None:
    made = {path.parent.name for path in FIXTURES.glob("*/et_*")}
    assert made == {folder for folder, _ in COMMANDS}


def test_wrong_usage_ends_with_status_2(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["make", str(tmp_path), "--dialect", "1999"])
    assert stopped.value.code == 2
