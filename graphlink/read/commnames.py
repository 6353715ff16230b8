"""Names of kernels in full and in short; and communication by names: kernels by the table of libraries below, host ops
and ranges by the collective that they name.

A kernel's name counts more than what stands around its launch: an op of communication launches copies and computation
too (PyTorch flattens inside ``c10d::allgather_``). Template arguments and parameters of a kernel are no part of its
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

import numpy as np

from graphlink.model import I32, U8
from graphlink.patterns import DIGITS

_BACKENDS: Final = r"(?!cccl)[a-z]{1,3}ccl"  # CCCL is CUDA's library of scans and sorts
_BACKEND_NAMES: Final = "NCCL, RCCL, MSCCL, oneCCL, HCCL, MCCL"


class Meaning(IntEnum):
    """Meaning of a name. BACKEND: communication, by the library of a process group, whose calls PyTorch records."""

    NOTHING = 0
    COMPUTATION = 1
    DOUBTFUL = 2
    COMMUNICATION = 3
    BACKEND = 4


# Libraries that do nothing but communicate, their bookkeeping (layouts, notifications, barriers) included: what is
# searched for in the qualified names of their kernels, whatever the case. A comment says where those stand.
LIBRARIES: Final = {
    # NVIDIA/nccl src/device/generate.py (ncclDevKernel_*, ncclSymkDevKernel_*; before 2.19 ncclKernel_*), ROCm/rccl
    # (ncclDevKernel_Generic, rcclGenericKernel, mscclKernel_*), intel/torch-xpu-ops issue 5384 (oneccl_reduce_base),
    # Ascend msprof (hcom_allReduce__*)
    _BACKEND_NAMES: rf"^(nccl|rccl|({_BACKENDS})(?-i:(?![a-z]))|hcom_)",
    # NVIDIA/nvshmem src/host/comm (nvshmemi_proxy_rma_entrypoint, ...)
    "NVSHMEM, rocSHMEM": r"(^|::|_)(nv|roc)shmem",
    # microsoft/mscclpp (namespace mscclpp)
    "MSCCL++": r"(^|::)mscclpp",
    # deepseek-ai/DeepEP csrc/kernels (namespace deep_ep; dpsk::ep in DeepSeek's own recordings), csrc/hybrid_ep
    "DeepEP, Hybrid-EP": r"(^|::)(deep_ep|hybrid_ep|dpsk::ep)::|(^|::)(inter|intra)node(_ll)?::",
    # ROCm/mori src/ops/dispatch_combine (EpDispatchIntraNodeKernel, ...)
    "MORI": r"(^|::)mori::|(^|::)Ep(Dispatch|Combine)",
    # vllm-project/vllm csrc/custom_all_reduce.cuh, csrc/quickreduce; sgl-project/sglang sgl-kernel/csrc/allreduce;
    # ROCm/aiter
    "custom all-reduce of vLLM, SGLang, AITER": r"cross_device_(reduce|store)|(^|::)quickreduce::",
    # NVIDIA/TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels; flashinfer-ai/flashinfer
    # include/flashinfer/comm
    "TensorRT-LLM, FlashInfer": r"(^|::)(ar_fusion|moe_comm|moe_a2a|mnnvl)::|(^|::|_)moeA2A",
    # NVIDIA/TransformerEngine userbuffers.cu
    "user buffers of Transformer Engine, TensorRT-LLM": r"(^|::)k?userbuffers_",
    # pytorch/pytorch torch/csrc/distributed/c10d/symm_mem (multimem_all_reduce_kernel,
    # c10d::symmetric_memory::barrier_kernel, ...)
    "symmetric memory of PyTorch": r"(^|::)multimem_|(^|::)c10d::",
}
_BACKEND: Final = re.compile(LIBRARIES[_BACKEND_NAMES], re.IGNORECASE)
_LIBRARY: Final = re.compile(
    "|".join(f"(?:{kernels})" for name, kernels in LIBRARIES.items() if name != _BACKEND_NAMES), re.IGNORECASE
)

# What follows is searched for in names in lower case with "_" before each capital letter.
_COLLECTIVE: Final = re.compile(r"(?<![a-z])(all_?reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all)")
# of the threads of one device: cub and everybody's softmax
_LOCAL: Final = re.compile(
    r"(?<![a-z])(warp|wave|block|cluster|cta|grid|thread|lane|quad|sub_?group|tile)_?all_?reduce"
)
# together with the name of a collective: computation in parallel with it, or only its preparation
_BESIDE: Final = re.compile(
    r"gemm|matmul|linear|attention|softmax|copy_(in|out)|flatten|(?<![a-z])(mm|attn|conv\d?d?|(un)?pack|permute)(?![a-z])"
)
# by nothing but its name any of the two: the exchange itself, or what sorts its input and adds its output up
_EITHER: Final = re.compile(
    r"(?<![a-z0-9])(dispatch|combine|i?send|i?recv|send_?recv|peer|p2p|ipc|rdma|ibgda|multicast|a2a|symm_mem|nvlink)(?![a-z0-9])"
)
_ATTENTION: Final = re.compile(r"att(n|ention)|split_?kv?|(?<![a-z])(lse|mla|fwd|bwd|decode|varlen)(?![a-z])")
# libraries that do not communicate, kernels of torch.compile (named after the ops whose results they take) and of BLAS
# libraries
_COMPUTES: Final = re.compile(
    r"^(at|at_cuda_detail|c10|cub|thrust|hipcub|rocprim|cutlass\w*|cublas\w*|cudnn\w*|cusparse\w*|ck|ck_tile|magma\w*|flash|flash_attn\w*|"
    r"pytorch_flash|fmha\w*|layer_norm|deep_gemm|vision)::|^(triton_\w*fused_|cijk_|sm\d\d+_|(ampere|volta|turing|maxwell)_|nvjet)"
)
_COMPUTATION: Final = re.compile(
    r"elementwise|gemm|gemv|matmul|split_?k|softmax|norm|winograd|fft|embedding|transpose|fill|cat_?array|copy|cast|quant|(^|_)reduce_kernel"
)

_RANGE: Final = re.compile(rf"(?:{_BACKENDS}|ucc|mpi):(?!:)", re.IGNORECASE)
_CALL: Final = re.compile(r"record_param_comms$|(_?c10d(_functional)?|symm_mem)::")
_OTHER_OPS: Final = (
    "aten",
    "autograd",
    "fsdp",
    "prims",
)  # fsdp::all_gather_copy_in prepares, autograd::engine::... runs anything
_HIDDEN: Final = re.compile(r"\(anonymous namespace\)|`anonymous namespace'|\{anonymous\}|\(anonymous\)")
_INNERMOST: Final = re.compile(r"<[^<>]*>")
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_MANGLED: Final = re.compile(r"_ZN?K?")
_GENERAL: Final = re.compile(r"(?i)kernel\d?|device_kernel|global_?kernel|trampoline_kernel")
_FIRST: Final = re.compile(r"<\s*([A-Za-z_][\w:]*)")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


def meanings(strings: Sequence[str], names: I32, meaning: Callable[[str], int]) -> U8:
    """Return the ``meaning`` of each of ``names`` (indices into ``strings``); it is asked once for each that occurs."""
    out = np.zeros(len(strings), np.uint8)
    for code in np.flatnonzero(np.bincount(names, minlength=len(strings))).tolist():
        out[code] = meaning(strings[code])
    return out[names]


def kernel_path(name: str) -> str:
    """Return the qualified name of a kernel: ``void vllm::reduce<float, 2>(float*)`` -> ``vllm::reduce``; mangled names
    likewise.
    """
    if name.startswith("_Z"):
        return _demangled(name) or name
    bare, previous = _HIDDEN.sub("", name), ""
    while bare != previous:
        bare, previous = _INNERMOST.sub("", bare), bare
    bare = re.split(r"[<(\[]", bare, maxsplit=1)[0].strip().removesuffix(".kd")
    return bare.rsplit(" ", 1)[-1].replace("::::", "::").removeprefix("::") or name


def _demangled(name: str) -> str:
    """Return the identifiers of an Itanium-mangled function name, without template arguments."""
    found = _MANGLED.match(name)
    assert found, name
    at, parts = found.end(), []
    while number := DIGITS.match(name, at):
        at = number.end() + int(number[0])
        part = name[number.end() : at]
        if not part.startswith("_GLOBAL__N_"):
            parts.append(part)
        if not found[0].startswith("_ZN"):
            break
    return "::".join(parts)


def short_name(name: str) -> str:
    """Return the short name of a kernel, without namespaces; linear.

    ``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(...)`` is
    ``vectorized_elementwise_kernel<CUDAFunctor_add>``.
    """
    if name.startswith(("Memcpy", "Memset", "CUDA graph")):
        return name
    path = kernel_path(name)
    last = path.rpartition("::")[2] or path
    if name.startswith("_Z"):
        return last
    if _GENERAL.fullmatch(last):
        first = _FIRST.search(name)
        what = first[1].rpartition("::")[2] if first else ""
    else:
        functors = (w for w in _WORD.findall(name) if "functor" in w.lower() or w.endswith(("_kernel_cuda", "Ops")))
        what = next((word for word in functors if word != last), "")
    return f"{last}<{what}>" if what and what != last else last


def kernel_meaning(name: str) -> Meaning:
    """Classify a kernel by its name; a collective among its template arguments or parameters alone leaves doubt."""
    path = kernel_path(name)
    if _BACKEND.search(path):
        return Meaning.BACKEND
    if _LIBRARY.search(path):
        return Meaning.COMMUNICATION
    plain = _plain(path)
    computes = _COMPUTES.search(plain) is not None
    if _names_collective(plain):
        if computes:
            return Meaning.COMPUTATION
        return Meaning.DOUBTFUL if _BESIDE.search(plain) else Meaning.COMMUNICATION
    if _names_collective(_plain(name)):
        return Meaning.DOUBTFUL
    if not computes and _EITHER.search(plain) and not _ATTENTION.search(plain):
        return Meaning.DOUBTFUL
    return Meaning.COMPUTATION if computes or _COMPUTATION.search(plain) else Meaning.NOTHING


def op_meaning(name: str) -> Meaning:
    """Classify a kernel by the op that launched it directly: only an op of a library (``vllm::all_reduce``) is a call
    of it.
    """
    library, _, op = name.partition("::")
    plain = _plain(name)
    if not (_CALL.match(name) or (op and "::" not in op and library not in _OTHER_OPS and _names_collective(plain))):
        return range_meaning(name)
    return Meaning.DOUBTFUL if _BESIDE.search(plain) or "fused" in plain else Meaning.COMMUNICATION


def range_meaning(name: str) -> Meaning:
    """Classify a kernel by a range around it: one of a process group (``nccl:all_reduce``) is its call, in others
    anything may run.
    """
    if _RANGE.match(name):
        return Meaning.COMMUNICATION
    return Meaning.DOUBTFUL if _names_collective(_plain(name)) else Meaning.NOTHING


def _names_collective(plain: str) -> bool:
    return _COLLECTIVE.search(plain) is not None and not _LOCAL.search(plain)


def _plain(name: str) -> str:
    return _CAPITAL.sub("_", name).lower()
