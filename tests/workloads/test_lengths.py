import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from scipy import stats

from formats import Catalog, InputError, check
from workloads import fit_lengths as fitting
from workloads.distributions import (
    Choice,
    Constant,
    Gamma,
    Histogram,
    Lognormal,
    Marginal,
    Quantiles,
    Uniform,
)
from workloads.fit_lengths import fit_lengths, fit_quantiles
from workloads.lengths import (
    Lengths,
    LengthStatistics,
    describe_lengths,
    length_distributions,
    length_statistics,
    load_lengths,
    rank_correlation,
    sample_columns,
    sample_lengths,
    user_folders,
)
from workloads.servegen import read_length_histograms
from workloads.traces import read_trace

N = 200_000
U = (np.arange(N) + 0.5) / N


def statistic(dist: Lengths) -> LengthStatistics:
    assert dist.statistics is not None
    return dist.statistics


@pytest.mark.parametrize(
    ("marginal", "mean"),
    [
        (Constant(tokens=7), 7),
        (Uniform(low=3, high=12), 7.5),
        (Lognormal(median=200, sigma=0.5), 200 * np.exp(0.125)),
        (Gamma(mean=300, cv=0.7, min_tokens=0), 300),
        (Quantiles(probabilities=[0, 0.5, 1], tokens=[10, 20, 100]), 0.5 * 15 + 0.5 * 60),
        (Histogram(edges=[1, 2, 10, 12], weights=[1, 0, 3]), 0.25 * 1 + 0.75 * 10.5),
        (Choice(tokens=[1, 10], weights=[9, 1]), 1.9),
    ],
)
def test_mean_of_each_distribution_is_its_closed_form(marginal, mean):
    assert marginal.inverse(U).mean() == pytest.approx(mean, rel=2e-3)


def test_gamma_has_the_variation_it_was_given():
    values = Gamma(mean=300, cv=0.7, min_tokens=0).inverse(U)
    assert values.std() / values.mean() == pytest.approx(0.7, rel=2e-3)


def test_uniform_and_histogram_reach_their_ends_and_no_further():
    edge = np.array([0.0, np.nextafter(1, 0)])
    assert Uniform(low=3, high=12).inverse(edge).tolist() == [3, 12]
    assert Histogram(edges=[1, 5], weights=[2]).inverse(edge).tolist() == [1, 4]
    assert set(Histogram(edges=[1, 5], weights=[2]).inverse(U)) == {1, 2, 3, 4}
    assert Choice(tokens=[1, 10], weights=[1, 1]).inverse(edge).tolist() == [1, 10]


def test_rank_correlation_is_that_of_the_copula():
    dist = Lengths(
        prompt=Lognormal(median=500, sigma=1),
        output=Gamma(mean=200, cv=1),
        rank_correlation=-0.6,
    )
    prompt, output = sample_lengths(dist, N, np.random.default_rng(1))
    assert rank_correlation(prompt, output) == pytest.approx(-0.6, abs=4 / np.sqrt(N))


def test_the_table_of_ranks_leaves_the_outputs_as_they_are():
    table = load_lengths("azure-conv").output_ranks
    dist = Lengths(
        prompt=Uniform(low=1, high=10**6), output=Uniform(low=1, high=10**6), output_ranks=table
    )
    output = sample_lengths(dist, N, np.random.default_rng(1))[1]
    # weights are rounded to a thousandth, which moves a column by at most 16 x 0.0005 / 16
    distance = stats.kstest(output / 10**6, "uniform").statistic
    assert distance < 1.63 / np.sqrt(N) + 0.0005 * 4


def test_dependence_that_is_not_monotone_is_kept():
    """Weights that put both ends of the prompt ranks on short outputs, the middle on long ones."""
    table = [[1, 0, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 0, 0]]
    dist = Lengths(
        prompt=Uniform(low=1, high=4000), output=Uniform(low=1, high=4000), output_ranks=table
    )
    prompt, output = sample_lengths(dist, 20_000, np.random.default_rng(1))
    middle = (prompt > 1000) & (prompt <= 3000)
    assert output[middle].min() > 1990
    assert output[~middle].max() <= 2010


def test_another_dependence_or_output_leaves_the_prompts_alone():
    plain = Lengths(prompt=Gamma(mean=100, cv=1), output=Constant(tokens=5))
    tied = Lengths(prompt=Gamma(mean=100, cv=1), output=Gamma(mean=9, cv=2), rank_correlation=0.9)
    a = sample_lengths(plain, 1000, np.random.default_rng(5))[0]
    assert (a == sample_lengths(tied, 1000, np.random.default_rng(5))[0]).all()


def test_images_are_part_of_the_prompt():
    dist = Lengths(
        prompt=Constant(tokens=1000), output=Constant(tokens=1), image_share=[0.0, 0.0, 0.8]
    )
    columns = sample_columns(dist, N, np.random.default_rng(1))
    assert set(columns["prompt_tokens"]) == {1000}
    assert (columns["image_tokens"] == 0).mean() == pytest.approx(0.5, abs=0.01)
    assert columns["image_tokens"].mean() == pytest.approx(200, rel=0.01)
    assert columns["image_tokens"].max() <= 800


@pytest.mark.parametrize("name", list(length_distributions))
def test_shipped_files_give_back_the_statistics_of_their_data(name):
    dist = load_lengths(name)
    if dist.statistics is None:
        assert dist.kind == "assumption"
        return
    made, data = describe_lengths(dist), dist.statistics
    for key in ("prompt_mean", "output_mean"):
        assert getattr(made, key) == pytest.approx(getattr(data, key), rel=0.01), key
    for side in ("prompt", "output"):
        for p in (50, 95, 99):
            key = f"{side}_p{p}"
            assert getattr(made, key) == pytest.approx(getattr(data, key), rel=0.005, abs=1), key
    # inside a cell of the rank table the dependence is lost: 1 / ranks^2 of it
    loss = 0.01 + 1.5 / max(len(dist.output_ranks), 1) ** 2
    assert made.rank_correlation == pytest.approx(data.rank_correlation, abs=loss)


@pytest.mark.parametrize("which", ["conv", "code"])
def test_half_of_a_trace_predicts_the_other_half(trace_folder: Path, which: str):
    """Fitted on even rows, judged on odd ones; both are samples, so errors add: sqrt(2)."""
    rows = read_trace(trace_folder / f"azure2023_{which}.csv.gz")
    train, held = rows.iloc[::2], rows.iloc[1::2]
    dist = fit_lengths(train["prompt_tokens"], train["output_tokens"])
    prompt, output = sample_lengths(dist, 400_000, np.random.default_rng(0))
    n = len(held)
    for made, true in ((prompt, held["prompt_tokens"]), (output, held["output_tokens"])):
        error = np.sqrt(2) * true.std() / np.sqrt(n)
        assert made.mean() == pytest.approx(true.mean(), abs=3 * error)
        for p in (0.5, 0.95, 0.99):
            quantile, slack = np.quantile(made, p), 3 * np.sqrt(2 * p * (1 - p) / n)
            assert (true < quantile - 1).mean() <= p + slack
            assert (true <= quantile + 1).mean() >= p - slack
    rank = rank_correlation(held["prompt_tokens"], held["output_tokens"])
    assert rank_correlation(prompt, output) == pytest.approx(rank, abs=3 * np.sqrt(2 / n))
    product = held["prompt_tokens"] * held["output_tokens"]
    error = np.sqrt(2) * product.std() / np.sqrt(n)
    assert (prompt * output).mean() == pytest.approx(product.mean(), abs=3 * error)


@pytest.mark.parametrize(
    ("which", "name", "fields"),
    [
        ("reason_deepseek-r1", "reasoning", ["input_tokens"]),
        ("language_m-small", "batch-labelling", ["input_tokens"]),
        ("multimodal_mm-image", "image-questions", ["text_tokens", "image_tokens"]),
    ],
)
def test_servegen_means_are_those_recorded_beside_the_histograms(
    trace_folder: Path, which: str, name: str, fields: list[str]
):
    """The mean of each client is a column of its own, which the fit does not average over."""
    rows = read_length_histograms(trace_folder / f"servegen_{which}_length_hist.csv.gz")
    dist = load_lengths(name)

    def recorded(field: str) -> float:
        part = rows[rows["field"] == field]
        return float(np.average(part["mean"], weights=part["weight"]))

    assert describe_lengths(dist).prompt_mean == pytest.approx(
        sum(map(recorded, fields)), rel=0.015
    )
    assert describe_lengths(dist).output_mean == pytest.approx(recorded("output_tokens"), rel=0.02)


def test_the_command_makes_the_shipped_files_again(trace_folder: Path, tmp_path: Path):
    assert fitting.main([str(trace_folder), str(tmp_path)]) == 0
    shipped = Path(fitting.__file__).parent / "data" / "lengths"
    for path in sorted(tmp_path.glob("*.toml")):
        assert path.read_text() == (shipped / path.name).read_text(), path.name
    fitted = {n for n in length_distributions if load_lengths(n).kind == "fitted"}
    assert {p.stem for p in tmp_path.glob("*.toml")} == fitted


def test_the_command_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert fitting.main([str(tmp_path / "none"), str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err


def test_the_tail_of_a_fit_keeps_its_mean():
    data = np.random.default_rng(1).pareto(1.8, 100_000) * 100 + 1
    made = fit_quantiles(data).inverse(U)
    assert made.mean() == pytest.approx(data.mean(), rel=0.01)


def test_statistics_of_a_few_lengths_by_hand():
    found = length_statistics([1, 2, 3, 4], [40, 30, 20, 10])
    assert (found.requests, found.prompt_mean, found.prompt_p50) == (4, 2.5, 2.5)
    assert found.rank_correlation == -1


def test_names_are_hinted_and_user_folders_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(InputError, match="no length distribution named 'azure-con'; did you mean"):
        load_lengths("azure-con")
    (tmp_path / "lengths").mkdir()
    text = "[prompt]\nkind = 'constant'\ntokens = 3\n[output]\nkind = 'constant'\ntokens = 2\n"
    (tmp_path / "lengths" / "mine.toml").write_text(text)
    monkeypatch.setenv("ROOFCAST_CATALOG", f"{tmp_path / 'nowhere'}:{tmp_path}")
    mine: Catalog[Lengths] = length_distributions.with_folders(*user_folders("lengths"))
    assert mine.load("mine").prompt == Constant(tokens=3)
    code = "from workloads.lengths import load_lengths; print(load_lengths('mine').output.tokens)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "2.0"


class Holder(BaseModel):
    lengths: Lengths


class One(BaseModel):
    tokens: Marginal


@pytest.mark.parametrize(
    ("marginal", "message"),
    [
        ({"kind": "constant"}, "tokens is missing, add it"),
        ({"kind": "constant", "tokens": -1}, "greater than or equal to 0, got -1"),
        ({"kind": "constant", "tokens": 1, "mean": 2}, "mean is not a known key"),
        ({"kind": "uniform", "low": 5, "high": 4}, "high = 4 is below low = 5"),
        ({"kind": "gamma", "mean": 5, "cv": 0}, "or equal to 0.001"),
        ({"kind": "lognormal", "median": 5, "sigma": float("nan")}, "finite"),
        ({"kind": "lognormal", "median": 5, "sigma": 1, "max_tokens": 0.5}, "below min_tokens"),
        (
            {"kind": "quantiles", "probabilities": [0, 0.5, 1], "tokens": [1, 2]},
            "3 probabil",
        ),
        ({"kind": "quantiles", "probabilities": [0, 0.9], "tokens": [1, 2]}, "from 0 to 1"),
        ({"kind": "quantiles", "probabilities": [0, 1], "tokens": [2, 1]}, "must not fall"),
        ({"kind": "histogram", "edges": [1, 2], "weights": [0]}, "positive, finite sum"),
        ({"kind": "histogram", "edges": [2, 1], "weights": [1]}, "edges must rise"),
        ({"kind": "histogram", "edges": [1, 2], "weights": [1, 1]}, "2 weights need 3 edges"),
        ({"kind": "choice", "tokens": [1, 1], "weights": [1, 1]}, "tokens must rise"),
        ({"kind": "normal", "mean": 3}, "'constant', 'uniform'"),
    ],
)
def test_bad_distributions_are_explained(marginal, message):
    with pytest.raises(InputError) as caught:
        check({"tokens": marginal}, One, "x.toml")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"rank_correlation": 0.5, "output_ranks": [[1]]}, "not both"),
        ({"output_ranks": [[1, 2]]}, "must be square"),
        ({"output_ranks": [[1, 2], [0, 0]]}, "positive weight in every row"),
        ({"image_ranks": [[1]]}, "image_ranks needs image_share"),
        ({"image_share": [0.5, 0.4]}, "image_share must not fall"),
        ({"rank_correlation": 1}, "less than 1"),
    ],
)
def test_bad_dependence_is_explained(extra, message):
    constant = {"kind": "constant", "tokens": 1}
    with pytest.raises(InputError) as caught:
        check({"lengths": {"prompt": constant, "output": constant} | extra}, Holder, "x.toml")
    assert message in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kind", "tokens", "mean", "cv", "edges", "low"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["prompt", "output", "output_ranks", "image_share"]), JSON))
def test_any_content_gives_lengths_or_an_input_error(data):
    try:
        dist = check({"lengths": data}, Holder, "x.toml").lengths
    except InputError:
        return
    assert min(map(min, sample_lengths(dist, 50, np.random.default_rng(0)))) >= 1


@given(st.integers(0, 2**32), st.floats(0.1, 5), st.floats(1, 1e4))
def test_samples_are_whole_positive_and_monotone_in_the_mean(seed, cv, mean):
    rng = np.random.default_rng
    small = Lengths(prompt=Gamma(mean=mean, cv=cv), output=Constant(tokens=1))
    large = Lengths(prompt=Gamma(mean=2 * mean, cv=cv), output=Constant(tokens=1))
    a = sample_lengths(small, 40, rng(seed))[0]
    b = sample_lengths(large, 40, rng(seed))[0]
    assert a.dtype == np.int64
    assert (a >= 1).all()
    assert (b >= a).all()
