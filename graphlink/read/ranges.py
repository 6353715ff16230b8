"""Distinguish ranges from ops where a recording has both in one category.

PyTorch says so by category since 2021 (``RecordScope::USER_SCOPE`` is written as ``user_annotation``). Before,
``ProfilerStep#N``, ``Optimizer.*``, ``enumerate(DataLoader)#*`` and what users named by ``record_function`` stood among
the ops, as ``Operator``. A thread that is idle inside a range may sleep, inside an op it may not, so that which of the
two it is decides what threads wait for. A recording mixes the two where no category says annotation, and its categories
are old ones (``Operator``) or PyTorch's own ranges are among its ops.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np

from graphlink.model import I32, I64, Bool
from graphlink.patterns import fits
from graphlink.tables import marked, successive

# Ranges in any recording:
# names that PyTorch's profiler, optimizers, data loaders and process groups give (profiler.py, optimizer.py,
# dataloader.py, Work.cpp).
RANGE: Final = re.compile(
    r"ProfilerStep\s?#\d+|Optimizer\.\w+#.*|enumerate\(DataLoader\)#.*|(?:nccl|gloo|mpi|ucc|xccl):\w+"
)
# Ops of the dispatcher and nodes of autograd: ``aten::add``, ``torch::autograd::AccumulateGrad``, ``ReluBackward1``.
_OP: Final = re.compile(r".*::.*|\w*Backward\d*|record_param_comms", re.DOTALL)
_IDENTIFIER: Final = re.compile(r"[\w.]+")  # as ops, autograd.Function classes and generated kernels are named
_NO_INPUTS: Final = ("", "[]")


def unnamed_ranges(name: I32, strings: Sequence[str], shapes: I32, numbered: Bool, around: Bool) -> Bool:
    """Return which rows are ranges by what they lack, in a recording that mixes ranges and ops.

    Such a row's name is no operator's or autograd node's, it has neither inputs nor a number of autograd
    (``numbered``), which ``record_function`` never has, and its name is no identifier or another row of its thread runs
    inside it (``around``).
    """
    nothing = np.fromiter((text in _NO_INPUTS for text in strings), np.bool_, len(strings))
    bare = nothing[shapes] & ~numbered & ~fits(_OP, strings)[name]
    return bare & (~fits(_IDENTIFIER, strings)[name] | around)


def around_others(start_ns: I64, end_ns: I64, tid: I64) -> Bool:
    """Return whether the next row of a row's thread, by start and then the longest first, lies inside it."""
    before, after = successive(np.lexsort((-end_ns, start_ns, tid)), tid)
    return marked(len(tid), before[end_ns[after] <= end_ns[before]])
