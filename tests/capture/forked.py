"""Programs that use PyTorch, each in a process of its own, forked from one that has imported it: importing takes far longer
than they run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
# imports, then forks a child a request: {"argv": its words, "source": its text, or else the first word names its file}
PARENT = """
import gc, json, os, runpy, socket, sys
import torch, torch._dynamo, torch.distributed.rpc, graphlink.capture
gc.freeze()  # or each child would look through all that was imported when it ends
with socket.socket(fileno=int(sys.argv[1])) as asked:
    while True:
        said, ends, _, _ = socket.recv_fds(asked, 1 << 20, 2)
        if not said:
            sys.exit()
        out, err = ends
        child = os.fork()
        if not child:
            break
        os.close(out), os.close(err)
        asked.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
os.dup2(out, 1), os.dup2(err, 2), os.close(out), os.close(err)
sys.argv, source = json.loads(said)
if source is None:
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
else:
    exec(compile(source, "<string>", "exec"), vars(sys.modules["__main__"]))
"""


class Forked:
    """Runs programs one after the other, as ``python -W ignore`` does."""

    def __init__(self) -> None:
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-W", "ignore", "-c", PARENT, str(there.fileno())]
        self._parent = subprocess.Popen(command, cwd=ROOT, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
        there.close()

    def run(self, program: str | Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a file, or a source text; return its status and what it printed."""
        source = program if isinstance(program, str) else None
        words = ["-c" if source else str(program), *map(str, arguments)]
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        socket.send_fds(self._here, [json.dumps([words, source]).encode()], [out_end, err_end])
        os.close(out_end)
        os.close(err_end)
        with os.fdopen(out) as printed, os.fdopen(err) as told, ThreadPoolExecutor(1) as beside:
            errors = beside.submit(told.read)
            text = printed.read()
            status = int(self._here.recv(64))
            return subprocess.CompletedProcess(words, status, text, errors.result())

    def end(self) -> None:
        self._here.close()
        self._parent.wait(600)
