"""Short names of kernels: without parameters and template arguments, but for the one that says what a general kernel
does.
"""

from __future__ import annotations

import re
from typing import Final

from graphlink.read.commnames import kernel_path

_GENERAL: Final = re.compile(r"(?i)kernel\d?|device_kernel|global_?kernel|trampoline_kernel")
_FIRST: Final = re.compile(r"<\s*([A-Za-z_][\w:]*)")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


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
        what = next((word for word in _WORD.findall(name) if _is_functor(word) and word != last), "")
    return f"{last}<{what}>" if what and what != last else last


def _is_functor(word: str) -> bool:
    return "functor" in word.lower() or word.endswith(("_kernel_cuda", "Ops"))
