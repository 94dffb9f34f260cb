import json

import pytest

from formats import InputError
from sim.charts_roofline import roofs
from sim.cli.app import run
from sim.explain import Load, explain
from sim.explain_page import explanation_html
from sim.roofline import memory_roofs, peak_roofs
from sim.scenario import Scenario
from workloads.counts import step_flops
from workloads.models import load_model


def scenario(**sections):
    return Scenario(**sections)


@pytest.fixture(scope="module")
def llama():
    return explain(scenario(), Load(batch=32, context=1024, prompt=2048))


def phase(found, name):
    return found.operators[found.operators["phase"] == name].set_index("operator")


def test_flops_of_the_operators_are_those_of_the_step(llama):
    model = load_model("llama-3.1-8b")
    decode = step_flops(model, query=[1] * 32, past=[1023] * 32)
    assert phase(llama, "decode")["flops"].sum() == pytest.approx(decode.total)
    prompt = step_flops(model, query=[2048], past=[0])
    assert phase(llama, "prefill")["flops"].sum() == pytest.approx(prompt.total)


def test_decode_is_bound_by_memory_and_prompts_by_compute(llama):
    bounds = llama.phases.set_index("phase")["bound"]
    assert bounds["decode"] == "memory"
    assert bounds["prefill"] == "compute"
    assert phase(llama, "decode").loc["norm", "bound"] == "launch"


def test_shares_of_the_roofs_are_physical_and_add_up(llama):
    products = llama.operators[llama.operators["flops"] > 0]
    assert products["mfu"].between(0, 1).all()
    assert products["mbu"].between(0, 1).all()
    row = phase(llama, "prefill").loc["gate up"]
    assert row["mfu"] == pytest.approx(row["flops"] / (row["seconds"] * 989.4e12))
    assert row["intensity"] == pytest.approx(row["flops"] / row["bytes"])
    assert row["ridge"] == pytest.approx(989.4e12 / 4.8e12)
    sums = llama.operators.groupby("phase")["seconds"].sum()
    assert llama.phases.set_index("phase")["seconds"].to_dict() == pytest.approx(sums.to_dict())


def test_a_decode_step_is_as_long_as_measured(llama):
    # 8 steps of vLLM at 32 x 1018 tokens: 6.15 ms (validation/data/h200-extra)
    seconds = llama.phases.set_index("phase").loc["decode", "seconds"]
    assert seconds == pytest.approx(6.15e-3, rel=0.03)


def test_memory_and_the_largest_batch_by_hand(llama):
    assert llama.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2
    fits = llama.largest().set_index("context")["sequences"]
    pool = llama.plan.blocks * llama.plan.block
    assert fits[1024] == int(pool // (1024 * 131072))
    assert (fits.diff().dropna() < 0).all()


def test_ranks_have_links_and_less_of_everything():
    sizes = Load(batch=32, context=1024, prompt=512)
    one = explain(scenario(model={"name": "llama-3.1-70b", "weights": "fp8"}), sizes)
    four = explain(
        scenario(model={"name": "llama-3.1-70b", "weights": "fp8"}, hardware={"tp": 4}), sizes
    )
    assert phase(four, "decode").loc["collectives", "bound"] == "link"
    assert four.kv_bytes_per_token == one.kv_bytes_per_token / 4
    down = phase(one, "decode").loc["down", "flops"] / phase(four, "decode").loc["down", "flops"]
    assert down == pytest.approx(4)


def test_experts_read_more_as_the_batch_grows():
    moved = [
        phase(explain(scenario(model={"name": "qwen3-30b-a3b"}), Load(n, 512, 512)), "decode").loc[
            "experts", "bytes"
        ]
        for n in (1, 8, 256)
    ]
    assert moved[1] / moved[0] == pytest.approx(128 * (1 - (1 - 8 / 128) ** 8) / 8)
    assert moved[2] / moved[0] == pytest.approx(16, rel=0.01)


def test_an_encoder_has_prompts_only():
    found = explain(scenario(model={"name": "bert-base"}), Load(1, 512, 512))
    assert found.operators["phase"].unique().tolist() == ["prefill"]
    assert "cache" not in phase(found, "prefill").index
    assert found.kv_bytes_per_token == 0


def drawn(found, column):
    """Return the rows of the roofline that have a column."""
    chart = roofs(found.operators, peak_roofs(found.spec), memory_roofs(found.spec))
    return [row for rows in chart.to_dict()["datasets"].values() for row in rows if column in row]


def test_roofs_bend_at_the_ridge(llama):
    ends: dict[str, list[tuple[float, float]]] = {}
    for row in drawn(llama, "roof"):  # precisions of equal peak share one
        ends.setdefault(row["roof"], []).append((row["intensity"], row["rate"]))
    assert [rate / at for at, rate in ends["HBM3e"]] == pytest.approx([4.8, 4.8])
    assert ends["fp16"][0][0] == pytest.approx(ends["cache (L2)"][1][0] * 989.4 / 1978.9)
    assert {rate for _, rate in ends["fp16"]} == {989.4}


def test_dots_lie_below_their_roof_and_are_operators_with_arithmetic(llama):
    dots = drawn(llama, "operator")
    assert len(dots) == (llama.operators["flops"] > 0).sum()
    for row in dots:
        assert row["rate"] < min(1979, 4.8 * row["intensity"])
    assert sum(row["share"] for row in dots if row["phase"] == "decode") < 1


def test_the_page_stands_alone(llama):
    page = explanation_html(llama)
    assert "vegaEmbed" in page
    assert "https://" not in page.split("<div", 1)[0]
    assert "gate up" in page
    assert "128.0 KiB per token" in page


def test_the_command_prints_tables_json_and_a_page(tmp_path, capsys):
    page = tmp_path / "roofline.html"
    assert run(["explain", "--model", "llama-3.2-1b", "--batch", "4", "--out", str(page)]) == 0
    text = capsys.readouterr().out
    assert "lm head" in text
    assert "sequences that fit" in text
    assert page.stat().st_size > 100_000
    assert run(["explain", "--model", "llama-3.2-1b", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["memory"]["kv_bytes_per_token"] == 16 * 2 * 8 * 64 * 2
    assert {row["bound"] for row in data["operators"]} <= {"compute", "memory", "launch", "link"}


def test_bad_sizes_are_refused(capsys):
    with pytest.raises(InputError, match="batch = 0"):
        Load(batch=0)
    assert run(["explain", "--batch", "0"]) == 2
    assert "batch = 0" in capsys.readouterr().err
