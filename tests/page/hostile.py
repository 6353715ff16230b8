"""A recording whose names try to be markup, script, controls of a terminal and text that turns round."""

from __future__ import annotations

MARKUP = "</script></td><script>window.hit=1</script><img src=x onerror=\"window.hit=1\"><svg onload='window.hit=1'>"
CONTROLS = "\x1b[31mred\x07 \u202egnp.exe\u202c \u2066x\u2069 \x00\x7f\u0085\u200f"
HEBREW = "\u05e9\u05dc\u05d5\u05dd"
NAMES = (MARKUP, CONTROLS, HEBREW, "{{ 7*7 }}{% raw %}", "javascript:alert(1)", "]]>&lt;&amp;")


def hostile_rows() -> list[dict[str, object]]:
    """Rows of a Kineto file: steps, ops and kernels of these names, each op waiting for its kernel."""
    rows: list[dict[str, object]] = []
    host: dict[str, object] = {"ph": "X", "pid": 1, "tid": 1}
    for step in range(2):
        at = step * 1000
        rows.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 900})
        for k, name in enumerate(NAMES):
            ts, number = at + 10 + 100 * k, 1 + step * 100 + k
            rows.append({**host, "cat": "cpu_op", "name": name, "ts": ts, "dur": 80})
            launch = {"correlation": number}
            rows.append(
                {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 1, "dur": 4, "args": launch}
            )
            kernel = {"correlation": number, "device": 0, "stream": 7}
            rows.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": f"kernel {name}",
                    "pid": 0,
                    "tid": 7,
                    "ts": ts + 10,
                    "dur": 40,
                    "args": kernel,
                }
            )
            wait = {"correlation": 1000 + number}
            rows.append(
                {**host, "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "ts": ts + 6, "dur": 50, "args": wait}
            )
    return rows
