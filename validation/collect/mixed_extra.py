"""FlashAttention-3 where one call holds decodes beside a prompt chunk, with an fp8 and a bf16 cache, and the kernels around fp8 work.

  python mixed_extra.py OUTDIR [BUDGET_S]

attention_mixed_fp8.csv  kv_dtype, n_heads, n_kv_heads, head_dim, decodes, context, spread, chunk, past, scheduled, us: one call
                         with `decodes` sequences of one query over `context` tokens (spread log0.9: lognormal of that mean) and one of `chunk` queries over chunk + past
                         (chunk 0: decodes alone); scheduled 1: with the tile schedule computed ahead as vLLM 0.24 does, and
                         its 32 splits up to 512 tokens; 0: without the schedule
elementwise_fp8.csv      op, tokens, width, us: vLLM's own kernels, operands rotate through more than the L2
"""

import functools
import itertools
import sys

import torch
from attention_extra import BLOCK, FP8, block_table, call, contexts, metadata, randn, tensors
from attention_extra import GEN as SHUFFLE
from gpu_tools import BF16, DEV, L2_BYTES, Budget, Table, copies, graph_us, guard
from vllm import _custom_ops as ops

OUT = sys.argv[1]
budget = Budget(float(sys.argv[2]) if len(sys.argv) > 2 else 120.0)
CAPTURED = 512  # tokens up to which vLLM plays CUDA graphs and asks for 32 splits
LONGEST = 18_432


def batch_calls(h, kv, d, seqs, dtype, scheduled=True):
    """As attention_extra.own_cache, with vLLM's splits and schedule for this batch."""
    cu, used, rows = tensors(seqs)
    total, queries = sum(rows), sum(q for q, _ in seqs)
    alone = all(q == 1 for q, _ in seqs)
    splits = 32 if queries <= CAPTURED else 0
    longest = LONGEST if alone and splits else None
    rep = max(1, min(8, -(-2 * L2_BYTES // (total * BLOCK * kv * d * 2 * dtype.itemsize))))
    q = randn(queries, h, d, dtype=dtype)
    out = torch.empty(q.shape, device=DEV, dtype=BF16)
    scales = None if dtype == BF16 else torch.ones(1, device=DEV).expand(len(seqs), kv)
    meta = metadata(seqs, h, kv, d, used, cu, dtype, splits) if scheduled else None
    calls = []
    for _ in range(rep):
        table = block_table(torch.randperm(total, generator=SHUFFLE).int(), rows)
        kc, vc = (randn(total, BLOCK, kv, d, dtype=dtype) for _ in range(2))
        calls.append(call(q, out, kc, vc, table, cu, used, seqs, d, meta, splits, longest, scales))
    return calls


@guard
def mixed():
    t = Table(
        OUT,
        "attention_mixed_fp8",
        "kv_dtype n_heads n_kv_heads head_dim decodes context spread chunk past scheduled us".split(),
    )
    dtypes = (("fp8", FP8), ("bf16", BF16))

    def row(name, dtype, heads, n, ctx, chunk, past=0, scheduled=1, spread="uniform"):
        if budget.left() < 12:
            return
        decodes = [(1, c) for c in (contexts(n, ctx, spread) if n else [])]
        seqs = decodes + [(chunk, chunk + past)] * (chunk > 0)
        us = graph_us(batch_calls(*heads, seqs, dtype, bool(scheduled)), 5.0)
        t.row(name, *heads, n, ctx, spread, chunk, past, scheduled, us)

    llama, deep = (32, 8, 128), (64, 8, 128)
    counts, means = (32, 64, 128, 160, 256, 400), (1000, 300, 3000, 500, 1500)
    for (name, dtype), past, chunk in itertools.product(
        dtypes, (0, 4096), (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    ):
        row(name, dtype, llama, 0, 0, chunk, past)
        row(name, dtype, deep, 0, 0, chunk, past)
    for ctx, n, (name, dtype) in itertools.product(means, counts, dtypes):
        row(name, dtype, llama, n, ctx, 0)
        for chunk, past in itertools.product((512, 2048, 8192), (0, 4096)):
            if chunk != 8192 or n in (64, 160, 400):
                row(name, dtype, llama, n, ctx, min(chunk, 8192 - n), past)
    for ctx, n, (name, dtype) in itertools.product((300, 1000), (64, 128, 256, 400), dtypes):
        for chunk in (64, 128, 256, 1024):
            row(name, dtype, llama, n, ctx, chunk)
        row(name, dtype, llama, n, ctx, 512, scheduled=0)
        row(name, dtype, deep, n, ctx, 0)
        row(name, dtype, deep, n, ctx, 1024)
        for chunk in (0, 512, 1500):
            row(name, dtype, llama, n, ctx, chunk, spread="log0.9")
    t.done()


def rotate(make, nbytes):
    """One call per operand set."""
    return [make() for _ in range(copies(nbytes, 12))]


def cache_write(tokens, kind, kv=8, d=128):
    k, v = randn(tokens, kv, d), randn(tokens, kv, d)
    shape = (tokens // BLOCK + 1, 2, BLOCK, kv, d)
    cache = torch.zeros(shape, device=DEV, dtype=BF16 if kind == "auto" else torch.uint8)
    slots = torch.randperm(tokens, device=DEV)
    one = torch.ones(1, device=DEV)
    return functools.partial(
        ops.reshape_and_cache_flash, k, v, cache[:, 0], cache[:, 1], slots, kind, one, one
    )


def quantise(tokens, width, scale=None):
    x, out = randn(tokens, width), torch.empty(tokens, width, device=DEV, dtype=FP8)
    per_token = scale is None
    return functools.partial(
        ops.scaled_fp8_quant, x, scale, use_per_token_if_dynamic=per_token, output=out
    )


def silu_quantise(tokens, width):
    x, out = randn(tokens, 2 * width), torch.empty(tokens, width, device=DEV, dtype=FP8)
    return functools.partial(torch.ops._C.silu_and_mul_quant, out, x, torch.ones(1, device=DEV))


def norm_quantise(tokens, width):
    x, r, w = randn(tokens, width), randn(tokens, width), randn(width)
    return functools.partial(ops.rms_norm_dynamic_per_token_quant, x, w, 1e-5, FP8, None, r)


@guard
def elementwise():
    t = Table(OUT, "elementwise_fp8", ["op", "tokens", "width", "us"])
    one = torch.ones(1, device=DEV)
    kinds = {
        "kv_write_fp8": (1024, lambda n: cache_write(n, "fp8"), 6),
        "kv_write": (1024, lambda n: cache_write(n, "auto"), 8),
        "quant_fp8_static": (4096, lambda n: quantise(n, 4096, one), 3),
        "quant_fp8_per_token": (4096, lambda n: quantise(n, 4096), 3),
        "silu_quant_fp8_static": (14336, lambda n: silu_quantise(n, 14336), 5),
        "rms_norm_quant_fp8_per_token": (4096, lambda n: norm_quantise(n, 4096), 7),
    }
    for tokens in (1, 16, 64, 128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192):
        for name, (width, make, per) in kinds.items():
            if budget.left() < 3:
                return t.done()
            try:
                calls = rotate(functools.partial(make, tokens), tokens * width * per)
                t.row(name, tokens, width, graph_us(calls, 3.0))
            except Exception as e:
                print(name, tokens, type(e).__name__, str(e)[:200], flush=True)
    return t.done()


if __name__ == "__main__":
    elementwise()
    mixed()
