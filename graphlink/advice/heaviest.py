"""The work that delays a run most: whose it is, and what helps against work of its sort."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import UNSET

from graphlink.advice.on_host import PART, first_launches, launch_ns_of
from graphlink.advice.outputs import NVIDIA, Candidate, Outputs, beside, ranks_of, scaled, where_called, whose_work
from graphlink.advice.records import Advice
from graphlink.advice.uneven import FAR, HEAVY, LESS_PYTHON, SHARED, more_than_in_quick_steps
from graphlink.graph.families import PYTHON
from graphlink.model import NOWHERE, Bool
from graphlink.operations.records import Operation
from graphlink.patterns import AUTOGRAD_ENGINE, LAYOUT, LOADER, OPERATOR, escaped
from graphlink.records import counted, in_function, ms, shortened
from graphlink.replay.loader import loaders_of
from graphlink.replay.syncs import RUNTIME_CALL
from graphlink.replay.times import launches
from graphlink.replay.workload import Work, names_found
from graphlink.tables import how_many, sums

_SORTS: Final = {"host": Work.HOST, "compute": Work.KERNEL}
_SEVERAL: Final = 4  # launches of one call
_WHERE: Final = "; graphlink ops DIR shows what calls it[lines]"
_LOOK: Final = (
    "record Python's stacks (stacks=True in graphlink.capture): this time is in no op, but in Python, in compiled "
    "code, or in a thread that was not recorded, as that of the backward pass may be"
)
_HOOKS: Final = (
    "fewer or shorter hooks of gradients (register_hook, register_post_accumulate_grad_hook), which autograd calls "
    "there, one thread of Python at a time"
)
_ON_GPU: Final = "run it on the GPU (its module and its inputs there), or in a worker of the DataLoader" + _WHERE
_VIEWS: Final = (
    "it computes nothing, but makes tensors or views: call it less often (keep what it gives), or torch.compile of "
    "[code], which leaves it out" + _WHERE
)
_LAUNCHES: Final = (
    "call it less often, on larger tensors: one op on stacked ones, or torch._foreach_ ops, in place of a loop; or "
    "torch.compile of [code]" + _WHERE
)
_LAUNCHES_MANY: Final = (
    "let one launch do what it launches: torch.compile(mode='reduce-overhead') of [code], or torch.cuda.graph" + _WHERE
)
_ON_CPU: Final = (
    "call it less often, on larger tensors; more cores (torch.set_num_threads), bf16, a GPU; or torch.compile of "
    "[code]" + _WHERE
)
_FEWER_CALLS: Final = "make fewer of these calls: CUDA graphs, fewer and larger ops" + _WHERE
_FUSE: Final = (
    "torch.compile of [code]: where a kernel reads and writes much and computes little, as normalisations and sums do, "
    "it is fused with those beside it" + _WHERE
)
_ATTEND: Final = (
    "cuDNN's attention or FlashAttention-3 (flash_attn_interface) from Hopper on; less to attend to in [code] (a "
    "window, causal masks, shorter or packed sequences)" + _WHERE
)
_FUSE_ATTENTION: Final = (
    "scaled_dot_product_attention in [code] (of transformers: attn_implementation='sdpa'): one kernel for the two "
    "products and the softmax between, which writes no scores" + _WHERE
)
MATRIX: Final = re.compile(
    r"(?i)gemm|gemv|conv|[dw]grad|winograd|fft|fmha|attention|lstm|gru|rnn"
)  # else it serves one: layouts, sums
_MULTIPLIES: Final = (
    "it multiplies on tensor cores already, so what is left is less to multiply in [code]: larger products (one of a "
    "batch in place of a loop), sizes that are multiples of 64"
)
_IN_FP8: Final = re.compile(r"(?i)fp8|e4m3|e5m2")
_UNKNOWN: Final = "fewer calls of it, or smaller inputs, in [code]: its name does not tell what it does" + _WHERE
_LINES: Final = ", and with stacks=True in graphlink.capture in which lines"
_FLASH_2: Final = re.compile(r"flash::flash_(?:fwd|bwd)|fmha_cutlass|pytorch_flash::")  # before those for Hopper
_MAKES: Final = re.compile(  # ops that only make tensors or views of them
    r"aten::_?(?:empty\w*|resize_|as_strided_?|view\w*|reshape\w*|alias|detach_?|t|transpose_?|permute|expand\w*|slice|"
    r"select|narrow|squeeze_?|unsqueeze_?|unbind|split\w*|chunk|unsafe_view|set_|lift\w*)"
)


def heaviest(run: Outputs) -> Iterator[Candidate]:
    """Return the work of one name whose absence each rank would gain most from, where it is an op or a kernel that has
    no advice of its own; where none is, the kernel that takes most time."""
    of_ranks = {(top.name, top.share) for one in ranks_of(run) if (top := one.top_gain) is not UNSET}
    tops = [(name, share) for name, share in sorted(of_ranks) if share in _SORTS and not _advised(run, name)]
    usual_ns = launch_ns_of(run.work, launches(run.work), 0.5)
    for name, share in tops or [(name, "compute") for name in _longest_kernel(run)]:
        pattern = f"^{escaped(name)}$"
        mine = names_found(run.work, re.compile(pattern)) & (run.work.work == _SORTS[share])
        launching = bool(launches(run.work)[mine].any())
        whose = None if name == PYTHON else whose_work(run, mine)
        makes = _MAKES.fullmatch(name) is not None
        on_cpu = share == "host" and name.startswith("aten::") and not launching and not makes
        on_cpu = on_cpu and bool((run.work.work == Work.KERNEL).any())
        own = share == "host" and not (name == PYTHON or RUNTIME_CALL.fullmatch(name))
        in_range = own and not (OPERATOR.fullmatch(name) and (name.startswith("aten::") or launching))
        heavy = share == "host" and run.work.cost_ns[mine].mean() >= FAR * usual_ns
        odd_ns = more_than_in_quick_steps(run, mine) if share == "host" and name != PYTHON else 0
        odd = 2 * odd_ns > int(run.work.cost_ns[mine].sum())
        in_engine = AUTOGRAD_ENGINE.fullmatch(name) is not None
        told = ((name == PYTHON, LESS_PYTHON), (odd, SHARED), (in_engine, _HOOKS), (in_range, _LOOK), (makes, _VIEWS))
        todo = next(words for holds, words in (*told, *_by_what_it_does(run, mine, name, share, whose)) if holds)
        unit = "step" if name == PYTHON else "call" if share == "host" else "kernel"
        line = in_function(whose.stack[-1]) if whose and whose.stack else ""
        yield Candidate(
            Advice(
                kind="heaviest_work",
                what=f"{shortened(name)} "
                + ("is the work that delays the run most" if tops else "is the kernel that takes the GPUs longest"),
                evidence=f"{ms(run.selection.own_ns(mine))} ms in {counted(how_many(mine & ~run.work.is_part), unit)}"
                + ", on the CPU: it launches nothing" * on_cpu
                + ", outside of the ops in it" * (in_range or in_engine)
                + f", {ms(odd_ns)} ms of it more than in the quicker steps" * odd
                + where_called(whose, name),
                todo=todo.replace("[code]", line or "the code that calls it").replace("[lines]", _LINES * (not line)),
                supposed="if it took half of its time",
            ),
            scaled((_SORTS[share], pattern, 0.5)),
            PYTHON if name == PYTHON else f"{HEAVY} {name}" if heavy else "",
        )


def _advised(run: Outputs, name: str) -> bool:
    """Tell whether the work of a name has advice of its own: loaders, what most of them call, layouts, first launches
    of kernels."""
    mine, (loader, _) = names_found(run.work, re.compile(f"^{escaped(name)}$")), loaders_of(run.work)
    mine &= np.isin(run.work.work, [*_SORTS.values()])
    return bool(
        LOADER.fullmatch(name.removesuffix(PART))
        or LAYOUT.search(name)
        or first_launches(run.work, name).any()
        or 2 * run.work.cost_ns[mine & (loader != NOWHERE)].sum() > run.work.cost_ns[mine].sum()
    )


def _longest_kernel(run: Outputs) -> list[str]:
    """Return the name of the kernels that take most time, of those that have no advice of their own; [] without any."""
    family, names = run.work.names()
    ns = sums(len(names), family, np.where(run.work.work == Work.KERNEL, run.work.cost_ns, 0))
    order = np.argsort(-ns, kind="stable").tolist()
    return [names[which] for which in order if ns[which] and not LAYOUT.search(names[which])][:1]


def _by_what_it_does(
    run: Outputs, nodes: Bool, name: str, share: str, whose: Operation | None
) -> tuple[tuple[bool, str], ...]:
    """Return what makes an op or kernel take less time, each with whether it does, by what the op or kernel does."""
    per_call = int(launches(run.work)[nodes].sum()) / max(how_many(nodes & ~run.work.is_part), 1)
    uses = {kernel.tensor_cores for _, kernel in run.kernels if kernel.whole_name == name}
    path = whose.path if whose else []
    return (
        (
            share == "compute" and _FLASH_2.search(name) is not None and run.tools is NVIDIA,
            _ATTEND,
        ),
        (
            share == "compute"
            and not {"aten::softmax", "aten::_softmax"}.isdisjoint(path)
            and beside(run, whose, "^aten::(?:bmm|baddbmm)$"),
            _FUSE_ATTENTION,
        ),
        (
            share == "compute" and "used" in uses,
            _MULTIPLIES + ", fp8 where the GPU has it" * (_IN_FP8.search(name) is None) + _WHERE,
        ),
        (
            share == "compute" and "not_used" in uses and MATRIX.search(name) is not None,
            f"{run.tools.types}; sizes that are multiples of 8",
        ),
        (share == "compute" and "not_used" in uses, _FUSE),
        (share == "compute", _UNKNOWN),
        (RUNTIME_CALL.fullmatch(name) is not None, _FEWER_CALLS),
        (not (run.work.work == Work.KERNEL).any(), _ON_CPU),
        (not per_call, _ON_GPU),
        (per_call >= _SEVERAL, _LAUNCHES_MANY),
        (True, _LAUNCHES),
    )
