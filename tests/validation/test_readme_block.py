"""The accuracy block of README.md is that of the kept figures, and these are those of the model."""

import pytest

from validation import SEEDS
from validation.measured import all_runs
from validation.readme import block, in_readme, kept
from validation.serving import compare, replay

MOVED = 0.03
"""How far a figure may move before the block is made anew; it is stated to a tenth of a percent."""


def test_block_is_made_from_the_kept_figures():
    assert in_readme() == block().strip(), "run python -m validation.readme"


def test_the_block_is_written_between_its_marks(tmp_path, monkeypatch, capsys):
    from validation import readme

    (tmp_path / "README.md").write_text(f"before\n{readme.START}\nold\n{readme.END}\nafter\n")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main(["--kept"]) == 0
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert in_readme() == block().strip() == capsys.readouterr().out.strip()


def again(run, workload):
    one = all_runs()[run]
    return compare(one[workload], replay(one, one[workload], range(SEEDS)), "bf16")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "workload"),
    [
        ("llama8b_bf16", "static_b8_p512"),
        ("llama8b_bf16_more", "conv_r18"),
        ("llama8b_bf16_fresh", "conv_r22"),
    ],
)
def test_kept_figures_are_those_of_the_model(run, workload):
    check(run, workload)


def check(run, workload):
    table = kept()
    stored = table[(table["run"] == run) & (table["workload"] == workload)]
    both = stored.merge(again(run, workload), on="metric", suffixes=("", "_again"))
    assert len(both) >= 5
    assert both["predicted_again"].to_numpy() == pytest.approx(
        both["predicted"].to_numpy(), rel=MOVED
    ), "run python -m validation.readme"
