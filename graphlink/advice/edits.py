"""Lines to paste that do what an advice says, in one table."""

from __future__ import annotations

import re
from typing import Final

# what is to be done, as advice has it, and the line: of what is said first. No line is broken where a terminal has 80
_LINES: Final = tuple(
    (re.compile(words), line)
    for words, line in (
        (r"nvidia-smi shows it", "nvidia-smi --query-compute-apps=pid,name --format=csv"),
        (r"rocm-smi --showpids shows it", "rocm-smi --showpids"),
        (r"num_workers=(\d+).*pin_memory", r"DataLoader(..., num_workers=\1, pin_memory=True)"),
        (r"num_workers=(\d+)", r"DataLoader(..., num_workers=\1)"),
        (r"fused=True of ([A-Z]\w+)", r"torch.optim.\1(..., fused=True)"),
        (r"bucket_cap_mb=(\d+)", r"DistributedDataParallel(model, bucket_cap_mb=\1)"),
        (r"\(isend, irecv\)", "works = torch.distributed.batch_isend_irecv(operations)"),
        (r"expandable_segments", 'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"'),
        (r"CUDA_MODULE_LOADING", 'os.environ["CUDA_MODULE_LOADING"] = "EAGER"  # before import torch'),
        (r"\bto\(memory_format=", "model = model.to(memory_format=torch.channels_last)"),
        (r"torch\.autocast with torch\.amp\.GradScaler", 'with torch.autocast("cuda", dtype=torch.float16): ...'),
        (r"torch\.autocast", 'with torch.autocast("cuda", dtype=torch.bfloat16): ...'),
        (r"torch\.compile\(mode='reduce-overhead'\)", 'model = torch.compile(model, mode="reduce-overhead")'),
        (r"cuDNN's attention", "with sdpa_kernel(SDPBackend.CUDNN_ATTENTION): ..."),
        (r"flash_attn_interface", "from flash_attn_interface import flash_attn_func  # version 3"),
        (r"scaled_dot_product", "y = torch.nn.functional.scaled_dot_product_attention(q, k, v)"),
        (r"dynamic=True", "model = torch.compile(model, dynamic=True)"),
        (r"torch\.compile", "model = torch.compile(model)"),
        (r"into pinned memory", 'host = torch.empty_like(x, device="cpu", pin_memory=True)'),
        (r"non_blocking=True", 'x = x.pin_memory().to("cuda", non_blocking=True)'),
        (r"torch\.cuda\.Event", "event = torch.cuda.Event(enable_timing=True); event.record()"),
        (r"^no \.item\(\)", "losses.append(loss.detach())  # and .item() after the last step"),
        (r"torch\.where\b", "y = torch.where(mask, x, torch.zeros_like(x))"),
        (r"cudnn\.benchmark = False", "torch.backends.cudnn.benchmark = False"),
        (r"run it on the GPU", 'model, inputs = model.to("cuda"), inputs.to("cuda")'),
    )
)


def line_for(todo: str) -> str:
    """Return the line that does what is said first of what is to be done; "" where none does."""
    found = ((words.search(todo), k, line) for k, (words, line) in enumerate(_LINES))
    return min(((match.start(), k, match.expand(line)) for match, k, line in found if match), default=("",))[-1]
