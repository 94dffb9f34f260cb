"""Write the plans of the fresh runs, which no fit and no choice of a form has seen, and of the runs with speculation.

  python make_fresh_plans.py OUTDIR AZURE_CONV_CSV_GZ AZURE_CODE_CSV_GZ

The traces: Azure LLM inference 2023, conversation and code.
"""

import csv
import math
import random
import sys
from pathlib import Path

from make_plans import COMMON, LENGTHS, LLAMA8B, closed, lengths, poisson, static, traced, write

CODE, LONG = "code_lengths.csv", "long_lengths.csv"
LLAMA3B = {
    **LLAMA8B,
    **COMMON,
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "intermediate_size": 8192,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
ENGINE = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 512,
    "enable_prefix_caching": False,
    "max_model_len": 34816,
}
LOOKUP = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}
CHOSEN = {  # drafts of the same lookup, accepted with these chances by position, whatever the model says
    **LOOKUP,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [0.8, 0.6, 0.45, 0.35],
}


def long_prompts(path, n=4000, seed=808):
    """Prompts spread evenly in their logarithm over 8,000 to 30,000 tokens, outputs of 50 to 300."""
    rng = random.Random(seed)
    with path.open("w", newline="") as f:
        csv.writer(f).writerows(
            (int(math.exp(rng.uniform(math.log(8e3), math.log(30e3)))), rng.randint(50, 300))
            for _ in range(n)
        )


def wide(batch, prompt, output):
    """A static batch whose name holds its output too."""
    name = f"static_b{batch}_p{prompt}_o{output}"
    return {**static(batch, prompt, output), "name": name, "cost_s": 12}


def mixed(batch, prompt, chunk, **kw):
    """One prompt that arrives while a static batch decodes; the step that holds both is traced."""
    return {
        "name": f"trace_mixed_b{batch}_p{prompt}_q{chunk}",
        "kind": "mixed",
        "batch": batch,
        "prompt": prompt,
        "output": 600,
        "chunks": [chunk],
        "after_s": 3.0,
        "every_s": 1.0,
        "cost_s": 12,
        "timeout_s": 40,
        "profile": {"steps": 1, "when": "mixed", "batch": batch},
        **kw,
    }


def plan(name, budget_s, workloads, model=LLAMA8B, **engine):
    return {
        "name": name,
        "model": model,
        "budget_s": budget_s,
        "engine": {**ENGINE, **engine},
        "workloads": workloads,
    }


def speculative(name, seed, settings):
    return plan(
        name,
        110,
        [
            *(wide(b, 512, 128) for b in (1, 8, 32, 128)),
            poisson("conv_r8", 8, 25, seed, cost_s=35),
        ],
        speculative_config=settings,
        scheduler_cls="step_log.SyncStepLogScheduler",
    )


PLANS = [
    plan(
        "llama8b_fp8",
        160,
        [
            static(1, 512),
            poisson("conv_r12", 12, 27, 1102, cost_s=35),
            poisson("conv_r30", 30, 27, 1103, cost_s=40),
            wide(256, 128, 256),
            *(traced(1, q, "any", 1, 4) for q in (256, 640, 1024, 1536, 3072)),
            mixed(160, 500, 512),
            mixed(256, 500, 1024, after_s=3.5),
            mixed(256, 1000, 512, after_s=7.0),
            mixed(64, 1000, 1024, after_s=2.0),
        ],
        quantization="fp8",
        kv_cache_dtype="fp8",
    ),
    plan(
        "llama8b_bf16",
        230,
        [
            static(1, 512),
            poisson("conv_r10", 10, 27, 1201, cost_s=35),
            poisson("conv_r22", 22, 27, 1202, cost_s=40),
            poisson("code_r5", 5, 27, 1203, CODE, cost_s=35),
            poisson("long_r0.9", 0.9, 28, 1204, LONG, max_prompt=32000, cost_s=38),
            wide(16, 4096, 128),
            closed(128, 1024, 512, 128, cost_s=25),
            traced(1, 1024, "any", 1, 4),
            mixed(256, 500, 1024, after_s=4.5),
        ],
    ),
    plan(
        "llama3b_bf16",
        90,
        [
            static(1, 512),
            static(32, 512),
            poisson("conv_r15", 15, 26, 1301, cost_s=33),
            poisson("conv_r40", 40, 26, 1302, cost_s=36),
            traced(32, 1000),
            traced(1, 1024, "any", 1, 4),
        ],
        model=LLAMA3B,
    ),
    speculative("llama8b_lookup", 1401, LOOKUP),
    speculative("llama8b_chosen", 1402, CHOSEN),
]


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    lengths(out / LENGTHS, sys.argv[2])
    lengths(out / CODE, sys.argv[3])
    long_prompts(out / LONG)
    write(out, PLANS)


if __name__ == "__main__":
    main()
