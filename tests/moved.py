"""Moves the device's clock in a Kineto file: what a recording of the same run looks like whose device clock is ahead.

    python -m tests.moved IN.json[.gz] OUT.json[.gz] US

Device rows are kernels, copies, memsets and their annotations; ``cuda_sync`` rows are on the host's clock.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Final

ON_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation"})


def moved(source: Path, target: Path, us: float) -> None:
    """Writes ``source`` with its device rows ``us`` later; gzip where the names end in ``.gz``."""
    text = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    document = json.loads(text)
    for row in document["traceEvents"]:
        if str(row.get("cat")).lower() in ON_DEVICE and "ts" in row:
            row["ts"] = round(float(row["ts"]) + us, 3)
    out = json.dumps(document).encode()
    target.write_bytes(gzip.compress(out, 1) if target.suffix == ".gz" else out)


if __name__ == "__main__":
    moved(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
