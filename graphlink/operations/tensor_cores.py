"""Whether kernels use tensor cores (matrix cores), by their names; and whether ops could, by their names and types.

A name tells that a kernel uses them, that it does not, or neither: such a name is unknown, and is counted as that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from graphlink.model import Gpu
from graphlink.read.commnames import kernel_path


class Use(IntEnum):
    """What the name of a kernel tells. NONE: it is no computation (communication, a copy)."""

    USED = 0
    NOT_USED = 1
    UNKNOWN = 2
    NONE = 3


# These are searched for in names in lower case, as a whole with all template arguments; each is linear in the length of
# a name. First what rules tensor cores out: kernels of plain arithmetic, among them those of families that have both
# (``sm80_xmma_gemm_..._ffma_...``), and the helpers of such families.
_PLAIN: Final = re.compile(
    r"simt|ffma|universalfma|gemv|scudnn|splitkreduce|reducesplitk|split_k_kernel|init_device_workspace|compute(wgrad)?(splitk)?b?offsets"
    r"|subtensorop"
)
_SINGLE: Final = re.compile(
    r"(?<![a-z])(gc|[sdcz])gemm|[^a-z][sdcz]gemm(?![a-z])|convolve_sgemm"
)  # unless a tensor core is named too
_UNITS: Final = re.compile(
    r"(?<!\d)[a-z](884|1688|8816|16816|16832)(?!\d)|tensor\d+x\d+x\d+|(?<![a-z])(h|i|q|w|g|wg|hg|qg|ig|utc)?mma(_sync)?(?![a-z])"
    r"|tensor_?op(?!erat)|tcgen05|nvjet|tf32|dgrad_1x1_stride_2x2|first_layer_wgrad_kernel|conv1x1|conv2d_c1_k1|direct_group"
    r"|flash_?(fwd|bwd|attn)|flash::compute_attn|fmha|mfma|xdl(ops)?"
)
# Words that only together name such units: families of cuDNN and cuBLAS, arithmetic of 8 bits, which nothing else has;
# Tensile, MIOpen.
_TOGETHER: Final = tuple(
    (re.compile(one), re.compile(other))
    for one, other in (
        (r"xmma", r"_(implicit_gemm|gemm|sparse_gemm|sparse_conv|warp_specialized)"),
        (r"gemm", r"fp8|e4m3|e5m2"),
        (r"cijk_", r"_mi\d+x\d+"),
        (r"igemm_", r"gtcx\d"),
    )
)
_HELPERS: Final = tuple(
    (re.compile(one), re.compile(other))
    for one, other in (
        (r"flash", r"dot_do_o|convert_d|combine|preprocess|postprocess"),
        (r"fmha_cutlass[fb]_f32_", r"sm(50|60|70|75)(?!\d)"),  # before sm80 no tensor core takes 32 bits
    )
)
# Namespaces and words of kernels that multiply no matrices, searched for in the qualified name without template
# arguments.
_OTHERS: Final = re.compile(
    r"^(at|at_cuda_detail|c10|cub|thrust|hipcub|rocprim|layer_norm|fbgemm_gpu|multi_tensor_apply)::|^triton_(poi|red|per)_"
    r"|elementwise|softmax|norm|embedding|transpose|fill|copy|cast|quant|reduce|scan|sort|gather|scatter|dropout|pool|adam|sgd|lamb"
    r"|multi_tensor|memset|memcpy|arange|distribution|topk|argmax|im2col|im2d2col|col2im|winograd|fft|nchwtonhwc|nhwctonchw|rotary|rope"
    r"|swiglu|gelu|silu|relu|sigmoid|activation|cat_?array|upsample|interpolate|bounds_check|(?<![a-z])(add|mul|div|loss|mask|bias)(?![a-z])"
    r"|((w|d)grad|fprop)(2d)?(_alg\d)?(_engine|_\d)|(^|::)bn_[fb]w|scalepackedtensor|flip_filter|pointwise|indexing|criterion|cucompute|epilogue::"
    r"|gemmk1|gemmsn_|dot_kernel|lamport|spin_kernel"
)


def use_of(name: str) -> Use:
    """Tell from the name of a kernel whether it uses tensor cores."""
    whole, path = name.lower(), kernel_path(name).lower()
    if _PLAIN.search(whole) or _both(_HELPERS, whole):
        return Use.NOT_USED
    if _UNITS.search(whole) or _both(_TOGETHER, whole):
        return Use.NOT_USED if _OTHERS.match(path) and "gemm" not in path else Use.USED
    return Use.NOT_USED if _SINGLE.search(whole) or _OTHERS.search(path) else Use.UNKNOWN


def _both(pairs: Sequence[tuple[re.Pattern[str], re.Pattern[str]]], name: str) -> bool:
    return any(one.search(name) and other.search(name) for one, other in pairs)


_ELIGIBLE: Final = re.compile(
    r"aten::(_?convolution(_backward|_double_backward|_overrideable)?|_?conv(_?\d?d|_tbc|_transpose)\w*|(cudnn|miopen|mkldnn)_convolution\w*"
    r"|_?thnn_conv\w*|_?slow_conv\w*|(cudnn|miopen)_depthwise_convolution\w*|_?addmm(_activation)?_?|addmv_?|addr_?|matmul\w*|mm|mv|linear\w*"
    r"|addbmm_?|baddbmm_?|bmm|chain_matmul|linalg_multi_dot|linalg_matmul|dot|(_thnn_fused_)?(lstm|gru|rnn)\w*|_(cudnn|miopen)_rnn\w*"
    r"|_?scaled_dot_product_\w*|_?(flash|efficient|cudnn)_attention_\w*|_int_mm|_scaled_mm|_(scaled_)?grouped_mm|_addmm_activation"
    r"|miopen_rnn\w*)"
)


def is_eligible(op: str) -> bool:
    """Tell whether an op of this name is one that libraries can run on tensor cores, its backward included."""
    return _ELIGIBLE.fullmatch(op) is not None


# As Kineto, execution traces and C++ spell the types of tensors.
_TYPES: Final = {
    "c10::half": "float16", "half": "float16", "c10::bfloat16": "bfloat16", "float": "float32", "double": "float64",
    "signed char": "int8", "unsigned char": "uint8", "c10::float8_e4m3fn": "float8_e4m3fn",
    "c10::float8_e5m2": "float8_e5m2", "c10::float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::float8_e5m2fnuz": "float8_e5m2fnuz", "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}  # fmt: skip
_WORD: Final = re.compile(r"""["(\[]\s*(?:Tensor\()?([^"()\[\],]+)""")


def dtype_of(recorded: str) -> str:
    """Return the type of the first tensor of floats or bytes among recorded input types, as PyTorch names it; "" where
    there is none.
    """
    found = (_TYPES.get(word.strip().lower()) for word in _WORD.findall(recorded))
    return next((dtype for dtype in found if dtype), "")


_NVIDIA: Final = re.compile(r"(?i)nvidia|tesla|geforce|quadro|titan|(^|\W)(RTX|GTX)\b")
_WITHOUT: Final = re.compile(r"(?i)\bGTX 16|\bMX[345]|\bT(400|600|1000)\b")  # of Turing, without the units
_FLOAT8: Final = ("float8_e4m3fn", "float8_e5m2")


def types_taken(gpus: Sequence[Gpu]) -> frozenset[str] | None:
    """Return the types that the tensor cores of these devices take, float32 as TF32; None where generations differ or
    are not known.

    CUDA's Programming Guide, "Warp Matrix Functions", by compute capability; devices of other makers are not known.
    """
    taken = {_taken(gpu) for gpu in gpus}
    return taken.pop() if len(taken) == 1 else None


def _taken(gpu: Gpu) -> frozenset[str] | None:
    if gpu.capability is None or not _NVIDIA.search(gpu.name):
        return None
    if gpu.capability < (7, 0) or _WITHOUT.search(gpu.name):
        return frozenset()
    out = {"float16"}
    if gpu.capability >= (7, 2):
        out |= {"int8", "uint8"}
    if gpu.capability >= (8, 0):
        out |= {"bfloat16", "float32"}
    if gpu.capability == (8, 0) or gpu.capability >= (9, 0):
        out.add("float64")
    if gpu.capability >= (8, 9):
        out.update(_FLOAT8)
    return frozenset(out)
