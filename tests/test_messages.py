"""Messages of formats and leaves: each names what is wrong, with the value, and the range."""

import gzip
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from formats import InputError, files, read_table, read_text
from hardware import (
    calibration_files,
    calibration_traces,
    capital,
    collectives,
    interconnect,
    kernels_limits,
    links,
    silicon,
    unit_costs,
)
from hardware import costs as cost_tables
from hardware.calibration import calibrate
from hardware.catalog import load_accelerator
from hardware.kernels import load_kernels
from hardware.kernels_families import family
from hardware.power import power_model
from hardware.specs import AcceleratorSpec
from policies import batching, speculation
from workloads import (
    arrival_specs,
    arrivals,
    attending,
    compression,
    distributions,
    experts,
    hf_config,
    huggingface,
    layers,
    lengths,
    models,
    named,
    pruning,
    renewal,
    requests,
    servegen,
    synthesis,
    traces,
)

DATE = "2026-01-31"
RNG = np.random.default_rng(0)
ROW = {"arrival_s": [0.0], "prompt_tokens": [600], "output_tokens": [2]}
SERVEGEN = "client_id,window_start_s,rate_req_per_s,iat_cv,iat_dist\n"
TURNS = {"kind": "multi-turn", "turns": {"kind": "constant", "tokens": 2}}
TURNS |= {"pause_s": 10}


def put(folder, text, name="file.csv"):
    path = folder / name
    path.write_text(text)
    return path


def refuses(cases):
    """Run every case: what must fail, and words of its message."""
    return pytest.mark.parametrize(("call", "words"), cases.values(), ids=cases)


# -- formats


def _forbidden(folder):
    with mock.patch.object(Path, "open", side_effect=PermissionError):
        read_text(folder / "x")


def _large(folder):
    with mock.patch.object(files, "MAX_TEXT_BYTES", 3):
        read_text(put(folder, "12345"))


@refuses(
    {
        "a folder": (read_text, "is a folder, not a file; name a file"),
        "no header": (
            lambda f: read_table(put(f, ""), ["a", "b"]),
            "is empty; it needs columns a,b",
        ),
        "unknown column": (lambda f: read_table(put(f, "a,c\n"), ["a"]), "column 'c' is not known"),
        "no permission": (_forbidden, "cannot be read; check its permissions"),
        "too large": (_large, "text is larger than 2 GiB; split it"),
        "bad header": (lambda f: read_table(put(f, "a\rb,c\n"), ["a"]), "line"),
    }
)
def test_formats(call, words, tmp_path):
    with pytest.raises(InputError, match=words):
        call(tmp_path)


# -- hardware


def traced(folder, kind, text):
    put(folder, text, f"{kind}.csv")
    return calibration_traces.read_traces(folder)


def calibration(folder, families, rows=()):
    table = "\n".join(["family,extent,log_residual,weight", *rows, ""])
    (folder / "c.residuals.csv.gz").write_bytes(gzip.compress(table.encode()))
    head = (
        f'schema_version = 1\naccelerator = "h200-sxm"\nsource = "a test"\ndate = "{DATE}"\n'
        f'residuals = "c.residuals.csv.gz"\n{families}'
    )
    return calibration_files.load_calibration(put(folder, head, "c.toml"))


def copied(points=0):
    wanted = "".join(f"{name} = 0.5\n" for name in family("copy_cold").start)
    return f"[families.copy_cold]\npoints = {points}\n[families.copy_cold.coefficients]\n{wanted}"


def costs(folder, **changed):
    row = {"item": "rent.x", "value": "1", "unit": "USD/h", "currency": "USD", "kind": "assumption"}
    row |= {"price_year": "2026", "source": "a test", "date": DATE} | changed
    head = ",".join(cost_tables.COLUMNS)
    line = ",".join(row.get(name, "") for name in cost_tables.COLUMNS)
    return cost_tables.read_costs(put(folder, f"{head}\n{line}\n"))


def link(**changed):
    data = links.load_link("nvlink4-h200").model_dump(exclude_none=True) | changed
    return links.Link.model_validate(data)


def chip(**changed):
    return AcceleratorSpec.model_validate(
        load_accelerator("h200-sxm").model_dump(exclude_none=True) | changed
    )


def amount(value, unit):
    return {"value": value, "unit": unit, "kind": "datasheet", "source": "a test"}


H200 = load_accelerator("h200-sxm")
WORK = unit_costs.Work
CALIBRATION = {
    "name of the output": (
        lambda f: calibrate(f, H200, f / "out.txt"),
        r"out.txt must end in .toml; use out.toml",
    ),
    "no family": (
        lambda f: calibration(f, "[families.gem]\npoints = 0\ncoefficients = {}\n"),
        "gem",
    ),
    "other coefficients": (
        lambda f: calibration(f, "[families.copy_cold]\npoints = 0\ncoefficients = {x = 1.0}\n"),
        "do not match .*fit again",
    ),
    "points missing": (lambda f: calibration(f, copied(3)), "0 residual points, 3 expected"),
    "a point that is none": (
        lambda f: calibration(f, copied(1), ["copy_cold,x,0.1,1"]),
        "bad residual point: .*fit again",
    ),
    "a point of another kind": (
        lambda f: calibration(f, copied(1), ["copy_cold,1 2 3,0.1,1"]),
        "residual points have 3 extents, 1 expected",
    ),
    "trace without rows": (
        lambda f: traced(f, "memory", "op,bytes,us\n"),
        "has a header but no rows; measure again",
    ),
    "trace with a negative time": (
        lambda f: traced(f, "memory", "op,bytes,us\ncopy_cold,8,-1\n"),
        r"memory.csv line 2: us = .*-1.* \(allowed: a number above 0\)",
    ),
    "operation unknown": (
        lambda f: traced(f, "elementwise", "op,tokens,width,bytes,us\nnorn,1,1,1,1\n"),
        "op 'norn' is not known; .known: add",
    ),
    "sequences misspelt": (
        lambda f: traced(
            f, "attention_mixed", "n_heads,n_kv_heads,head_dim,seqs_q_context,us\n8,8,64,1x9,5\n"
        ),
        "line 2: seqs_q_context = '1x9'",
    ),
    "about.json": (
        lambda f: calibration_traces.read_about(put(f, "{", "about.json").parent),
        "cannot be read: .*mend or remove it",
    ),
}
MONEY = {
    "kind": (lambda f: costs(f, kind="guess"), "line 2: kind 'guess' is not known"),
    "no unit": (lambda f: costs(f, unit=""), "unit is empty; say it"),
    "year": (lambda f: costs(f, price_year="1066"), r"price_year = '1066' \(allowed: 2000 .. 2100"),
    "date": (lambda f: costs(f, date="May"), "date = 'May'"),
    "rate": (lambda _: capital.need("rate", -1.0), "money: rate = -1"),
    "nothing served": (
        lambda _: unit_costs.cost_per_million_tokens({"input": WORK(0, 0, 0)}, 1.0, 1.0),
        "nothing was served: .*lengthen the run",
    ),
    "no tokens": (
        lambda _: unit_costs.cost_per_million_tokens({"input": WORK(0, 1, 1)}, 1.0, 1.0),
        "input has 1 s and 1 J but no tokens",
    ),
}
LINKS = {
    "collective": (lambda _: collectives.check_operation("all_reduc"), "did you mean 'all_reduce'"),
    "algorithm": (
        lambda _: collectives.algorithm_seconds("rings", 1.0, 2, 0.0, 0.0, 1.0),
        "no all-reduce algorithm 'rings'",
    ),
    "bytes": (
        lambda _: interconnect.collective_s("all_reduce", -1.0, 2, "nvlink4-h200"),
        "bytes = -1",
    ),
    "imbalance": (
        lambda _: interconnect.collective_s("all_to_all", 1.0, 2, "nvlink4-h200", 0.5),
        "imbalance = 0.5",
    ),
    "ranks": (
        lambda _: interconnect.collective_s("all_reduce", 1.0, 9, "nvlink4-h200"),
        "9 ranks on .*hierarchical_s",
    ),
    "a switch that does not add": (
        lambda _: interconnect.all_reduce_s("nvls", 1.0, 2, "nvlink3-a100"),
        "does not add",
    ),
    "ports": (lambda _: interconnect.send_s(1.0, "infiniband-ndr", 0.0), "ports = 0"),
    "operation between nodes": (
        lambda _: interconnect.hierarchical_s("send", 1.0, 8, 2, "nvlink4-h200", "infiniband-ndr"),
        "send over 2 nodes",
    ),
    "overlap": (
        lambda _: interconnect.exposed_s(1.0, 1.0, 1.5),
        r"overlap = 1.5 \(allowed: 0 .. 1",
    ),
    "unit": (lambda _: link(bytes_per_s=amount(1.0, "GB/s")), "unit 'GB/s' must be 'byte/s'"),
    "rate": (lambda _: link(bytes_per_s=amount(0.0, "byte/s")), "must be above 0"),
    "origin": (lambda _: link(carried_from=("x",)), "exactly one of fitted, carried_from"),
    "torus": (lambda _: link(topology="torus"), "a torus needs dims"),
}
KERNELS = {
    "calibration": (
        lambda _: load_kernels(H200.model_copy(update={"calibration": "h2"})),
        "no calibration named 'h2'; did you mean",
    ),
    "family": (lambda _: family("gemm_bf61"), "no kernel family named 'gemm_bf61'"),
    "vector width": (
        lambda _: kernels_limits.limited(
            load_kernels(H200).chip, H200, kernels_limits.Limits(simd_bits=256)
        ),
        "simd_bits = 256 .*its matrix units have no such width",
    ),
    "units": (
        lambda _: kernels_limits.limited(
            load_kernels(H200).chip, H200, kernels_limits.Limits(units=1000)
        ),
        "units = 1000 .*up to 132",
    ),
    "element-wise": (
        lambda _: load_kernels(H200).elementwise("norn", 1, 1),
        "operation named 'norn'",
    ),
    "copy path": (lambda _: load_kernels(H200).copy(1.0, "l3"), "no copy path named 'l3'"),
    "experts": (
        lambda _: load_kernels(H200).moe(1, 8, 2, 8, 8, "bf61"),
        "expert type named 'bf61'",
    ),
    "type without a peak": (
        lambda _: load_kernels(H200).gemm(1, 1024, 1024, "fp4"),
        "has no fp4 peak, which gemm_fp4 needs",
    ),
    "peak": (lambda _: H200.peak("fp4"), "has no fp4 peak"),
    "precision": (lambda _: H200.peak("fp7"), "no precision named 'fp7'"),
    "power": (lambda _: power_model(H200, 10.0), "a power cap of 10 W cannot hold"),
    "unit of a number": (
        lambda _: chip(power={"tdp_w": amount(1, "kW"), "idle_w": amount(1, "W")}),
        "unit 'kW' must be 'W'",
    ),
    "NVIDIA's accelerator": (lambda f: silicon.read_gemm(f, "h2000"), "no NVIDIA table of 'h2000'"),
    "NVIDIA's table": (lambda f: silicon.read_gemm(f, "h200-sxm"), "no table gemm_perf.parquet"),
    "NVIDIA's family": (
        lambda f: silicon.read_traces(f, "h200-sxm", ["gem"]),
        "no kernel family 'gem'",
    ),
    "date of measurement": (lambda f: silicon.write_tables({}, f, "x", "today"), "YYYY-MM-DD"),
}


@refuses(CALIBRATION | {f"cost: {k}": v for k, v in MONEY.items()} | LINKS | KERNELS)
def test_hardware(call, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        call(tmp_path)


# -- workloads


def piecewise(**changed):
    data = {"starts_s": [0, 5], "rates_per_s": [1, 2]} | changed
    return arrival_specs.Piecewise.model_validate(data)


def gaps(probabilities, values):
    return arrival_specs.Gaps(rate_per_s=1, probabilities=probabilities, gaps=values)


def table(**columns):
    return requests.check_requests(pd.DataFrame({**ROW, **columns}))


def mooncake(folder, *rows):
    return traces.read_trace(put(folder, "\n".join(rows), "trace.jsonl"), "mooncake")


def config(folder, **changed):
    data = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100}
    data |= {"num_attention_heads": 4, "intermediate_size": 128, "torch_dtype": "bfloat16"}
    data |= {"max_position_embeddings": 512}
    return huggingface.load_huggingface(put(folder, json.dumps(data | changed), "config.json"))


def model(name="llama-3.1-8b", **changed):
    return models.ModelSpec.model_validate(
        models.load_model(name).model_dump(exclude_none=True) | changed
    )


def part(**changed):
    data = {"arrivals": {"kind": "poisson", "rate_per_s": 1}, "lengths": "azure-conv"} | changed
    return named.WorkloadPart.model_validate(data)


def drawn(**changed):
    return named.make_requests(part(**changed), named.Streams.of_seed(1))


def _endless(_):
    with mock.patch.object(renewal, "MAX_REQUESTS", 10):
        renewal.renewal(1e3, (1.0, "gamma"), RNG)


MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 2'
ARRIVALS = {
    "rates and starts": (lambda _: piecewise(rates_per_s=[1]), "1 rates for 2 starts"),
    "starts fall": (lambda _: piecewise(starts_s=[1, 5]), "starts_s must rise from 0"),
    "no rate": (lambda _: piecewise(rates_per_s=[0, 0]), "at least one rate must be above 0"),
    "end": (lambda _: piecewise(until_s=4), "until_s must lie after the last start"),
    "repeat": (lambda _: piecewise(repeat=True), "repeat needs until_s"),
    "gaps": (lambda _: gaps([0, 1], [1]), "gaps"),
    "gaps and probabilities": (lambda _: gaps([0, 1], [1, 2, 3]), "2 probabilities for 3 gaps"),
    "probabilities": (lambda _: gaps([0.1, 1], [1, 2]), "probabilities must rise from 0 to 1"),
    "gaps fall": (lambda _: gaps([0, 1], [2, 1]), "gaps must not fall"),
    "factor": (
        lambda _: arrivals.scale_rate(arrivals.Poisson(rate_per_s=1), 0),
        "rate factor is 0",
    ),
    "count": (
        lambda _: arrivals.arrival_times(arrivals.Poisson(rate_per_s=1), None, RNG, 0),
        "count is 0 .*1 to",
    ),
    "too many": (
        lambda _: arrivals.arrival_times(arrivals.Poisson(rate_per_s=1e5), 1e8, RNG),
        "are too many .*lower the rate or duration_s",
    ),
    "without end": (
        _endless,
        "more than .* arrivals; lower cv",
    ),
    "steps of a trace": (
        lambda _: synthesis.fit_arrivals([0, 5], 9),
        "step_s is 9 for a trace of 5 s",
    ),
    "day": (lambda _: traces.day_shape([0, 3600]), "the trace spans 2 h"),
    "window": (
        lambda _: traces.time_window(pd.DataFrame(ROW), 2, 1),
        r"window \[2, 1\) s is empty",
    ),
    "nothing in the window": (
        lambda _: traces.time_window(pd.DataFrame(ROW), 5, 9),
        "no request arrives in .*within 0 to 0 s",
    ),
}
LENGTHS = {
    "uniform": (lambda _: distributions.Uniform(low=5, high=4), "high = 4 is below low = 5"),
    "quantiles": (
        lambda _: distributions.Quantiles(probabilities=[0, 1], tokens=[1, 2, 3]),
        "2 probabilities for 3 tokens",
    ),
    "probabilities": (
        lambda _: distributions.Quantiles(probabilities=[0, 0.9], tokens=[1, 2]),
        "probabilities must rise from 0 to 1",
    ),
    "tokens fall": (
        lambda _: distributions.Quantiles(probabilities=[0, 1], tokens=[2, 1]),
        "tokens must not fall",
    ),
    "weights": (
        lambda _: distributions.Choice(tokens=[1, 2], weights=[1]),
        "1 weights for 2 tokens",
    ),
    "choice falls": (
        lambda _: distributions.Choice(tokens=[2, 1], weights=[1, 1]),
        "tokens must rise",
    ),
    "both correlations": (
        lambda _: lengths.Lengths.model_validate(
            lengths.load_lengths("azure-conv").model_dump(exclude_none=True)
            | {"rank_correlation": 0.5, "output_ranks": [[0.0, 1.0], [0.0, 1.0]]}
        ),
        "give rank_correlation or output_ranks",
    ),
    "longer than all": (
        lambda _: drawn(
            duration_s=20,
            sharing=TURNS | {"max_prompt_tokens": 1},
        ),
        "every prompt is longer than 1 tokens",
    ),
}
TRACES = {
    "column twice": (
        lambda _: requests.check_requests(
            pd.DataFrame([[0.0, 5, 5, 5]], columns=[*ROW, "output_tokens"])
        ),
        "column 'output_tokens' stands twice; remove one",
    ),
    "unknown column": (lambda _: table(promt=[1]), "column 'promt' is not known"),
    "falls": (
        lambda _: requests.check_requests(pd.DataFrame(ROW | {"arrival_s": [1.0]})).pipe(
            lambda t: requests.check_requests(pd.concat([t, t.assign(arrival_s=0.5)]))
        ),
        "arrival_s falls from 1 to 0.5 s in row 2; sort the rows",
    ),
    "images": (
        lambda _: table(image_tokens=[900]),
        "image_tokens is 900 in row 1, of a prompt of 600",
    ),
    "hashes": (
        lambda _: table(hash_ids=["1 x"]),
        "hash_ids in row 1 is not a list of whole numbers",
    ),
    "hashes below 0": (lambda _: table(hash_ids=["1 -2"]), "has a negative number"),
    "two ways to share": (
        lambda _: table(hash_ids=["1 2"], session=["a"], prefix_tokens=[5]),
        "both hash_ids and prefix_tokens",
    ),
    "hashes and prompt": (
        lambda _: table(hash_ids=["1"]),
        "row 1 has 1 hash_ids for a prompt of 600",
    ),
    "Azure": (
        lambda f: traces.read_trace(
            put(f, "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n"), "azure"
        ),
        "TIMESTAMP is 'noon' in row 1",
    ),
    "some hashes": (
        lambda f: mooncake(f, MOONCAKE + ', "hash_ids": [1, 2]}', MOONCAKE + "}"),
        "hash_ids is in 1 of 2 rows",
    ),
    "not JSON": (lambda f: mooncake(f, MOONCAKE), "is not valid JSON: .*mend that line"),
    "not usable JSON": (lambda f: mooncake(f, "9" * 5000), "JSON"),
    "hashes of 16": (
        lambda f: traces.read_trace(
            put(f, MOONCAKE.replace("timestamp", "timestamp_ms") + ', "hash_ids": [1]}', "t.jsonl"),
            "llmservingsim",
        ),
        "is not one number for each 16 tokens",
    ),
    "ShareGPT": (
        lambda f: traces.read_trace(put(f, '[{"conversations": 5}]', "t.json"), "sharegpt"),
        "'conversations' is not a list",
    ),
    "no client": (lambda f: servegen.read_client_rates(put(f, SERVEGEN)), "holds no client"),
    "gaps of a client": (
        lambda f: servegen.read_client_rates(put(f, f"{SERVEGEN}1,0,1,1,Zeta\n")),
        "iat_dist is 'Zeta' in row 1",
    ),
    "rate of a client": (
        lambda f: servegen.read_client_rates(put(f, f"{SERVEGEN}1,0,-1,1,Gamma\n")),
        "rate_req_per_s is -1 in row 1",
    ),
    "no histogram": (
        lambda f: servegen.read_length_histograms(put(f, "client_id\n1\n")),
        "has no columns ge_<tokens>",
    ),
    "no field": (
        lambda _: servegen.sample_histograms(pd.DataFrame({"field": ["input"]}), ["inptu"], 1, RNG),
        "no field 'inptu'; did you mean 'input'",
    ),
}
MODELS = {
    "group heads": (
        lambda _: attending.GroupHeads(kv_heads=99).apply(models.load_model("llama-3.1-8b")),
        "has 8 KV heads .*fewer KV heads",
    ),
    "blocks to pick": (lambda _: attending.PickKeys(kind="block", tokens=9), "block = 2 or more"),
    "no latents": (
        lambda _: attending.ExpandLatents().apply(models.load_model("llama-3.1-8b")),
        "has no latent attention; leave it out",
    ),
    "2:4": (lambda _: compression.Sparsify(pattern="2:4", share=0.6), "2:4 means a share of 0.5"),
    "popularity": (lambda _: experts.zipf_popularity(0, 1.0), "experts = 0, exponent = 1"),
    "chosen experts": (
        lambda _: experts.inclusion_probabilities([1, 1], 3),
        "top_k = 3 of 2 experts",
    ),
    "tensor ranks": (lambda _: layers.check_tp(models.load_model("llama-3.1-8b"), 3), "32 heads"),
    "sparse blocks": (
        lambda _: models.SparseAttention(kind="block", tokens=9),
        "a block needs 2 tokens or more",
    ),
    "top_k": (
        lambda _: models.MoE(experts=2, top_k=3, intermediate=8),
        "top_k = 3 is more than experts = 2",
    ),
    "no expert layer": (
        lambda _: model(
            "qwen3-30b-a3b",
            moe=models.MoE(experts=2, top_k=1, intermediate=8).model_dump() | {"first_dense": 48},
            intermediate=8,
        ),
        "moe has no expert layer",
    ),
    "pruned to more": (
        lambda _: pruning.PruneExperts(experts=999).apply(models.load_model("qwen3-30b-a3b")),
        "experts = 999 is more than the model has .*at most 128",
    ),
    "config is no JSON": (
        lambda f: hf_config.read_json(put(f, "{", "config.json")),
        "is not valid JSON: .*fetch it again",
    ),
    "config: architecture": (
        lambda f: config(f, model_type="lama"),
        "'lama' is not a known architec",
    ),
    "config: heads": (
        lambda f: config(f, num_attention_heads=5),
        "does not divide hidden_size = 64",
    ),
    "config: shape": (lambda f: config(f, hidden_size="x"), "hidden_size = 'x' is not"),
    "config: layer kinds": (
        lambda f: config(f, model_type="gemma2", sliding_window=64, layer_types=["full_attention"]),
        "layer_types lists 1 layers, num_hidden_layers says 2",
    ),
    "config: experts in some layers": (
        lambda f: config(
            f,
            model_type="mixtral",
            num_local_experts=8,
            num_experts_per_tok=2,
            moe_layer_freq=2,
        ),
        "moe_layer_freq = 2 is not supported",
    ),
    "config: narrow embeddings": (
        lambda f: config(f, model_type="opt", word_embed_proj_dim=32),
        "word_embed_proj_dim = 32 is not supported",
    ),
    "config: norms of queries": (
        lambda f: config(f, model_type="stablelm", qk_layernorm=True),
        "qk_layernorm = True is not supported",
    ),
    "config: quantised": (
        lambda f: config(f, quantization_config={"quant_method": "gptqq"}),
        "quant_method = 'gptqq' is not known",
    ),
    "config: unknown key": (
        lambda f: config(f, num_experts_of_state=4),
        "is a key that this architecture is not known to have",
    ),
}
QUANTISED = {
    "bits": {"quant_method": "bitsandbytes"},
    "weights": {"quant_method": "compressed-tensors"},
    "num_bits": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": {"num_bits": 3, "type": "int"}}},
    },
    "algorithm": {"quant_method": "modelopt", "quant_algo": "FP5"},
}
MISSING = {
    "bits": "load_in_4bit .or load_in_8bit. is missing",
    "weights": "config_groups.group_0.weights is missing",
    "num_bits": "num_bits = 3 is not known for type 'int'",
    "algorithm": "quant_algo = 'FP5' is not known",
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_configurations(name, tmp_path):
    with pytest.raises(InputError, match=MISSING[name]):
        config(tmp_path, quantization_config=QUANTISED[name])


PARTS = {
    "neither arrivals nor a trace": (
        lambda _: named.make_requests(named.WorkloadPart(), named.Streams.of_seed(1)),
        "arrivals and lengths are missing; give requests, named or arrivals",
    ),
    "synthesis of nothing": (
        lambda _: synthesis.synthesise(
            pd.DataFrame(
                {"arrival_s": [0.0, 1e6], "prompt_tokens": [5, 5], "output_tokens": [5, 5]}
            ),
            0.001,
            RNG,
            rate_scale=1e-3,
        ),
        "no request arrives in 0.001 s; longer",
    ),
    "sharing of a trace": (
        lambda _: named.WorkloadPart(requests="a.csv", sharing=TURNS),
        "sharing is for drawn requests",
    ),
    "none arrives": (
        lambda _: drawn(arrivals={"kind": "poisson", "rate_per_s": 1e-6}, duration_s=0.001),
        "no request arrives in 0.001 s; raise duration_s",
    ),
    "sessions of a closed loop": (
        lambda _: drawn(
            arrivals={"kind": "closed-loop", "concurrency": 2},
            count=9,
            sharing=TURNS,
        ),
        "a closed loop cannot be made of sessions",
    ),
}


NAMED = {"trace": TRACES, "length": LENGTHS, "model": MODELS, "part": PARTS}
EVERY = {f"{noun}: {k}": v for noun, table in NAMED.items() for k, v in table.items()}


@refuses(ARRIVALS | EVERY)
def test_workloads(call, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        call(tmp_path)


# -- policies


def undocumented():
    class Silent:
        pass

    return Silent


@refuses(
    {
        "no dataclass": (lambda: batching.batching("x")(undocumented()), "must be a dataclass"),
        "parameter": (
            lambda: batching.batching.make({"name": "static", "max_seqs": 1}),
            "no parameter 'max_seqs'; did you mean 'max_num_seqs'",
        ),
        "value": (
            lambda: batching.batching.make({"name": "static", "max_num_seqs": 0}),
            r"\[policies.batching\]: max_num_seqs: .*got 0",
        ),
        "chances": (
            lambda: speculation.positions(1, 0.5, (0.9, 0.8)),
            "2 chances for 1 drafted tokens .*1 or fewer",
        ),
    }
)
def test_policies(call, words):
    with pytest.raises(InputError, match=words):
        call()
