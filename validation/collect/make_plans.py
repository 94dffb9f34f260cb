"""Write the plans, the length file and the multi-turn replay that serve.py plays.

  python make_plans.py OUTDIR AZURE_CONV_CSV_GZ

AZURE_CONV_CSV_GZ: the Azure LLM inference trace 2023, conversation (columns with context and generated tokens last).
"""

import csv
import gzip
import json
import math
import random
import sys
from pathlib import Path

LENGTHS = "conv_lengths.csv"

COMMON = {
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.02,
}
LLAMA8B = {
    **COMMON,
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
}
QWEN32B = {
    **COMMON,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 25600,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
}
QWEN14B = {
    **COMMON,
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 13824,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
}

QWEN30B_A3B = {
    **COMMON,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
}


def poisson(name, rate, seconds, seed, file=LENGTHS, **kw):
    return {
        "name": name,
        "kind": "poisson",
        "rate": rate,
        "seconds": seconds,
        "lengths": file,
        "seed": seed,
        **kw,
    }


def static(batch, prompt, output=32, **kw):
    return {
        "name": f"static_b{batch}_p{prompt}",
        "kind": "static",
        "batch": batch,
        "prompt": prompt,
        "output": output,
        **kw,
    }


def closed(c, n, prompt, output, **kw):
    return {
        "name": f"closed_c{c}_p{prompt}_o{output}",
        "kind": "closed",
        "concurrency": c,
        "requests": n,
        "prompt": prompt,
        "output": output,
        **kw,
    }


def traced(batch, prompt, when="decode", steps=8, output=32):
    """A static batch of which a few steps are traced kernel by kernel."""
    return {
        "name": f"trace_{when}_b{batch}_p{prompt}",
        "kind": "static",
        "batch": batch,
        "prompt": prompt,
        "output": output,
        "timeout_s": 40,
        "cost_s": 10,
        "profile": {"steps": steps, "when": when, "batch": batch},
    }


def turns(path, sessions=64, span=34.0, seed=5):
    """Sessions of 3 to 7 turns that arrive at random; each prompt repeats the previous one and adds 120 to 900 tokens."""
    rng = random.Random(seed)
    rows = []
    for s in range(sessions):
        t, prompt, prefix = (
            rng.uniform(0, span * 0.7),
            int(min(4000, math.exp(rng.gauss(6.9, 0.6)))),
            0,
        )
        for _ in range(rng.randint(3, 7)):
            out = int(min(400, max(20, math.exp(rng.gauss(4.6, 0.7)))))
            rows.append((t, prompt, out, f"s{s}", prefix))
            prefix = prompt
            prompt += rng.randint(120, 900)
            t += 0.8 + out * 0.012 + rng.expovariate(1 / 3.0)
    rows = sorted(r for r in rows if r[0] < span + 6)
    with path.open("w", newline="") as f:
        w = csv.writer(f)
        w.writerow(["arrival_s", "prompt_tokens", "output_tokens", "session", "prefix_tokens"])
        w.writerows((f"{r[0]:.3f}", *r[1:]) for r in rows)
    print(
        path.name,
        len(rows),
        "turns, prompts",
        sum(r[1] for r in rows),
        "repeated",
        sum(r[4] for r in rows),
        "out",
        sum(r[2] for r in rows),
    )


def lengths(path, source):
    with gzip.open(source, "rt") as f:
        rows = list(csv.reader(f))
    pairs = [(int(r[-2]), int(r[-1])) for r in rows if r[-1].strip().isdigit()]
    with path.open("w", newline="") as f:
        csv.writer(f).writerows(pairs)
    n = len(pairs)
    print(
        path.name,
        n,
        "mean prompt",
        sum(p for p, _ in pairs) / n,
        "mean output",
        sum(o for _, o in pairs) / n,
        "max",
        max(pairs),
        max(o for _, o in pairs),
    )


PLANS = [
    {
        "name": "llama8b_3000",
        "model": LLAMA8B,
        "budget_s": 330,
        "engine": {
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 512,
            "enable_prefix_caching": True,
            "num_gpu_blocks_override": 3000,
            "max_model_len": 18432,
        },
        "workloads": [
            static(1, 512),
            static(32, 512),
            poisson("conv_r15", 15, 40, 21, cost_s=60),
            {"name": "turns_b", "kind": "replay", "file": "turns_b.csv", "cost_s": 50},
            poisson("conv_r4", 4, 35, 22, cost_s=45),
            poisson("conv_r20", 20, 20, 23, cost_s=40),
            closed(64, 128, 600, 200, cost_s=15),
            traced(32, 1000),
            traced(8, 1500),
            traced(1, 2048, "any", 4, 6),
        ],
    },
    {
        "name": "qwen32b",
        "model": QWEN32B,
        "budget_s": 330,
        "engine": {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512,
            "enable_prefix_caching": False,
            "max_model_len": 18432,
        },
        "workloads": [
            static(1, 512),
            static(32, 512),
            static(1, 4096),
            poisson("conv_r6", 6, 40, 31, cost_s=75),
            poisson("conv_r3.5", 3.5, 40, 32, cost_s=65),
            closed(32, 64, 1024, 128, cost_s=20),
            static(128, 512, cost_s=10),
            traced(32, 1000),
            traced(128, 512),
            traced(2, 4096, "any", 3, 6),
        ],
    },
    {
        "name": "llama8b_fp8",
        "model": LLAMA8B,
        "budget_s": 330,
        "engine": {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512,
            "enable_prefix_caching": False,
            "max_model_len": 18432,
            "quantization": "fp8",
            "kv_cache_dtype": "fp8",
        },
        "workloads": [
            static(1, 512),
            static(32, 512),
            poisson("conv_r10", 10, 30, 41, cost_s=40),
            poisson("conv_r36", 36, 30, 42, cost_s=45),
            static(256, 512, cost_s=8),
            traced(32, 1000),
            traced(128, 1000),
            traced(2, 4096, "any", 3, 6),
        ],
    },
    {
        "name": "qwen14b",
        "model": QWEN14B,
        "budget_s": 110,
        "engine": {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512,
            "enable_prefix_caching": False,
            "max_model_len": 18432,
        },
        "workloads": [
            static(1, 512),
            static(32, 512),
            poisson("conv_r12", 12, 35, 51, cost_s=55),
            poisson("conv_r6", 6, 25, 52, cost_s=38),
            static(128, 512, cost_s=8),
            traced(32, 1000),
            traced(2, 4096, "any", 3, 6),
        ],
    },
    {
        "name": "llama8b_bf16",
        "model": LLAMA8B,
        "budget_s": 80,
        "engine": {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512,
            "enable_prefix_caching": False,
            "max_model_len": 18432,
        },
        "workloads": [
            static(1, 512),
            static(32, 512),
            poisson("conv_r18", 18, 35, 71, cost_s=48),
            static(128, 512, cost_s=3),
            traced(256, 512),
            traced(64, 2000),
            traced(8, 1000, "any", 3, 6),
            traced(1, 300, "any", 3, 6),
        ],
    },
    {
        "name": "qwen30b_a3b",
        "model": QWEN30B_A3B,
        "budget_s": 100,
        "engine": {
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 512,
            "enable_prefix_caching": False,
            "max_model_len": 18432,
        },
        "workloads": [
            static(1, 512),
            static(32, 512),
            static(8, 512),
            static(64, 512),
            {**static(32, 512), "name": "static_b32_p512_again"},
            poisson("conv_r6", 6, 30, 61, cost_s=45),
            traced(1, 1000),
            traced(8, 1000),
            traced(32, 1000),
            traced(128, 1000),
            traced(2, 4096, "any", 3, 6),
            traced(2, 200, "any", 3, 6),
        ],
    },
]


def write(out, plans):
    for plan in plans:
        (out / f"{plan['name']}.json").write_text(json.dumps(plan, indent=1))


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    lengths(out / LENGTHS, sys.argv[2])
    turns(out / "turns_b.csv")
    write(out, PLANS)


if __name__ == "__main__":
    main()
