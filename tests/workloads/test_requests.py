import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats import InputError
from workloads.requests import (
    COLUMNS,
    block_counts,
    check_requests,
    merge_requests,
    read_requests,
    write_requests,
)


def table(**columns: object) -> pd.DataFrame:
    base = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [600, 700, 800], "output_tokens": 5}
    return pd.DataFrame(base | columns)


def test_types_order_and_defaults_of_a_checked_table():
    out = check_requests(
        table(
            model=["m", None, ""],
            priority=[1, np.nan, -2],
            deadline_s=[5, np.nan, 7],
            session=["a", "", "a"],
            prefix_tokens=[0, np.nan, 600],
        ).iloc[:, ::-1]
    )
    assert [c for c in COLUMNS if c in out] == list(out.columns)
    assert out["arrival_s"].dtype == np.float64
    assert out["prompt_tokens"].dtype == out["priority"].dtype == np.int64
    assert out["model"].tolist() == ["m", "", ""]
    assert out["priority"].tolist() == [1, 0, -2]
    assert out["prefix_tokens"].tolist() == [0, 0, 600]
    assert np.isnan(out["deadline_s"].iloc[1])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"arrival_s": [0, -1, 2]}, "arrival_s is -1 in row 2 (allowed: 0 to 1e+09 s)"),
        ({"arrival_s": [0, 2, 1]}, "arrival_s falls from 2 to 1 s in row 3; sort the rows"),
        ({"arrival_s": [0, np.nan, 1]}, "arrival_s is empty in row 2"),
        ({"arrival_s": [0, 1, np.inf]}, "arrival_s is inf in row 3"),
        ({"prompt_tokens": [0, 1, 1]}, "prompt_tokens is 0 in row 1 (allowed: 1 to 1e+08 token)"),
        ({"prompt_tokens": [5, 1.5, 1]}, "prompt_tokens is 1.5 in row 2 (allowed: a whole number)"),
        ({"prompt_tokens": [5, 1e20, 1]}, "prompt_tokens is 1e+20 in row 2"),
        ({"prompt_tokens": [5, "many", 1]}, "prompt_tokens is many in row 2"),
        ({"prompt_tokens": [True, True, True]}, "prompt_tokens is True in row 1"),
        ({"output_tokens": [0, 1, 1]}, "output_tokens is 0 in row 1"),
        ({"image_tokens": [601, 0, 0]}, "image_tokens is 601 in row 1, of a prompt of 600 tokens"),
        ({"prefix_tokens": [0, 9, 0]}, "prefix_tokens is 9 in row 2 (allowed: 0 without a session"),
        (
            {"session": "a", "prefix_tokens": [600, 0, 0]},
            "prefix_tokens is 600 in row 1 (allowed: at most 0, the length of the session's prev",
        ),
        ({"session": "a", "prefix_tokens": [0, 601, 0]}, "is 601 in row 2 (allowed: at most 600"),
        ({"session": "a", "prefix_tokens": [0, 0, 900]}, "900 in row 3, of a prompt of 800 tokens"),
        ({"request": ["x", "y", "x"]}, "request 'x' stands twice, again in row 3; give each"),
        ({"hash_ids": ["1 2", "3 4", "5"]}, "row 3 has 1 hash_ids for a prompt of 800 tokens"),
        ({"hash_ids": ["1 2", "3 x", "5 6"]}, "hash_ids in row 2 is not a list of whole numbers"),
        ({"hash_ids": [[1, 2], [3, 0.5], [5, 6]]}, "hash_ids in row 2 is not a list of whole"),
        ({"hash_ids": ["1 2", "3 -4", "5 6"]}, "hash_ids in row 2 has a negative number"),
        ({"hash_ids": ["1 2", "", "5 6"]}, "row 2 has 0 hash_ids"),
        ({"hash_ids": ["1 2", f"3 {2**63}", "5 6"]}, "hash_ids in row 2 is not a list"),
        ({"output": 1}, "column 'output' is not known; did you mean 'output_tokens'?"),
        (
            {"hash_ids": ["1 2", "1 4", "5 6"], "session": "a", "prefix_tokens": [0, 512, 0]},
            "both hash_ids and prefix_tokens say what is shared; keep one",
        ),
    ],
)
def test_every_bad_value_is_named_with_its_row(columns, message):
    with pytest.raises(InputError) as caught:
        check_requests(table(**columns), "my.csv")
    assert message in str(caught.value)
    assert str(caught.value).startswith("my.csv: ")


def test_a_missing_or_empty_table_says_so():
    with pytest.raises(InputError, match="column 'output_tokens' is missing; add it"):
        check_requests(table().drop(columns="output_tokens"))
    with pytest.raises(InputError, match="holds no requests"):
        check_requests(table().head(0))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_a_table_survives_writing_and_reading(tmp_path: Path, name: str):
    rng = np.random.default_rng(3)
    n = 500
    prompts = rng.integers(1, 3000, n)
    full = check_requests(
        pd.DataFrame(
            {
                "request": [f"r{i}" for i in range(n)],
                "arrival_s": np.sort(rng.random(n) * 1e4),
                "prompt_tokens": prompts,
                "output_tokens": rng.integers(1, 99, n),
                "class": ["batch" if i % 3 else "007" for i in range(n)],
                "client": ["NA" if i % 2 else "null" for i in range(n)],
                "priority": rng.integers(-3, 3, n),
                "deadline_s": np.where(rng.random(n) < 0.5, np.nan, rng.random(n)),
                "image_tokens": rng.integers(0, prompts + 1),
                "hash_ids": [rng.integers(0, 2**63 - 1, b) for b in block_counts(prompts)],
            }
        )
    )
    write_requests(full, tmp_path / name)
    back = read_requests(tmp_path / name)
    assert list(back.columns) == list(full.columns)
    for column in full.columns.drop("hash_ids"):
        pd.testing.assert_series_equal(back[column], full[column])
    assert all((a == b).all() for a, b in zip(back["hash_ids"], full["hash_ids"], strict=True))


def test_the_compressed_file_is_the_same_every_time(tmp_path: Path):
    for name in ("a.csv.gz", "b.csv.gz"):
        write_requests(table(), tmp_path / name)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).startswith(b"arrival_s,prompt_to")


def test_a_line_with_too_many_fields_is_refused(tmp_path: Path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,5,1,2\n1,5,1,2\n")
    with pytest.raises(InputError, match="not a proper CSV table"):
        read_requests(path)


def test_merging_keeps_order_and_keeps_sessions_and_hashes_apart():
    hashed = table(hash_ids=["1 2", "1 3", "1 4"])
    both = merge_requests([hashed, table(arrival_s=[0.0, 0.5, 9.0]), hashed])
    assert both["arrival_s"].tolist() == [0, 0, 0, 0.5, 1, 1, 2, 2, 9]
    first = [int(ids[0]) for ids in both["hash_ids"]]
    assert len(set(first)) == 2 + 3  # one shared block for each hashed table, none for the plain
    sessions = table(session="a", prefix_tokens=[0, 600, 700])
    joined = merge_requests([sessions, sessions.assign(arrival_s=[0.1, 0.2, 0.3])])
    assert joined["session"].tolist() == ["0/a", "1/a", "1/a", "1/a", "0/a", "0/a"]
    assert joined["prefix_tokens"].sum() == 2 * 1300


@given(
    st.lists(
        st.tuples(
            st.one_of(st.floats(), st.integers(), st.text(max_size=4), st.none(), st.booleans()),
            st.one_of(st.floats(), st.integers(), st.none(), st.lists(st.integers(), max_size=2)),
            st.one_of(st.floats(-5, 5), st.integers(-2, 10**30), st.dates()),
        ),
        max_size=4,
    ),
    st.sampled_from(["prefix_tokens", "priority", "deadline_s", "image_tokens", "hash_ids"]),
)
def test_any_cells_give_a_table_or_an_input_error(rows, extra):
    frame = pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", extra], dtype=object)
    try:
        out = check_requests(frame.assign(output_tokens=1))
    except InputError:
        return
    assert np.isfinite(out["arrival_s"]).all()
    assert (out["prompt_tokens"] >= 1).all()
