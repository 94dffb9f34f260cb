"""Measure kernel times, memory ceilings, copy rates, launch cost and power of one CUDA GPU.

  python kernel_times.py OUTDIR [BUDGET_S]

Every time is microseconds per call, from CUDA-graph replays over operands that rotate through more than the L2 cache
(weights cold, activations warm, as in a decoder layer), the median of 5 timings. Writes one CSV per family.
"""

import csv
import itertools
import json
import math
import os
import sys
import threading
import time

import torch

OUT = sys.argv[1]
BUDGET = float(sys.argv[2]) if len(sys.argv) > 2 else 420.0
T0 = time.monotonic()
os.makedirs(OUT, exist_ok=True)
dev = torch.device("cuda")
torch.manual_seed(0)
L2 = torch.cuda.get_device_properties(0).L2_cache_size
BF = torch.bfloat16
F8 = torch.float8_e4m3fn


def left():
    return BUDGET - (time.monotonic() - T0)


def graph_us(calls, target_ms=12.0, repeats=5):
    """Median microseconds per call of the list of zero-argument calls, replayed as one CUDA graph."""
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        calls[0]()
        calls[-1]()
    torch.cuda.current_stream().wait_stream(s)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for c in calls:
            c()
    a, b = torch.cuda.Event(True), torch.cuda.Event(True)
    g.replay()
    torch.cuda.synchronize()
    a.record()
    g.replay()
    b.record()
    torch.cuda.synchronize()
    once = max(a.elapsed_time(b), 1e-3)
    n = max(1, min(200, int(target_ms / once)))
    ts = []
    for _ in range(repeats):
        a.record()
        for _ in range(n):
            g.replay()
        b.record()
        torch.cuda.synchronize()
        ts.append(a.elapsed_time(b) / n / len(calls) * 1e3)
    del g
    return sorted(ts)[len(ts) // 2]


class Table:
    def __init__(self, name, cols):
        self.f = open(f"{OUT}/{name}.csv", "w", newline="")
        self.w = csv.writer(self.f)
        self.w.writerow(cols)
        self.n, self.name, self.t = 0, name, time.monotonic()

    def row(self, *r):
        self.w.writerow([f"{x:.3f}" if isinstance(x, float) else x for x in r])
        self.n += 1

    def done(self):
        self.f.close()
        print(
            f"{self.name}: {self.n} rows in {time.monotonic() - self.t:.1f} s, {left():.0f} s left",
            flush=True,
        )


def guard(fn):
    def run(*a):
        try:
            fn(*a)
        except Exception as e:
            print(f"{fn.__name__} stopped: {type(e).__name__}: {str(e)[:300]}", flush=True)
        torch.cuda.empty_cache()

    return run


MS = [
    1,
    2,
    4,
    8,
    16,
    24,
    32,
    48,
    64,
    96,
    128,
    160,
    192,
    256,
    320,
    384,
    512,
    640,
    768,
    1024,
    1536,
    2048,
    3072,
    4096,
    8192,
    16384,
]
NKS = [  # (n, k) of real decoder layers: Llama 8B/70B at TP 1/2/4/8, Qwen3 32B, Llama 7B/13B, small models, and a grid
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
    (128256, 4096),
    (10240, 8192),
    (8192, 8192),
    (57344, 8192),
    (8192, 28672),
    (5120, 8192),
    (8192, 4096),
    (28672, 8192),
    (8192, 14336),
    (2560, 8192),
    (8192, 2048),
    (14336, 8192),
    (8192, 7168),
    (1280, 8192),
    (8192, 1024),
    (7168, 8192),
    (8192, 3584),
    (16032, 8192),
    (10240, 5120),
    (5120, 8192),
    (51200, 5120),
    (5120, 25600),
    (12288, 4096),
    (22016, 4096),
    (4096, 11008),
    (3072, 2048),
    (2048, 2048),
    (16384, 2048),
    (2048, 8192),
    (1024, 1024),
    (512, 2048),
    (2048, 768),
    (1536, 2048),
    (4096, 1024),
    (1024, 4096),
    (16384, 16384),
    (2112, 7168),
    (7168, 16384),
    (24576, 1536),
]
NKS = list(dict.fromkeys(NKS))


def copies(bytes_each, most=24):
    return max(1, min(most, math.ceil(3 * L2 / max(bytes_each, 1)), int(20e9 / bytes_each)))


@guard
def gemm(dtype_name, ms, nks):
    t = Table(f"gemm_{dtype_name}", ["dtype", "m", "n", "k", "us"])
    for n, k in nks:
        if left() < 20:
            break
        el = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4, "fp8": 1, "int8": 1}[dtype_name]
        c = copies(n * k * el)
        torch.backends.cuda.matmul.allow_tf32 = dtype_name == "tf32"
        if dtype_name in ("bf16", "fp16", "fp32", "tf32"):
            dt = {"bf16": BF, "fp16": torch.float16}.get(dtype_name, torch.float32)
            ws = [torch.randn(n, k, device=dev, dtype=dt) * 0.02 for _ in range(c)]
        elif dtype_name == "fp8":
            ws = [(torch.randn(n, k, device=dev, dtype=BF)).to(F8) for _ in range(c)]
        else:
            ws = [torch.randint(-100, 100, (n, k), device=dev, dtype=torch.int8) for _ in range(c)]
        for m in ms:
            if m * n > 1.3e9 or left() < 15:
                continue
            if dtype_name in ("bf16", "fp16", "fp32", "tf32"):
                x = torch.randn(m, k, device=dev, dtype=dt)
                o = torch.empty(m, n, device=dev, dtype=dt)
                calls = [lambda w=w: torch.mm(x, w.t(), out=o) for w in ws]
            elif dtype_name == "fp8":
                x = torch.randn(m, k, device=dev, dtype=BF).to(F8)
                sa = torch.ones(m, 1, device=dev)
                sb = torch.ones(1, n, device=dev)
                if HAVE_VLLM:
                    calls = [lambda w=w: ops.cutlass_scaled_mm(x, w.t(), sa, sb, BF) for w in ws]
                else:
                    calls = [
                        lambda w=w: torch._scaled_mm(x, w.t(), scale_a=sa, scale_b=sb, out_dtype=BF)
                        for w in ws
                    ]
            else:
                if m < 17:
                    continue
                x = torch.randint(-100, 100, (m, k), device=dev, dtype=torch.int8)
                calls = [lambda w=w: torch._int_mm(x, w.t()) for w in ws]
            try:
                t.row(dtype_name, m, n, k, graph_us(calls))
            except Exception as e:
                print("gemm", dtype_name, m, n, k, type(e).__name__, str(e)[:80], flush=True)
        del ws
        torch.cuda.empty_cache()
    t.done()


@guard
def gemm_w4():
    """4-bit weights, bf16 activations (group 128), through vLLM's Marlin kernel."""
    from vllm.model_executor.layers.quantization.utils.marlin_utils_test import marlin_quantize
    from vllm.scalar_type import scalar_types
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new

    t = Table("gemm_w4a16", ["dtype", "m", "n", "k", "us"])
    for n, k in [
        (6144, 4096),
        (4096, 4096),
        (28672, 4096),
        (4096, 14336),
        (10240, 8192),
        (8192, 8192),
    ]:
        if left() < 20:
            break
        w = torch.randn(k, n, device=dev, dtype=BF) * 0.02
        _, q, s, g_idx, perm, _ = marlin_quantize(w, scalar_types.uint4b8, 128, False)
        c = copies(n * k // 2)
        qs = [q.clone() for _ in range(c)]
        wsp = marlin_make_workspace_new(dev)
        for m in MS[:22]:
            x = torch.randn(m, k, device=dev, dtype=BF)
            calls = [
                lambda q=q: ops.marlin_gemm(
                    x,
                    None,
                    q,
                    None,
                    s,
                    None,
                    None,
                    None,
                    g_idx,
                    perm,
                    wsp,
                    scalar_types.uint4b8,
                    m,
                    n,
                    k,
                )
                for q in qs
            ]
            t.row("w4a16", m, n, k, graph_us(calls))
    t.done()


@guard
def gemm_sparse24():
    from torch.sparse import to_sparse_semi_structured

    t = Table("gemm_sparse24_bf16", ["m", "n", "k", "dense_us", "sparse24_us"])
    for n, k in [(4096, 4096), (28672, 4096), (4096, 14336), (8192, 8192)]:
        w = torch.randn(n, k, device=dev, dtype=BF)
        mask = torch.tensor([0, 0, 1, 1], device=dev, dtype=torch.bool).tile(n, k // 4)
        wsp = to_sparse_semi_structured((w * mask).contiguous())
        for m in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
            if left() < 15:
                return t.done()
            x = torch.randn(m, k, device=dev, dtype=BF).t().contiguous().t()
            xs = torch.randn(k, m, device=dev, dtype=BF)
            t.row(
                m,
                n,
                k,
                graph_us([lambda: torch.mm(w, xs)] * 4),
                graph_us([lambda: torch.mm(wsp, xs)] * 4),
            )
    t.done()


HEADS = [
    (32, 8, 128),
    (64, 8, 128),
    (8, 1, 128),
    (16, 2, 128),
    (32, 4, 128),
    (32, 32, 128),
    (40, 40, 128),
    (28, 4, 128),
    (64, 4, 128),
]


@guard
def attention_prefill():
    """FlashAttention-3 over new query tokens (causal), with tokens already in the paged KV cache."""
    t = Table(
        "attention_prefill",
        ["n_heads", "n_kv_heads", "head_dim", "batch", "q_len", "past_len", "us"],
    )
    for h, kv, d in HEADS:
        for past in (0, 1024, 4096, 16384, 65536):
            for batch in (1, 2, 4, 8, 16):
                for q in (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384):
                    if batch * q > 16384 or batch * (q + past) * kv * d * 4 > 12e9 or left() < 30:
                        continue
                    if past and batch > 4:
                        continue
                    if (h, kv) not in ((32, 8), (64, 8), (8, 1)) and (
                        batch > 1 or past not in (0, 4096)
                    ):
                        continue
                    us = fa_varlen(h, kv, d, [(q, q + past)] * batch)
                    t.row(h, kv, d, batch, q, past, us)
    t.done()


def fa_varlen(h, kv, d, seqs, copies_=1):
    block = 16
    nb = [math.ceil(l / block) for _, l in seqs]
    total = sum(nb)
    rep = (
        max(1, min(8, math.ceil(2 * L2 / (total * block * kv * d * 4))))
        if copies_ == 1
        else copies_
    )
    cu = torch.tensor(
        [0] + list(itertools.accumulate(q for q, _ in seqs)), dtype=torch.int32, device=dev
    )
    used = torch.tensor([l for _, l in seqs], dtype=torch.int32, device=dev)
    mq, mk = max(q for q, _ in seqs), max(l for _, l in seqs)
    nq = int(cu[-1])
    qs = torch.randn(nq, h, d, device=dev, dtype=BF)
    out = torch.empty_like(qs)
    calls = []
    keep = []
    for _ in range(rep):
        kc = torch.randn(total, block, kv, d, device=dev, dtype=BF)
        vc = torch.randn(total, block, kv, d, device=dev, dtype=BF)
        perm = torch.randperm(total, device=dev, dtype=torch.int32)
        table = torch.zeros(len(seqs), max(nb), dtype=torch.int32, device=dev)
        o = 0
        for i, n in enumerate(nb):
            table[i, :n] = perm[o : o + n]
            o += n
        keep.append((kc, vc, table))
        sched = None
        try:
            sched = get_scheduler_metadata(
                batch_size=len(seqs),
                max_seqlen_q=mq,
                max_seqlen_k=mk,
                num_heads_q=h,
                num_heads_kv=kv,
                headdim=d,
                cache_seqlens=used,
                qkv_dtype=BF,
                cu_seqlens_q=cu,
                page_size=block,
                causal=True,
            )
        except Exception:
            sched = None
        calls.append(
            lambda kc=kc, vc=vc, table=table, sched=sched: flash_attn_varlen_func(
                q=qs,
                k=kc,
                v=vc,
                out=out,
                cu_seqlens_q=cu,
                max_seqlen_q=mq,
                seqused_k=used,
                max_seqlen_k=mk,
                softmax_scale=d**-0.5,
                causal=True,
                block_table=table,
                fa_version=FA,
                scheduler_metadata=sched,
            )
        )
    return graph_us(calls, target_ms=8.0, repeats=3)


@guard
def attention_decode():
    t = Table("attention_decode", ["n_heads", "n_kv_heads", "head_dim", "batch", "context", "us"])
    for h, kv, d in HEADS:
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            for ctx in (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 131072):
                if batch * ctx * kv * d * 4 > 12e9 or left() < 30:
                    continue
                if (h, kv) not in ((32, 8), (64, 8), (8, 1)) and ctx not in (
                    128,
                    512,
                    2048,
                    8192,
                    32768,
                ):
                    continue
                t.row(h, kv, d, batch, ctx, fa_varlen(h, kv, d, [(1, ctx)] * batch))
    t.done()


@guard
def attention_mixed():
    """Uneven batches: lognormal contexts, and decode rows beside one prefill chunk."""
    g = torch.Generator().manual_seed(7)
    t = Table("attention_mixed", ["n_heads", "n_kv_heads", "head_dim", "seqs_q_context", "us"])
    for h, kv, d in ((32, 8, 128), (64, 8, 128), (8, 1, 128)):
        for batch in (8, 32, 64, 128, 256):
            for mean in (400, 1500, 6000):
                for chunk in (0, 512, 1536, 4096):
                    if left() < 30 or batch * mean * kv * d * 4 > 12e9:
                        continue
                    ls = (
                        (torch.randn(batch, generator=g) * 0.9 + math.log(mean) - 0.4)
                        .exp()
                        .clamp(16, 40000)
                        .long()
                        .tolist()
                    )
                    seqs = [(1, l) for l in ls]
                    if chunk:
                        seqs.append((chunk, chunk + int(torch.randint(0, 3000, (1,), generator=g))))
                    us = fa_varlen(h, kv, d, seqs)
                    t.row(h, kv, d, " ".join(f"{q}:{l}" for q, l in seqs), us)
    t.done()


@guard
def attention_unfused():
    """The same causal attention with separate matmul, softmax and matmul kernels against one fused FlashAttention kernel."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    t = Table(
        "attention_unfused",
        ["n_heads", "head_dim", "q_len", "unfused_us", "flash_us", "unfused_peak_mb"],
    )
    for q in (128, 256, 512, 1024, 2048, 4096, 8192):
        x = [torch.randn(1, 32, q, 128, device=dev, dtype=BF) for _ in range(3)]
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        mask = torch.full((q, q), float("-inf"), device=dev, dtype=BF).triu(1)

        def unfused():
            s = torch.matmul(x[0], x[1].transpose(-1, -2)) * 128**-0.5
            return torch.matmul(torch.softmax(s + mask, -1), x[2])

        u = graph_us([unfused], repeats=3)
        peak = (torch.cuda.max_memory_allocated() - base) / 1e6
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            f = graph_us([lambda: F.scaled_dot_product_attention(*x, is_causal=True)], repeats=3)
        t.row(32, 128, q, u, f, peak)
    t.done()


@guard
def elementwise():
    """Memory-bound layer glue: fused kernels as vLLM runs them, and the same arithmetic as separate eager kernels."""
    t = Table("elementwise", ["op", "tokens", "width", "bytes", "us"])
    for tok in (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384):
        for hid in (2048, 4096, 8192):
            if left() < 20:
                break
            x = torch.randn(tok, hid, device=dev, dtype=BF)
            r = torch.randn_like(x)
            w = torch.ones(hid, device=dev, dtype=BF)
            o = torch.empty_like(x)
            if HAVE_VLLM:
                t.row(
                    "rms_norm_fused_add",
                    tok,
                    hid,
                    4 * tok * hid * 2,
                    graph_us([lambda: ops.fused_add_rms_norm(x, r, w, 1e-6)] * 8, 4, 3),
                )
                g = torch.randn(tok, 7 * hid, device=dev, dtype=BF)
                oo = torch.empty(tok, 7 * hid // 2, device=dev, dtype=BF)
                t.row(
                    "silu_and_mul",
                    tok,
                    7 * hid // 2,
                    3 * tok * 7 * hid // 2 * 2,
                    graph_us([lambda: torch.ops._C.silu_and_mul(oo, g)] * 8, 4, 3),
                )
                q8 = torch.empty(tok, hid, device=dev, dtype=F8)
                t.row(
                    "quant_fp8_per_token",
                    tok,
                    hid,
                    3 * tok * hid,
                    graph_us(
                        [lambda: ops.scaled_fp8_quant(x, use_per_token_if_dynamic=True)] * 8, 4, 3
                    ),
                )
                pos = torch.arange(tok, device=dev)
                qk = torch.randn(tok, hid + 1024, device=dev, dtype=BF)
                cs = torch.randn(16384, 128, device=dev, dtype=BF)
                qq, kk = qk[:, :hid].contiguous(), qk[:, hid:].contiguous()
                t.row(
                    "rotary",
                    tok,
                    hid + 1024,
                    2 * tok * (hid + 1024) * 2,
                    graph_us([lambda: ops.rotary_embedding(pos, qq, kk, 128, cs, True)] * 8, 4, 3),
                )

            def eager_norm():
                y = x + r
                v = y.float()
                return (v * torch.rsqrt(v.pow(2).mean(-1, keepdim=True) + 1e-6)).to(BF) * w

            t.row(
                "rms_norm_add_unfused",
                tok,
                hid,
                4 * tok * hid * 2,
                graph_us([eager_norm] * 4, 4, 3),
            )
            t.row(
                "add",
                tok,
                hid,
                3 * tok * hid * 2,
                graph_us([lambda: torch.add(x, r, out=o)] * 8, 4, 3),
            )
    for tok in (1, 8, 32, 64, 128, 256, 512):
        lg = torch.randn(tok, 128256, device=dev, dtype=torch.float32)
        t.row("argmax", tok, 128256, tok * 128256 * 4, graph_us([lambda: lg.argmax(-1)] * 4, 4, 3))
        t.row(
            "softmax_sample",
            tok,
            128256,
            3 * tok * 128256 * 4,
            graph_us([lambda: torch.softmax(lg, -1)] * 4, 4, 3),
        )
    t.done()


@guard
def moe():
    from vllm.model_executor.layers.fused_moe import fused_experts

    t = Table("moe_bf16", ["experts", "top_k", "hidden", "intermediate", "tokens", "us"])
    for E, k, h, i in (
        (128, 8, 2048, 768),
        (8, 2, 4096, 14336),
        (64, 6, 2048, 1408),
        (256, 8, 7168, 256),
        (128, 8, 4096, 1536),
        (32, 4, 2880, 2880),
    ):
        if left() < 25:
            break
        w1 = torch.randn(E, 2 * i, h, device=dev, dtype=BF) * 0.02
        w2 = torch.randn(E, h, i, device=dev, dtype=BF) * 0.02
        for tok in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192):
            if left() < 20:
                break
            x = torch.randn(tok, h, device=dev, dtype=BF)
            g = torch.randn(tok, E, device=dev).softmax(-1)
            tw, ti = torch.topk(g, k)
            ti = ti.to(torch.int32)
            try:
                t.row(
                    E, k, h, i, tok, graph_us([lambda: fused_experts(x, w1, w2, tw, ti)] * 2, 8, 3)
                )
            except Exception as e:
                print("moe", E, tok, type(e).__name__, str(e)[:160], flush=True)
                break
        del w1, w2
        torch.cuda.empty_cache()
    t.done()


@guard
def memory():
    t = Table("memory", ["op", "bytes", "us"])
    for p in range(12, 34, 1):
        n = 1 << p
        a = torch.empty(n, dtype=torch.uint8, device=dev).random_()
        b = torch.empty_like(a)
        c = max(1, min(16, (3 * L2) // (2 * n))) if n < 3 * L2 else 1
        aa = [a] + [a.clone() for _ in range(c - 1)]
        bb = [b] + [b.clone() for _ in range(c - 1)]
        t.row(
            "copy_cold",
            2 * n,
            graph_us([lambda x=x, y=y: y.copy_(x) for x, y in zip(aa, bb)], 8, 3),
        )
        if n <= 1 << 24:
            t.row("copy_l2", 2 * n, graph_us([lambda: b.copy_(a)] * 8, 4, 3))
        if n >= 1 << 20:
            v = a.view(torch.bfloat16) if n % 2 == 0 else a
            t.row("read_sum", n, graph_us([lambda: torch.sum(a.view(torch.int32))], 8, 3))
    for p in range(14, 31, 2):
        n = 1 << p
        hbuf = torch.empty(n, dtype=torch.uint8, pin_memory=True)
        dbuf = torch.empty(n, dtype=torch.uint8, device=dev)
        for name, fn in (
            ("h2d_pinned", lambda: dbuf.copy_(hbuf, non_blocking=True)),
            ("d2h_pinned", lambda: hbuf.copy_(dbuf, non_blocking=True)),
        ):
            fn()
            torch.cuda.synchronize()
            reps = max(2, min(50, int(2e9 / n / 10)))
            s = time.perf_counter()
            for _ in range(reps):
                fn()
            torch.cuda.synchronize()
            t.row(name, n, (time.perf_counter() - s) / reps * 1e6)
    t.done()


@guard
def launch():
    t = Table("launch", ["case", "kernels", "us_per_kernel"])
    x = torch.zeros(32, device=dev)
    for n in (1, 10, 100, 500):
        for _ in range(3):
            for _ in range(n):
                x.add_(1)
            torch.cuda.synchronize()
        s = time.perf_counter()
        for _ in range(20):
            for _ in range(n):
                x.add_(1)
            torch.cuda.synchronize()
        t.row("eager_with_sync", n, (time.perf_counter() - s) / 20 / n * 1e6)
        t.row("graph", n, graph_us([lambda: x.add_(1)] * n, 4, 3))
    t.done()


@guard
def power():
    """Average watts and SM clock of each kind of work, over at least 1.6 s each."""
    import pynvml as nv

    nv.nvmlInit()
    h = nv.nvmlDeviceGetHandleByIndex(0)
    t = Table(
        "power",
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

    def run(name, detail, calls, flops=0.0, nbytes=0.0, secs=1.6):
        if left() < 8:
            return
        g = None
        if calls:
            calls[0]()
            torch.cuda.synchronize()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                for c in calls:
                    c()
            g.replay()
            torch.cuda.synchronize()
        samples, stop = [], threading.Event()

        def sampler():
            while not stop.is_set():
                try:
                    w = nv.nvmlDeviceGetFieldValues(h, [186])[0].value.uiVal / 1e3
                except Exception:
                    w = nv.nvmlDeviceGetPowerUsage(h) / 1e3
                samples.append(
                    (w, nv.nvmlDeviceGetClockInfo(h, 1), nv.nvmlDeviceGetTemperature(h, 0))
                )
                time.sleep(0.03)

        warm = time.monotonic() + 0.4
        while time.monotonic() < warm:
            if g:
                g.replay()
                torch.cuda.synchronize()
            else:
                time.sleep(0.05)
        th = threading.Thread(target=sampler)
        th.start()
        e0, s, n = nv.nvmlDeviceGetTotalEnergyConsumption(h), time.monotonic(), 0
        while time.monotonic() - s < secs:
            if g:
                g.replay()
                n += 1
                torch.cuda.synchronize()
            else:
                time.sleep(0.05)
        dt = time.monotonic() - s
        e1 = nv.nvmlDeviceGetTotalEnergyConsumption(h)
        stop.set()
        th.join()
        k = len(samples)
        per = n * len(calls) / dt if calls else 0
        t.row(
            name,
            detail,
            dt,
            (e1 - e0) / 1e3 / dt,
            sum(x[0] for x in samples) / k,
            max(x[0] for x in samples),
            sum(x[1] for x in samples) / k,
            samples[-1][2],
            flops * per,
            nbytes * per,
        )

    run("idle", "", [])
    time.sleep(0.5)
    for n in (1 << 22, 1 << 26, 1 << 30):
        a = torch.empty(n, dtype=torch.uint8, device=dev).random_()
        b = torch.empty_like(a)
        run("copy", f"{n}", [lambda: b.copy_(a)] * max(4, (1 << 28) // n), 0, 2 * n)
    for dt_name, dt, el in (("bf16", BF, 2), ("fp8", F8, 1)):
        for m in (1, 16, 64, 128, 256, 512, 2048, 8192):
            n, k = 8192, 8192
            ws = [
                torch.randn(n, k, device=dev, dtype=BF).to(dt) for _ in range(8 if el == 1 else 6)
            ]
            x = torch.randn(m, k, device=dev, dtype=BF).to(dt)
            sa = torch.ones(m, 1, device=dev)
            sb = torch.ones(1, n, device=dev)
            if dt_name == "bf16":
                calls = [lambda w=w: torch.mm(x, w.t()) for w in ws] * 4
            elif HAVE_VLLM:
                calls = [lambda w=w: ops.cutlass_scaled_mm(x, w.t(), sa, sb, BF) for w in ws] * 4
            else:
                calls = [
                    lambda w=w: torch._scaled_mm(x, w.t(), scale_a=sa, scale_b=sb, out_dtype=BF)
                    for w in ws
                ] * 4
            run(
                f"gemm_{dt_name}",
                f"m={m} n={n} k={k}",
                calls,
                2.0 * m * n * k,
                el * (n * k + m * k) + 2 * m * n,
            )
    x = [torch.randn(8192, 8192, device=dev) for _ in range(2)]
    torch.backends.cuda.matmul.allow_tf32 = False
    run("gemm_fp32", "m=n=k=8192", [lambda: torch.mm(*x)], 2.0 * 8192**3, 3 * 4 * 8192**2)
    t.done()


try:
    from vllm import _custom_ops as ops
    from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata

    HAVE_VLLM, FA = True, 3
except Exception as e:
    print("no vLLM kernels:", type(e).__name__, str(e)[:300], flush=True)
    HAVE_VLLM = False

p = torch.cuda.get_device_properties(0)
info = dict(
    name=p.name,
    sms=p.multi_processor_count,
    memory=p.total_memory,
    l2=p.L2_cache_size,
    torch=torch.__version__,
    cuda=torch.version.cuda,
    vllm=HAVE_VLLM,
    smem_per_sm=p.shared_memory_per_multiprocessor,
)
try:
    import subprocess

    info["smi"] = subprocess.run(
        [
            "nvidia-smi",
            "--query-gpu=name,driver_version,power.limit,clocks.max.sm,clocks.max.mem,power.draw,temperature.gpu,pcie.link.gen.max,pcie.link.width.max",
            "--format=csv,noheader",
        ],
        capture_output=True,
        text=True,
    ).stdout.strip()
except Exception:
    pass
json.dump(info, open(f"{OUT}/device.json", "w"), indent=1)
print(info, flush=True)
STEPS = (
    sys.argv[3].split(",")
    if len(sys.argv) > 3
    else [
        "memory",
        "launch",
        "gemm_bf16",
        "attention_decode",
        "attention_prefill",
        "attention_mixed",
        "elementwise",
        "gemm_fp8",
        "power",
        "moe",
        "gemm_other",
        "sparse",
        "unfused",
        "w4",
    ]
)
for step in STEPS:
    if step == "memory":
        memory()
    if step == "launch":
        launch()
    if step == "gemm_bf16":
        gemm("bf16", MS, NKS)
    if step == "gemm_fp8":
        gemm("fp8", MS, NKS[:21])
    if step == "gemm_other":
        few = [(4096, 4096), (28672, 4096), (4096, 14336), (8192, 8192)]
        gemm("fp16", MS[::3], few)
        gemm("int8", MS[4::2], few)
        gemm("tf32", MS[::3], few[:2])
        gemm("fp32", MS[::4], few[:1])
    if step == "attention_decode" and HAVE_VLLM:
        attention_decode()
    if step == "attention_prefill" and HAVE_VLLM:
        attention_prefill()
    if step == "attention_mixed" and HAVE_VLLM:
        attention_mixed()
    if step == "elementwise":
        elementwise()
    if step == "moe" and HAVE_VLLM:
        moe()
    if step == "power":
        power()
    if step == "sparse":
        gemm_sparse24()
    if step == "unfused":
        attention_unfused()
    if step == "w4" and HAVE_VLLM:
        gemm_w4()
print("done", f"{time.monotonic() - T0:.0f} s", flush=True)
