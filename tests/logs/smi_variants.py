"""Hand-made logs of nvidia-smi: what they are, and what must be read of them, or why they are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

HEADER = (
    "timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], "
    "temperature.gpu"
)
ROWS = (
    "2024/01/31 10:22:03.123, 0, NVIDIA A100-SXM4-80GB, 98 %, 11019 MiB, 81920 MiB, 310.50 W, 61",
    "2024/01/31 10:22:04.123, 0, NVIDIA A100-SXM4-80GB, 96 %, 11021 MiB, 81920 MiB, 312.50 W, 63",
)
CSV = "\n".join((HEADER, *ROWS)) + "\n"


@dataclass(frozen=True)
class Variant:
    """``gpus``: of each (host, gpu) the figures that are checked; ``refused``: a part of the reason instead."""

    text: str | bytes
    gpus: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    refused: str = ""


def one(host: str = "log", gpu: int = 0, /, **figures: Any) -> dict[tuple[str, int], dict[str, Any]]:
    return {(host, gpu): figures}


USUAL = {
    "utilisation_percent": (97, 98),
    "memory_used_mib": (11020, 11021),
    "power_w": (311.5, 312.5),
    "temperature_c": (62, 63),
    "samples": 2,
}


def screen(
    gpus: int = 1, *, wide: bool = False, processes: bool = True, power: str = "56W / 400W", util: str = "37%"
) -> str:
    """Write a screen of a driver 470 (or, ``wide``, 550) with ``gpus`` GPUs; GPU k uses k00 MiB."""
    lines = ["Wed Jan 31 10:22:03 2024       ", "+" + "-" * 77 + "+"]
    lines += [
        "| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |",
        "|" + "-" * 31 + "+" + "-" * 22 + "+" + "-" * 22 + "+",
    ]
    lines += ["| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |"]
    lines += [
        "| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |",
        "|" + "=" * 31 + "+" + "=" * 22 + "+" + "=" * 22 + "|",
    ]
    pad = "              " if wide else ""
    for k in range(gpus):
        lines += [f"|   {k}  NVIDIA A100-SXM...  {pad}On   | 00000000:{k:02X}:00.0 Off |                    0 |"]
        lines += [f"| N/A   {34 + k}C    P0    {pad}{power} | {k}00MiB / 40536MiB |     {util}      Default |"]
        lines += [
            "|                               |                      |             Disabled |",
            "+" + "-" * 31 + "+" + "-" * 22 + "+" + "-" * 22 + "+",
        ]
    if processes:
        lines += [
            "",
            "+" + "-" * 77 + "+",
            "| Processes:" + " " * 66 + "|",
            "|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |",
        ]
        lines += [
            "|" + "=" * 77 + "|",
            "|    0   N/A  N/A     12345      C   python --token=hunter2           9999MiB |",
            "+" + "-" * 77 + "+",
        ]
    return "\n".join(lines) + "\n"


MIG = """\
+-----------------------------------------------------------------------------+
| MIG devices:                                                                |
+------------------+----------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |         Memory-Usage |        Vol|         Shared        |
|      ID  ID  Dev |           BAR1-Usage | SM     Unc| CE  ENC  DEC  OFA  JPG|
|                  |                      |        ECC|                       |
|==================+======================+===========+=======================|
|  0    7   0   0  |     25MiB /  9728MiB | 14      0 |  1   0    0    0    0 |
|                  |      0MiB / 16383MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
|  0    8   0   1  |   4000MiB /  9728MiB | 14      0 |  1   0    0    0    0 |
|                  |      0MiB / 16383MiB |           |                       |
+------------------+----------------------+-----------+-----------------------+
"""
H100 = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   41C    P0            345W /  700W |   60123MiB /  81559MiB |     99%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
"""
WINDOWS = """\
| NVIDIA-SMI 536.23                 Driver Version: 536.23       CUDA Version: 12.2     |
| GPU  Name                     TCC/WDDM  | Bus-Id        Disp.A | Volatile Uncorr. ECC |
|   0  NVIDIA GeForce RTX 3080      WDDM  | 00000000:01:00.0  On |                  N/A |
| 30%   48C    P8              25W / 320W |   1234MiB / 10240MiB |      5%      Default |
"""
EIGHT = (
    "\n".join([HEADER, *(ROWS[0].replace(", 0, ", f", {k}, ").replace("98 %", f"{90 + k} %") for k in range(8))]) + "\n"
)
NOUNITS = "index, utilization.gpu [%], memory.used [MiB], power.draw [W]\n0, 98, 11019, 310.5\n0, 96, 11021, 312.5\n"
NA = CSV.replace("310.50 W", "[N/A]").replace("312.50 W", "[Not Supported]")
THREE = {"utilisation_percent": (97, 98), "memory_used_mib": (11020, 11021), "power_w": (311.5, 312.5)}

SMI: dict[str, Variant] = {
    "as written": Variant(CSV, one(**USUAL)),
    "its times are kept as text": Variant(
        CSV, one(from_time="2024/01/31 10:22:03.123", to_time="2024/01/31 10:22:04.123")
    ),
    "other order of columns": Variant(
        "memory.used [MiB], index, utilization.gpu [%]\n11019 MiB, 3, 98 %\n",
        one("log", 3, memory_used_mib=(11019, 11019)),
    ),
    "unknown columns between": Variant(
        "index, clocks.gr [MHz], utilization.gpu [%], ecc.mode.current\n0, 1410 MHz, 50 %, Enabled\n",
        one(utilisation_percent=(50, 50)),
    ),
    "nounits": Variant(NOUNITS, one(**THREE)),
    "N/A and not supported": Variant(NA, one(power_w=(None, None), utilisation_percent=(97, 98))),
    "some absent": Variant(CSV.replace("310.50 W", "[N/A]"), one(power_w=(312.5, 312.5))),
    "unknown error": Variant(
        CSV.replace("310.50 W", "[Unknown Error]").replace("61\n", "[GPU is lost]\n"),
        one(power_w=(312.5, 312.5), temperature_c=(63, 63)),
    ),
    "an empty cell": Variant(CSV.replace("310.50 W", ""), one(power_w=(312.5, 312.5))),
    "decimal comma": Variant(CSV.replace("310.50", "310,50").replace("312.50", "312,50"), one(**USUAL)),
    "decimal comma, semicolons": Variant(
        CSV.replace(", ", ";").replace("310.50", "310,50").replace("312.50", "312,50"), one(**USUAL)
    ),
    "decimal comma, quoted": Variant(
        CSV.replace("310.50 W", '"310,50 W"').replace("312.50 W", '"312,50 W"'), one(**USUAL)
    ),
    "decimal comma without spaces": Variant(
        "index,utilization.gpu [%],power.draw [W]\n0,98,310,50\n0,98,311\n",
        one(power_w=(311, 311)),
        {"wrong number of cells": 1},
    ),
    "comma of thousands": Variant(
        CSV.replace("11019 MiB", '"11,019 MiB"'), one(memory_used_mib=(11021, 11021)), {"memory used cannot be read": 1}
    ),
    "tabs": Variant(CSV.replace(", ", "\t"), one(**USUAL)),
    "german date": Variant(CSV.replace("2024/01/31", "31.01.2024"), one(from_time="31.01.2024 10:22:03.123", **USUAL)),
    "other unit of memory": Variant("index, memory.used [GiB]\n0, 2.5 GiB\n", one(memory_used_mib=(2560, 2560))),
    "milliwatts": Variant("index, power.draw [mW]\n0, 310500\n", one(power_w=(310.5, 310.5))),
    "unknown unit": Variant(
        "index, utilization.gpu [%], power.draw [hp]\n0, 9 %, 2\n",
        one(utilisation_percent=(9, 9)),
        {"power cannot be read": 1},
    ),
    "capital names": Variant(
        CSV.replace("timestamp", "Timestamp").replace("utilization.gpu", "Utilization.GPU"), one(**USUAL)
    ),
    "windows line ends": Variant(CSV.replace("\n", "\r\n"), one(**USUAL)),
    "utf-8 mark": Variant(b"\xef\xbb\xbf" + CSV.encode(), one(**USUAL)),
    "utf-16 of a windows shell": Variant(CSV.encode("utf-16"), one(**USUAL)),
    "header again": Variant(CSV + CSV, one(samples=4, utilisation_percent=(97, 98))),
    "another header": Variant(
        CSV + "index, utilization.gpu [%]\n0, 100 %\n",
        one(samples=3, utilisation_percent=(98, 100), power_w=(311.5, 312.5)),
    ),
    "text before the header": Variant("loading module cuda/12.1\n" + CSV, one(**USUAL), {"before a header": 1}),
    "a message between rows": Variant(
        CSV + "Unable to determine the device handle\n", one(**USUAL), {"wrong number of cells": 1}
    ),
    "cut row": Variant(CSV + "2024/01/31 10:22:05.123, 0, NVIDIA A1", one(**USUAL), {"wrong number of cells": 1}),
    "cut digit": Variant(CSV[:-2], one(samples=1, temperature_c=(61, 61)), {"cut at the end of the file": 1}),
    "no last line end": Variant("index, utilization.gpu [%]\n0, 98 %", one(samples=1, utilisation_percent=(98, 98))),
    "utilisation over 100": Variant(
        CSV.replace("98 %", "980 %"), one(utilisation_percent=(96, 96)), {"utilisation cannot be read": 1}
    ),
    "eight GPUs": Variant(EIGHT, {("log", k): {"utilisation_percent": (90 + k, 90 + k)} for k in range(8)}),
    "by uuid": Variant(
        "uuid, utilization.gpu [%]\nGPU-aa, 1 %\nGPU-bb, 3 %\nGPU-aa, 5 %\n",
        {**one(samples=2, utilisation_percent=(3, 5)), **one("log", 1, samples=1)},
    ),
    "by bus id": Variant(
        "pci.bus_id, power.draw [W]\n00000000:07:00.0, 50.00 W\n00000000:0F:00.0, 60.00 W\n",
        {**one(power_w=(50, 50)), **one("log", 1, power_w=(60, 60))},
    ),
    "GPUs not told apart": Variant(
        "timestamp, utilization.gpu [%]\n2024/01/31 10:22:03, 40 %\n2024/01/31 10:22:03, 60 %\n",
        one(samples=2, utilisation_percent=(50, 60)),
    ),
    "a column of hosts": Variant(
        "hostname, index, utilization.gpu [%]\nnode1, 0, 10 %\nnode2, 0, 20 %\n",
        {**one("node1", utilisation_percent=(10, 10)), **one("node2", utilisation_percent=(20, 20))},
    ),
    "hosts in front": Variant(
        "node1: index, utilization.gpu [%]\nnode1: 0, 10 %\nnode2: index, utilization.gpu [%]\nnode2: 0, 20 %\n",
        {**one("node1", samples=1), **one("node2", samples=1)},
    ),
    "index is no number": Variant(
        "index, utilization.gpu [%]\nzero, 9 %\n1, 8 %\n", one("log", 1, samples=1), {"index is no number": 1}
    ),
    "a name with a secret form": Variant(
        "index, name, utilization.gpu [%]\n0, \x07bad, 8 %\n", one(name=None, samples=1)
    ),
    "no header": Variant("\n".join(ROWS) + "\n", refused="no header line"),
    "no header, nounits": Variant("0, 98, 11019, 310.5\n", refused="no header line"),
    "header alone": Variant(HEADER + "\n", refused="nothing follows its header"),
    "header and cut rows only": Variant(HEADER + "\n2024/01/31\n", refused="wrong number of cells"),
    "empty": Variant("", refused="neither csv"),
    "another text": Variant("hello\nworld\n", refused="neither csv"),
    "binary": Variant(bytes(range(256)) * 64, refused="neither csv"),
    "columns without figures": Variant(
        "index, name, driver_version\n0, NVIDIA A100, 535.1\n", refused="no header line"
    ),
    "dmon": Variant(
        "# gpu    pwr  gtemp  mtemp     sm    mem\n# Idx      W      C      C      %      %\n    0     56     34      "
        "-      0      0\n",
        refused="dmon",
    ),
    "-q": Variant("\n==============NVSMI LOG==============\n\nTimestamp : Wed Jan 31\n", refused="nvidia-smi -q"),
    "-q -x": Variant('<?xml version="1.0" ?>\n<nvidia_smi_log>\n', refused="nvidia-smi -q -x"),
    "-L": Variant("GPU 0: NVIDIA A100 (UUID: GPU-aa)\n", refused="nvidia-smi -L"),
    "failed": Variant(
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", refused="failed"
    ),
    "screen": Variant(
        screen(),
        one(
            samples=1,
            utilisation_percent=(37, 37),
            memory_used_mib=(0, 0),
            memory_total_mib=40536,
            power_w=(56, 56),
            temperature_c=(34, 34),
        ),
        {"row of processes": 1},
    ),
    "screen of eight": Variant(
        screen(8),
        {("log", k): {"memory_used_mib": (100 * k, 100 * k), "temperature_c": (34 + k, 34 + k)} for k in range(8)},
    ),
    "screen of 550": Variant(
        H100,
        one(
            name="NVIDIA H100 80GB HBM3",
            utilisation_percent=(99, 99),
            power_w=(345, 345),
            memory_used_mib=(60123, 60123),
            temperature_c=(41, 41),
        ),
    ),
    "wide screen": Variant(screen(2, wide=True), {**one(power_w=(56, 56)), **one("log", 1, power_w=(56, 56))}),
    "screen of windows": Variant(
        WINDOWS,
        one(name="NVIDIA GeForce RTX 3080", power_w=(25, 25), utilisation_percent=(5, 5), temperature_c=(48, 48)),
    ),
    "screen without power": Variant(screen(power="N/A / N/A"), one(power_w=(None, None), temperature_c=(34, 34))),
    "screen with an error": Variant(
        screen(power="ERR! / 400W", util="ERR!"), one(power_w=(None, None), utilisation_percent=(None, None))
    ),
    "screens after each other": Variant(
        screen() + screen(util="39%"),
        one(samples=2, utilisation_percent=(38, 39), from_time="Wed Jan 31 10:22:03 2024"),
    ),
    "screen without processes": Variant(screen(processes=False), one(samples=1)),
    "quoted screen": Variant(
        "".join("> " + line for line in screen().splitlines(keepends=True)),
        one(samples=1, utilisation_percent=(37, 37)),
    ),
    "indented screen": Variant(
        "$ nvidia-smi\n" + "".join("    " + line for line in screen().splitlines(keepends=True)), one(samples=1)
    ),
    "screen without its head": Variant(
        "".join(screen().splitlines(keepends=True)[7:]), one(samples=1, temperature_c=(34, 34))
    ),
    "screen cut at 60 columns": Variant(
        "\n".join(line[:50] for line in screen(processes=False).splitlines()),
        one(samples=1, temperature_c=(34, 34), power_w=(56, 56)),
        {"memory used cannot be read": 1, "utilisation cannot be read": 1},
    ),
    "screen cut after a first row": Variant("\n".join(screen(2).splitlines()[:11]), one(samples=1)),
    "screen cut in its only GPU": Variant("\n".join(screen().splitlines()[:8]), refused="cut row"),
    "MIG": Variant(
        screen(processes=False, util="N/A") + MIG, one(utilisation_percent=(None, None)), {"row of MIG devices": 2}
    ),
    "MIG in csv": Variant(
        "index, utilization.gpu [%], memory.used [MiB]\n0, [N/A], 25 MiB\n",
        one(utilisation_percent=(None, None), memory_used_mib=(25, 25)),
    ),
}
