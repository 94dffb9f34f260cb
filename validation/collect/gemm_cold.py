"""GEMM time in short bursts from a light power state (full clock) against the same GEMM under sustained load.

  python gemm_cold.py OUTDIR [BUDGET_S] [ragged]

With `ragged`: row counts that are no multiple of 256, as engine steps have them, in gemm_ragged.csv. Else gemm_cold.csv: dtype, m, n, k, cold_us (median of bursts of about 2 ms, each after a pause of 25 ms), cold_first_us (first replay
of a burst), sustained_us (after 0.25 s of the same work), cold_mhz and sustained_mhz (clock probe), sustained_nvml_mhz, sustained_watts,
temp_c. dtype fp8 = per-token and per-channel scales, fp8_tensor = one scale for the weights.
"""

import os
import sys
import time

import torch

from gpu_tools import (
    BF16,
    DEV,
    FP8,
    Budget,
    Nvml,
    Probe,
    Table,
    capture,
    copies,
    event,
    guard,
    replay_ms,
)

OUT = sys.argv[1]
NAME = "gemm_ragged" if sys.argv[3:] == ["ragged"] else "gemm_cold"
budget = Budget(float(sys.argv[2]) if len(sys.argv) > 2 else 150.0)
MS = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
LOW = [1, 8, 16, 32]
RAGGED = [
    520,
    560,
    608,
    640,
    656,
    704,
    768,
    800,
    864,
    928,
    1000,
    1024,
    1056,
    1088,
    1152,
    1216,
    1280,
    1344,
    1450,
    1536,
]
RAGGED += [1664, 1800, 1990, 2048, 2200, 2500, 3000, 3072, 3330, 4000, 5000, 6000, 7000, 8000]
QWEN14 = [(7168, 5120), (5120, 5120), (27648, 5120), (5120, 13824)]
LLAMA8 = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
OTHER = [(8192, 8192), (51200, 5120), (5120, 25600), (57344, 8192)]
try:
    from vllm import _custom_ops as ops
except Exception as e:
    print("no vLLM kernels:", type(e).__name__, str(e)[:200], flush=True)
    ops = None


def calls_of(dtype, m, ws):
    n, k = ws[0].shape
    if dtype == "bf16":
        x = torch.randn(m, k, device=DEV, dtype=BF16)
        o = torch.empty(m, n, device=DEV, dtype=BF16)
        return [lambda w=w: torch.mm(x, w.t(), out=o) for w in ws]
    x = torch.randn(m, k, device=DEV, dtype=BF16).to(FP8)
    if dtype == "fp8_tensor":
        sa, sb = torch.ones(m, 1, device=DEV), torch.ones(1, device=DEV)
        return [lambda w=w: ops.cutlass_scaled_mm(x, w.t(), sa, sb, BF16) for w in ws]
    sa, sb = torch.ones(m, 1, device=DEV), torch.ones(1, n, device=DEV)
    if ops is None:
        return [
            lambda w=w: torch._scaled_mm(x, w.t(), scale_a=sa, scale_b=sb, out_dtype=BF16)
            for w in ws
        ]
    return [lambda w=w: ops.cutlass_scaled_mm(x, w.t(), sa, sb, BF16) for w in ws]


def point(g, count, probe, nvml):
    """Cold and sustained microseconds per call with the clocks and watts of each."""
    once = max(replay_ms(g, 1), 1e-3)
    n = max(1, min(100, int(2.0 / once)))
    burst, first, mhz = [], [], []
    for _ in range(7):
        time.sleep(0.025)
        a, f, b = event(), event(), event()
        a.record()
        g.replay()
        f.record()
        for _ in range(n - 1):
            g.replay()
        b.record()
        probe()
        torch.cuda.synchronize()
        burst.append(a.elapsed_time(b) / n / count * 1e3)
        first.append(a.elapsed_time(f) / count * 1e3)
        mhz.append(probe.last())
    each = max(1, int(10.0 / once))
    end = time.monotonic() + 0.25
    while time.monotonic() < end:
        replay_ms(g, each)
    t0, ts = time.monotonic(), []
    while time.monotonic() - t0 < 0.12 or not ts:
        ts.append(replay_ms(g, each) / each / count * 1e3)
    probe()
    watts, nvml_mhz, temp = nvml.between(t0, time.monotonic())
    sust_mhz = probe.last()
    return (
        sorted(burst)[3],
        sorted(first)[3],
        sorted(ts)[len(ts) // 2],
        sorted(mhz)[3],
        sust_mhz,
        nvml_mhz,
        watts,
        temp,
    )


@guard
def sweep(table, dtype, shapes, ms, probe, nvml):
    for n, k in shapes:
        if budget.left() < 6:
            return
        c = copies(n * k * (2 if dtype == "bf16" else 1), 12)
        ws = [torch.randn(n, k, device=DEV, dtype=BF16) * 0.02 for _ in range(c)]
        if dtype != "bf16":
            ws = [(w * 50).to(FP8) for w in ws]
        for m in ms:
            if budget.left() < 3:
                return
            try:
                g = capture(calls_of(dtype, m, ws))
                table.row(dtype, m, n, k, *point(g, c, probe, nvml))
                del g
            except Exception as e:
                print("gemm", dtype, m, n, k, type(e).__name__, str(e)[:120], flush=True)
        del ws
        torch.cuda.empty_cache()


def plan():
    """Yield (dtype, shapes, rows) of the sweeps."""
    if NAME == "gemm_ragged":
        yield "fp8_tensor", LLAMA8, RAGGED
        yield "bf16", LLAMA8, RAGGED[::2]
        yield "fp8", LLAMA8, RAGGED[1::2]
        return
    yield from (("bf16", LLAMA8, MS), ("fp8", LLAMA8, MS), ("bf16", QWEN14, LOW + MS))
    yield from (("bf16", OTHER, MS), ("fp8", OTHER[:2], MS))
    if ops is not None:
        yield "fp8_tensor", LLAMA8, [1, 16, 64, 256, 2048]


def main():
    os.makedirs(OUT, exist_ok=True)
    probe, nvml = Probe(), Nvml()
    nvml.start()
    t = Table(
        OUT,
        NAME,
        [
            "dtype",
            "m",
            "n",
            "k",
            "cold_us",
            "cold_first_us",
            "sustained_us",
            "cold_mhz",
            "sustained_mhz",
            "sustained_nvml_mhz",
            "sustained_watts",
            "temp_c",
        ],
    )
    for dtype, shapes, ms in plan():
        sweep(t, dtype, shapes, ms, probe, nvml)
    t.done()
    nvml.stop = True
    nvml.join(2)


main()
