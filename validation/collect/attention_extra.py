"""FlashAttention-3 as vLLM calls it: uneven contexts, the engine's setting, fp8 KV cache, prefill chunks; and power of decode-like work.

  python attention_extra.py OUTDIR [BUDGET_S]

attention_uneven.csv   n_heads, n_kv_heads, head_dim, batch, mean_context, spread, total_context, max_context, us, uniform_us
attention_engine.csv   the same decode call under the engine's conditions: variant (compact | compact_split32 | pool | pool_split32 |
                       pool_contiguous_split32), batch, mean_context, spread, us
attention_decode_fp8.csv / attention_prefill_extra.csv   as attention_decode / attention_prefill, with kv_dtype
power_mix.csv          as power.csv
"""

import functools
import itertools
import math
import os
import sys
import time

import torch

from gpu_tools import BF16, DEV, FP8, L2_BYTES, Budget, Nvml, Table, capture, graph_us, guard
from vllm import _custom_ops as ops
from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

OUT = sys.argv[1]
budget = Budget(float(sys.argv[2]) if len(sys.argv) > 2 else 200.0)
STEPS = (
    sys.argv[3].split(",") if len(sys.argv) > 3 else ["uneven", "engine", "fp8", "prefill", "power"]
)
BLOCK = 16
GEN = torch.Generator().manual_seed(11)
HEADS = [(32, 8, 128), (64, 8, 128), (32, 4, 128)]


def contexts(batch, mean, spread):
    """Context lengths with sum batch x mean: uniform, lognormal of a given sigma, or one sequence with 8 shares."""
    if spread == "uniform" or batch == 1:
        w = torch.ones(batch)
    elif spread == "one_long":
        w = torch.ones(batch)
        w[0] = 8.0
    elif spread == "halves":
        w = torch.ones(batch)
        w[: batch // 2] = 7.0
    else:
        w = (torch.randn(batch, generator=GEN) * float(spread[3:])).exp()
    return [max(16, int(x)) for x in (w / w.sum() * batch * mean).round()]


def metadata(seqs, h, kv, d, used, cu, dtype, splits):
    mq, mk = max(q for q, _ in seqs), max(n for _, n in seqs)
    return get_scheduler_metadata(
        batch_size=len(seqs),
        max_seqlen_q=mq,
        max_seqlen_k=mk,
        num_heads_q=h,
        num_heads_kv=kv,
        headdim=d,
        cache_seqlens=used,
        qkv_dtype=dtype,
        cu_seqlens_q=cu,
        page_size=BLOCK,
        causal=True,
        num_splits=splits,
    )


def tensors(seqs):
    cu = torch.tensor([0, *itertools.accumulate(q for q, _ in seqs)], dtype=torch.int32, device=DEV)
    used = torch.tensor([n for _, n in seqs], dtype=torch.int32, device=DEV)
    return cu, used, [math.ceil(n / BLOCK) for _, n in seqs]


def call(q, out, kc, vc, table, cu, used, seqs, d, meta, splits, max_k=None, scales=None):
    kw = {} if scales is None else {"q_descale": scales, "k_descale": scales, "v_descale": scales}
    return functools.partial(
        flash_attn_varlen_func,
        q=q,
        k=kc,
        v=vc,
        out=out,
        cu_seqlens_q=cu,
        max_seqlen_q=max(x for x, _ in seqs),
        seqused_k=used,
        max_seqlen_k=max_k or max(n for _, n in seqs),
        softmax_scale=d**-0.5,
        causal=True,
        block_table=table,
        fa_version=3,
        scheduler_metadata=meta,
        num_splits=splits,
        **kw,
    )


def block_table(blocks, rows):
    """Hand out the block ids in order to the sequences."""
    table = torch.zeros(len(rows), max(rows), dtype=torch.int32)
    o = 0
    for i, n in enumerate(rows):
        table[i, :n] = blocks[o : o + n]
        o += n
    return table.to(DEV)


def randn(*shape, dtype=BF16):
    """Random values; fp8 through bf16, in slices so that no large temporary is made."""
    if dtype == BF16:
        return torch.randn(*shape, device=DEV, dtype=BF16)
    out = torch.empty(*shape, device=DEV, dtype=FP8)
    flat = out.view(-1)
    for i in range(0, flat.numel(), 1 << 28):
        n = min(1 << 28, flat.numel() - i)
        flat[i : i + n] = torch.randn(n, device=DEV, dtype=BF16).to(FP8)
    return out


def own_cache(h, kv, d, seqs, dtype=BF16, splits=0, max_k=None):
    """Calls over a cache that holds just these sequences, blocks shuffled: the conditions of attention_decode.csv."""
    cu, used, rows = tensors(seqs)
    total = sum(rows)
    el = 2 if dtype == BF16 else 1
    rep = max(1, min(8, math.ceil(2 * L2_BYTES / (total * BLOCK * kv * d * 2 * el))))
    q = randn(sum(n for n, _ in seqs), h, d, dtype=dtype)
    out = torch.empty(q.shape, device=DEV, dtype=BF16)
    scales = None if dtype == BF16 else torch.ones(1, device=DEV).expand(len(seqs), kv)
    meta = metadata(seqs, h, kv, d, used, cu, dtype, splits)
    calls = []
    for _ in range(rep):
        table = block_table(torch.randperm(total, generator=GEN).int(), rows)
        calls.append(
            call(
                q,
                out,
                randn(total, BLOCK, kv, d, dtype=dtype),
                randn(total, BLOCK, kv, d, dtype=dtype),
                table,
                cu,
                used,
                seqs,
                d,
                meta,
                splits,
                max_k,
                scales,
            )
        )
    return calls


@guard
def uneven():
    t = Table(
        OUT,
        "attention_uneven",
        [
            "n_heads",
            "n_kv_heads",
            "head_dim",
            "batch",
            "mean_context",
            "spread",
            "total_context",
            "max_context",
            "us",
            "uniform_us",
        ],
    )
    for (h, kv, d), mean, batch in itertools.product(
        HEADS, (1200, 400, 4000), (4, 8, 16, 32, 64, 128, 256)
    ):
        if budget.left() < 15 or batch * mean * kv * d * 4 > 8e9:
            continue
        base = graph_us(own_cache(h, kv, d, [(1, mean)] * batch), 5.0)
        t.row(h, kv, d, batch, mean, "uniform", batch * mean, mean, base, base)
        for spread in ("log0.5", "log0.9", "log1.3", "one_long", "halves"):
            ls = contexts(batch, mean, spread)
            us = graph_us(own_cache(h, kv, d, [(1, n) for n in ls]), 5.0)
            t.row(h, kv, d, batch, mean, spread, sum(ls), max(ls), us, base)
    t.done()


@guard
def engine(h=32, kv=8, d=128, layers=32):
    """The engine's cache: one [blocks, 2, 16, kv, d] tensor a layer, about 110 GB in all, blocks anywhere, 32 splits."""
    free = torch.cuda.mem_get_info()[0]
    blocks = int(min(56_000, (free - 8e9) / layers / (2 * BLOCK * kv * d * 2)))
    first = randn(blocks, 2, BLOCK, kv, d)
    pool = [first] + [torch.empty_like(first) for _ in range(layers - 1)]
    for p in pool[1:]:
        p.copy_(first)
    torch.cuda.synchronize()
    print("pool blocks", blocks, "bytes", layers * first.numel() * 2, flush=True)
    t = Table(
        OUT, "attention_engine", ["variant", "pool_blocks", "batch", "mean_context", "spread", "us"]
    )
    for batch, mean, spread in itertools.product(
        (8, 16, 32, 64, 128, 256), (400, 1200, 4000), ("uniform", "log0.9")
    ):
        if budget.left() < 12 or batch * mean > 600_000:
            continue
        seqs = [(1, n) for n in contexts(batch, mean, spread)]
        cu, used, rows = tensors(seqs)
        q = randn(batch, h, d)
        out = torch.empty_like(q)
        order = torch.randperm(blocks, generator=GEN).int()
        tables = {
            "pool": block_table(order, rows),
            "contiguous": block_table(torch.arange(blocks, dtype=torch.int32), rows),
        }
        for name, table, splits in (
            ("pool", "pool", 0),
            ("pool_split32", "pool", 32),
            ("pool_contiguous_split32", "contiguous", 32),
        ):
            meta = metadata(seqs, h, kv, d, used, cu, BF16, splits)
            calls = [
                call(
                    q,
                    out,
                    p[:, 0],
                    p[:, 1],
                    tables[table],
                    cu,
                    used,
                    seqs,
                    d,
                    meta,
                    splits,
                    18_432 if splits else None,
                )
                for p in pool
            ]
            t.row(name, blocks, batch, mean, spread, graph_us(calls, 6.0))
    for batch, mean, spread in itertools.product(
        (8, 16, 32, 64, 128, 256), (400, 1200, 4000), ("uniform", "log0.9")
    ):
        if budget.left() < 8 or batch * mean > 600_000 or batch * mean * kv * d * 4 > 3e9:
            continue
        seqs = [(1, n) for n in contexts(batch, mean, spread)]
        t.row("compact", 0, batch, mean, spread, graph_us(own_cache(h, kv, d, seqs), 5.0))
        t.row(
            "compact_split32",
            0,
            batch,
            mean,
            spread,
            graph_us(own_cache(h, kv, d, seqs, splits=32, max_k=18_432), 5.0),
        )
    t.done()


@guard
def decode_fp8():
    t = Table(
        OUT,
        "attention_decode_fp8",
        ["kv_dtype", "n_heads", "n_kv_heads", "head_dim", "batch", "context", "spread", "us"],
    )
    for (h, kv, d), batch, mean in itertools.product(
        HEADS, (1, 4, 16, 32, 64, 128, 256), (256, 1024, 2048, 8192)
    ):
        if budget.left() < 12 or batch * mean * kv * d * 2 > 6e9:
            continue
        t.row(
            "fp8",
            h,
            kv,
            d,
            batch,
            mean,
            "uniform",
            graph_us(own_cache(h, kv, d, [(1, mean)] * batch, FP8), 5.0),
        )
        if mean in (1024, 2048) and batch >= 16:
            for spread in ("log0.9",):
                ls = contexts(batch, mean, spread)
                t.row(
                    "fp8",
                    h,
                    kv,
                    d,
                    batch,
                    mean,
                    spread,
                    graph_us(own_cache(h, kv, d, [(1, n) for n in ls], FP8), 5.0),
                )
    t.done()


@guard
def prefill():
    t = Table(
        OUT,
        "attention_prefill_extra",
        ["kv_dtype", "n_heads", "n_kv_heads", "head_dim", "batch", "q_len", "past_len", "us"],
    )
    for dtype, name in ((BF16, "bf16"), (FP8, "fp8")):
        for h, kv, d in HEADS:
            for q, past in itertools.product(
                (128, 512, 1024, 2048, 4096, 8192), (0, 512, 2048, 6000, 14_000, 30_000)
            ):
                if budget.left() < 10:
                    return t.done()
                if name == "fp8" and (h, kv) == (64, 8):
                    continue
                t.row(
                    name,
                    h,
                    kv,
                    d,
                    1,
                    q,
                    past,
                    graph_us(own_cache(h, kv, d, [(q, q + past)], dtype), 5.0),
                )
    return t.done()


def measure(t, nvml, name, detail, calls, flops, nbytes, secs=1.2):
    """One row of sustained work after 0.5 s of warming, as in power.csv."""
    g = capture(calls)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        g.replay()
        torch.cuda.synchronize()
    nv, h = nvml.nv, nvml.h
    e0, s, n, peak = nv.nvmlDeviceGetTotalEnergyConsumption(h), time.monotonic(), 0, 0.0
    while time.monotonic() - s < secs:
        g.replay()
        g.replay()
        torch.cuda.synchronize()
        n += 2
    dt = time.monotonic() - s
    e1 = nv.nvmlDeviceGetTotalEnergyConsumption(h)
    watts, mhz, temp = nvml.between(s, s + dt)
    peak = max((r[1] for r in nvml.rows[-2000:] if s <= r[0] <= s + dt), default=0.0)
    t.row(
        name,
        detail,
        dt,
        (e1 - e0) / 1e3 / dt,
        watts,
        peak,
        mhz,
        temp,
        flops * n / dt,
        nbytes * n / dt,
    )
    time.sleep(0.15)


@guard
def power():
    """Decode-like layers (attention, then the four GEMMs and the glue between) and prefill-like layers, in bf16 and fp8."""
    t = Table(
        OUT,
        "power_mix",
        [
            "work",
            "detail",
            "seconds",
            "watts_energy_counter",
            "watts_mean_sampled",
            "watts_max",
            "sm_mhz",
            "temp_c",
            "flops_per_s",
            "bytes_per_s",
        ],
    )
    nvml = Nvml(0.01)
    nvml.start()
    shapes = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
    size = sum(n * k for n, k in shapes)
    layers = 8
    for name, dtype, el in (("bf16", BF16, 2), ("fp8", FP8, 1)):
        ws = [[randn(n, k, dtype=dtype) for n, k in shapes] for _ in range(layers)]
        for m, mean in (
            (16, 1000),
            (32, 1000),
            (64, 500),
            (64, 2000),
            (128, 1000),
            (256, 1000),
            (256, 300),
        ):
            if budget.left() < 6:
                break
            att = own_cache(32, 8, 128, [(1, n) for n in contexts(m, mean, "log0.9")], dtype)
            calls = []
            for i, w in enumerate(ws):
                calls += [att[i % len(att)], *gemms(w, m, dtype)]
            flops = layers * (2.0 * m * size + 4.0 * m * mean * 32 * 128)
            nbytes = layers * (el * size + el * m * mean * 8 * 128 * 2)
            measure(t, nvml, f"decode_layer_{name}", f"m={m} context={mean}", calls, flops, nbytes)
        for q in (512, 2048, 8192):
            if budget.left() < 6:
                break
            att = own_cache(32, 8, 128, [(q, q)], dtype)
            calls = []
            for i, w in enumerate(ws):
                calls += [att[i % len(att)], *gemms(w, q, dtype)]
            measure(
                t,
                nvml,
                f"prefill_layer_{name}",
                f"m={q}",
                calls,
                layers * (2.0 * q * size + 2.0 * q * q * 32 * 128),
                layers * el * size,
            )
        if name == "bf16" and budget.left() > 6:
            for b, c in ((64, 1000), (128, 2000), (8, 8000)):
                att = own_cache(32, 8, 128, [(1, c)] * b)
                measure(
                    t,
                    nvml,
                    "attention_decode",
                    f"batch={b} context={c}",
                    att * 4,
                    len(att) * 4 * 4.0 * b * c * 4096,
                    len(att) * 4 * b * c * 4096.0,
                )
            att = own_cache(32, 8, 128, [(8192, 8192)])
            measure(
                t,
                nvml,
                "attention_prefill",
                "q=8192",
                att,
                len(att) * 2.0 * 8192 * 8192 * 4096,
                len(att) * 8192 * (4 * 4096 + 4.0 * 1024),
            )
        del ws
        torch.cuda.empty_cache()
    t.done()
    nvml.stop = True
    nvml.join(2)


def gemms(w, m, dtype):
    """The four products of a layer at m tokens and the SiLU product between, fixed random inputs."""
    calls = []
    for i, x in enumerate(w):
        n, k = x.shape
        a = randn(m, k, dtype=dtype)
        if dtype == BF16:
            calls.append(
                functools.partial(torch.mm, a, x.t(), out=torch.empty(m, n, device=DEV, dtype=BF16))
            )
        else:
            calls.append(
                functools.partial(
                    ops.cutlass_scaled_mm,
                    a,
                    x.t(),
                    torch.ones(m, 1, device=DEV),
                    torch.ones(1, n, device=DEV),
                    BF16,
                )
            )
        if i == 2:
            g, o = randn(m, n), torch.empty(m, n // 2, device=DEV, dtype=BF16)
            calls.append(functools.partial(torch.ops._C.silu_and_mul, o, g))
    return calls


def main():
    os.makedirs(OUT, exist_ok=True)
    for name, fn in (
        ("engine", engine),
        ("uneven", uneven),
        ("power", power),
        ("fp8", decode_fp8),
        ("prefill", prefill),
    ):
        if name in STEPS and budget.left() > 8:
            fn()


if __name__ == "__main__":
    main()
