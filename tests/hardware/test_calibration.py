import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from formats import InputError
from hardware.calibration import (
    calibrate,
    fit,
    fit_family,
    load_calibration,
    read_traces,
    residual_table,
    save_calibration,
)
from hardware.calibration_judge import held_out
from hardware.catalog import load_accelerator
from hardware.kernels import CALIBRATIONS, KernelModel, chip_of, load_kernels
from hardware.kernels_families import FAMILIES
from hardware.kernels_residual import Hyper, condition, fit_hyper

H200 = load_accelerator("h200-sxm")
CHIP = chip_of(H200)
TRACES = CALIBRATIONS.parent / "traces" / "h200-sxm"
ERRORS = CALIBRATIONS / "h200-sxm.errors.csv.gz"


def copy_traces(folder: Path, *kinds: str) -> Path:
    for kind in kinds:
        source = TRACES / f"{kind}.csv.gz"
        (folder / source.name).write_bytes(source.read_bytes())
    return folder


def planted(coefficients: dict[str, float]) -> pd.DataFrame:
    family = FAMILIES["gemm_bf16"]
    mesh = np.meshgrid(2.0 ** np.arange(13), [1024, 6144, 28672], [2048, 8192], indexing="ij")
    shape = family.shape(*(axis.ravel() for axis in mesh))
    return pd.DataFrame(shape).assign(s=family.form(shape, CHIP, coefficients))


def test_a_fit_recovers_the_form_that_made_the_times():
    truth = {**FAMILIES["gemm_bf16"].start, "matrix": 0.55, "memory": 0.8, "launch_s": 5e-6}
    table = planted(truth)
    fitted = fit_family(FAMILIES["gemm_bf16"], table, CHIP, FAMILIES["gemm_bf16"].start)
    for name in ("matrix", "memory", "launch_s"):
        assert fitted.coefficients[name] == pytest.approx(truth[name], rel=0.03)
    assert np.abs(fitted.log_residual).max() < 0.02


def test_the_residual_learns_an_effect_of_rows_and_carries_it_to_another_layout():
    table = planted(dict(FAMILIES["gemm_bf16"].start))
    slow = np.where(table["m"] == 64, 1.3, 1.0)
    family = FAMILIES["gemm_bf16"]
    fitted = fit_family(family, table.assign(s=table["s"] * slow), CHIP, family.start)
    shape = family.shape([32, 64, 128], 12288, 4096)
    predicted = fitted.predict(family, CHIP, shape)
    base = family.form(shape, CHIP, fitted.coefficients)
    ratio = predicted / base
    assert ratio[1] / ratio[[0, 2]].mean() == pytest.approx(1.3, rel=0.08)


def test_far_from_every_point_only_the_mean_residual_is_left():
    hyper = Hyper((0.1, 0.1, 0.1, 0.01), (1.0, 1.0), 1)
    process = condition(hyper, np.array([[0.0, 0], [1, 0]]), np.array([0.2, 0.4]))
    assert process.predict(np.array([[500.0, 500.0]])) == pytest.approx([0.3])
    assert process.predict(np.array([[1.0, 0]])) == pytest.approx([0.4], abs=0.01)


def test_noise_and_effects_are_told_apart():
    random = np.random.default_rng(0)
    x = random.uniform(0, 10, (300, 2))
    y = 0.2 * np.sin(x[:, 0]) + random.normal(0, 0.03, 300)
    hyper = fit_hyper(x, y - y.mean(), 1)
    assert hyper.scales[3] == pytest.approx(0.03, rel=0.35)
    left = condition(hyper, x, y).predict(x) - 0.2 * np.sin(x[:, 0])
    assert np.sqrt((left**2).mean()) < 0.03


def test_a_calibration_read_back_predicts_the_same(tmp_path):
    made = fit(
        read_traces(copy_traces(tmp_path, "moe_bf16", "launch")), CHIP, "x", "s", "2026-01-01"
    )
    path = tmp_path / "x.toml"
    save_calibration(made, path)
    first = [p.read_bytes() for p in (path, tmp_path / "x.residuals.csv.gz")]
    save_calibration(made, path)
    assert first == [p.read_bytes() for p in (path, tmp_path / "x.residuals.csv.gz")]
    back = load_calibration(path)
    layout = (np.arange(1, 3000), 128, 8, 2048, 768)
    before, after = (KernelModel(CHIP, c, "measured").moe(*layout) for c in (made, back))
    assert after == pytest.approx(before, rel=1e-4)
    assert back.launch == pytest.approx(made.launch)


def test_calibrate_writes_a_calibration_that_an_accelerator_can_name(tmp_path):
    about = {"source": "a test of three kinds", "date": "2026-01-02"}
    (tmp_path / "about.json").write_text(json.dumps(about))
    kinds = ("attention_unfused", "moe_bf16")
    errors = calibrate(copy_traces(tmp_path, *kinds), H200, tmp_path / "mine.toml")
    kept = pd.read_csv(tmp_path / "mine.errors.csv.gz")
    assert kept["median"].to_numpy() == pytest.approx(errors["median"].to_numpy(), rel=1e-3)
    spec = H200.model_copy(update={"calibration": str(tmp_path / "mine.toml")})
    kernels = load_kernels(spec)
    assert kernels.calibration.source == about["source"]
    assert kernels.fidelity_of("attention_unfused") == "measured"
    assert kernels.fidelity_of("gemm_bf16") == "datasheet"  # carried from the shipped one
    assert set(kernels.residuals("moe_bf16")) == {"p10", "p50", "p90"}
    assert float(kernels.gemm(8, 4096, 4096, "bf16")) == pytest.approx(13.2e-6, rel=0.15)


def test_held_out_errors_are_those_of_shapes_not_seen(tmp_path):
    traces = read_traces(copy_traces(tmp_path, "gemm_fp16"))
    made = fit(traces, CHIP, "x", "s", "2026-01-01")
    seen = np.median(np.abs(condition_left(made)))
    out = held_out(made, "gemm_fp16", CHIP, "layout")
    assert len(out) == len(traces["gemm_fp16"])
    assert np.median(np.abs(out)) > 1.5 * seen


def condition_left(made):
    family, fitted = FAMILIES["gemm_fp16"], made.families["gemm_fp16"]
    shape = family.shape(*fitted.shapes.T)
    formed = family.form(shape, CHIP, fitted.coefficients)
    return np.log(fitted.predict(family, CHIP, shape) / formed) - fitted.log_residual


def test_the_table_of_errors_sets_the_model_beside_simpler_ways(tmp_path):
    made = fit(read_traces(copy_traces(tmp_path, "moe_bf16")), CHIP, "x", "s", "2026-01-01")
    table = residual_table(made, CHIP)
    assert set(table["method"]) == {"model", "form", "interpolation", "roofline"}
    assert set(table["split"]) == {"shape", "layout", "extent"}
    assert (table["median"] <= table["p90"]).all()
    shape = table[table["split"] == "shape"].set_index("method")["median"]
    assert shape["model"] < shape["roofline"]


TARGETS = [
    ("gemm_bf16", "layout", 0.04, 0.12),
    ("gemm_bf16", "shape", 0.04, 0.12),
    ("attention_decode", "layout", 0.04, 0.12),
    ("attention_prefill", "layout", 0.04, 0.12),
    ("gemm_fp8", "layout", 0.06, 0.20),
    ("gemm_fp8", "extent", 0.06, 0.20),
    ("moe_bf16", "extent", 0.08, 0.20),
    ("moe_bf16", "layout", 0.08, 0.20),
    ("gemm_w4a16", "layout", 0.05, 0.25),
    ("attention_unfused", "shape", 0.10, 0.20),
    ("attention_mixed", "shape", 0.08, 0.25),
]


@pytest.mark.parametrize(("family", "split", "median", "p90"), TARGETS)
def test_shipped_errors_on_shapes_held_out(family, split, median, p90):
    table = pd.read_csv(ERRORS).set_index(["family", "split", "method"])
    errors = table.loc[(family, split, "model")]
    assert errors["median"] <= median
    assert errors["p90"] <= p90
    assert errors["shapes"] == len(
        load_calibration(CALIBRATIONS / "h200-sxm.toml").families[family].shapes
    )
    if family != "attention_mixed":
        assert errors["median"] < table.loc[(family, split, "roofline"), "median"]


@pytest.mark.parametrize("name", ["attention_decode", "moe_bf16"])
def test_the_shipped_table_is_what_the_shipped_traces_give(name):
    made = load_calibration(CALIBRATIONS / "h200-sxm.toml")
    left = held_out(made, name, CHIP, "layout")
    kept = (
        pd.read_csv(ERRORS).set_index(["family", "split", "method"]).loc[(name, "layout", "model")]
    )
    assert float(np.median(np.abs(np.expm1(-left)))) == pytest.approx(kept["median"], rel=0.03)
    low, high = np.quantile(left, [0.1, 0.9])
    assert made.families[name].band["p10"] == pytest.approx(low, rel=0.05, abs=1e-3)
    assert made.families[name].band["p90"] == pytest.approx(high, rel=0.05, abs=1e-3)


def test_the_shipped_points_are_the_shipped_traces():
    made, traces = load_calibration(CALIBRATIONS / "h200-sxm.toml"), read_traces(TRACES)
    for name, fitted in made.families.items():
        assert len(fitted.shapes) == len(traces[name])
        if name != "attention_mixed":
            family = FAMILIES[name]
            formed = family.form(family.shape(*fitted.shapes.T), CHIP, fitted.coefficients)
            seconds = formed * np.exp(fitted.log_residual)
            assert seconds == pytest.approx(traces[name]["s"].to_numpy(), rel=1e-4)


def test_attention_traces_are_told_apart_by_cache_and_spread(tmp_path):
    head = "kv_dtype,n_heads,n_kv_heads,head_dim,batch,context,spread,us\n"
    rows = "fp8,32,8,128,1,256,uniform,9\nfp8,32,8,128,4,256,log0.9,12\nbf16,32,8,128,8,256,0,11\n"
    (tmp_path / "attention_decode_fp8.csv").write_text(head + rows)
    copy_traces(tmp_path, "attention_decode")
    shapes = pd.read_csv(tmp_path / "attention_decode.csv.gz").drop(columns="us")
    traces = read_traces(tmp_path)
    assert traces["attention_decode_fp8"]["batch"].tolist() == [1]
    # one here beside those shipped; (8, 256) of 32 heads is among those already
    assert len(traces["attention_decode"]) == len(shapes.drop_duplicates())
    (tmp_path / "attention_decode_fp8.csv").write_text(head + "fp7,32,8,128,1,256,uniform,9\n")
    with pytest.raises(InputError, match="kv_dtype 'fp7' is not known"):
        read_traces(tmp_path)


def test_an_fp8_cache_has_its_own_times_where_it_was_measured(tmp_path):
    shipped = load_calibration(CALIBRATIONS / "h200-sxm.toml")
    bf16_only = {k: f for k, f in shipped.families.items() if k != "attention_decode_fp8"}
    base = replace(shipped, families=bf16_only)
    decode = base.families["attention_decode"]
    packed = replace(decode, coefficients={**decode.coefficients, "memory": 0.7})
    both = replace(base, families={**base.families, "attention_decode_fp8": packed})
    args = (64, 8192, 32, 8, 128, "fp8")
    without, with_fp8 = (KernelModel(CHIP, c, "measured") for c in (base, both))
    assert without.attention_decode(*args) == without.attention_decode(*args[:-1])
    assert with_fp8.attention_decode(*args) < 0.8 * without.attention_decode(*args)
    measured = KernelModel(CHIP, shipped, "measured")
    assert measured.attention_decode(*args) < 0.85 * without.attention_decode(*args)


GEMM = "dtype,m,n,k,us\nbf16,1,8,8,5\n"
BAD_TRACES = [
    ({}, "holds no trace table"),
    ({"power.csv": "a\n1\n"}, "holds no trace table"),
    ({"gemm_bf16.csv": "dtype,m,n,us\nbf16,1,8,5\n"}, "column 'k' is missing"),
    ({"gemm_bf16.csv": "dtype,m,n,k,us,ms\nbf16,1,8,8,5,1\n"}, "column 'ms' is not known"),
    ({"gemm_bf16.csv": "dtype,m,n,k,us\n"}, "no rows"),
    ({"gemm_bf16.csv": ""}, "is empty"),
    ({"gemm_bf16.csv": GEMM + "bf16,1,8,8,-5\n"}, r"line 3: us = .*-5.*above 0"),
    ({"gemm_bf16.csv": GEMM + "bf16,1,8,8,fast\n"}, r"line 3: us = .*fast.*above 0"),
    ({"gemm_bf16.csv": GEMM + "bf16,1,8,8,nan\n"}, r"line 3: us = .*nan.*above 0"),
    ({"gemm_bf16.csv": GEMM + "bf16,inf,8,8,4\n"}, r"line 3: m = .*inf"),
    ({"elementwise.csv": "op,tokens,width,bytes,us\nrotray,1,8,8,2\n"}, "did you mean 'rotary'"),
    (
        {"attention_mixed.csv": "n_heads,n_kv_heads,head_dim,seqs_q_context,us\n8,8,8,1:5 2,9\n"},
        r"line 2: seqs_q_context = '1:5 2'",
    ),
]


@pytest.mark.parametrize(("files", "message"), BAD_TRACES)
def test_a_bad_trace_folder_is_refused_with_the_place(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_traces(tmp_path)


def test_a_missing_trace_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        read_traces(tmp_path / "none")


def test_a_damaged_archive_is_named(tmp_path):
    (tmp_path / "gemm_bf16.csv.gz").write_bytes(gzip.compress(GEMM.encode())[:-9])
    with pytest.raises(InputError, match=r"gemm_bf16.csv.gz.*cannot be read"):
        read_traces(tmp_path)


def test_calibrate_wants_a_toml_and_a_chip_with_the_types_measured(tmp_path):
    copy_traces(tmp_path, "gemm_fp16")
    with pytest.raises(InputError, match=r"must end in \.toml"):
        calibrate(tmp_path, H200, tmp_path / "x.json")
    peaks = H200.peaks.model_copy(update={"fp16": None})
    with pytest.raises(InputError, match="no peak for any type"):
        calibrate(tmp_path, H200.model_copy(update={"peaks": peaks}), tmp_path / "x.toml")
    (tmp_path / "about.json").write_text('{"source": "me", "date": "yesterday"}')
    with pytest.raises(InputError, match=r"about\.json.*date"):
        calibrate(tmp_path, H200, tmp_path / "x.toml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[families.moe_bf16", "[families.moe_bf61", "did you mean 'moe_bf16'"),
        ("traffic = ", "trafic = ", "do not match"),
        ("points = ", "points = 1", "residual points"),
        ("schema_version = 1", "schema_version = 2", "schema_version"),
        ("x.residuals", "y.residuals", "no such file"),
    ],
)
def test_a_damaged_calibration_is_refused_with_the_place(tmp_path, old, new, message):
    made = fit(read_traces(copy_traces(tmp_path, "moe_bf16")), CHIP, "x", "s", "2026-01-01")
    save_calibration(made, tmp_path / "x.toml")
    text = (tmp_path / "x.toml").read_text()
    (tmp_path / "x.toml").write_text(text.replace(old, new))
    with pytest.raises(InputError, match=message):
        load_calibration(tmp_path / "x.toml")


def test_another_chip_is_predicted_from_carried_shares():
    half = replace(CHIP, memory=CHIP.memory / 2, peaks={p: v / 2 for p, v in CHIP.peaks.items()})
    base = load_calibration(CALIBRATIONS / "h200-sxm.toml")
    full, slow = (KernelModel(c, base, "datasheet") for c in (CHIP, half))
    large = (4096, 8192, 8192, "bf16")
    assert float(slow.gemm(*large) / full.gemm(*large)) == pytest.approx(2, rel=0.01)
    small = (1, 8192, 8192, "bf16")
    assert 1.8 < float(slow.gemm(*small) / full.gemm(*small)) < 2
