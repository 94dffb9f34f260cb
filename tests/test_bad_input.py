"""Bad input: one message that names what and where, exit code 2, nothing written."""

import gzip

import pytest

from sim.cli.app import run

SHORT = ["--duration", "2"]
HEAD = "arrival_s,prompt_tokens,output_tokens\n"

OPTIONS = {
    # option words -> words that the message must have
    "--accelerator h20-sxm": ["h20-sxm", "did you mean"],
    "--accelerator ''": ["accelerator"],
    "--accelerator nowhere.toml": ["nowhere.toml", "no such file"],
    "--model llama-3.1-8": ["llama-3.1-8", "did you mean"],
    "--model nowhere/config.json": ["nowhere/config.json"],
    "--weights fp7": ["fp7", "did you mean"],
    "--kv bf61": ["bf61", "did you mean"],
    "--tp 0": ["tp", "0"],
    "--tp -1": ["tp", "-1"],
    "--tp 3": ["tp", "3"],
    "--tp 1.5": ["tp", "integer"],
    "--tp two": ["tp", "integer"],
    "--tp 99999999": ["tp"],
    "--pp 0": ["pp", "0"],
    "--replicas 0": ["replicas", "0"],
    "--replicas -3": ["replicas", "-3"],
    "--replicas 10000000000": ["replicas"],
    "--rate 0": ["rate", "0"],
    "--rate -1": ["rate", "-1"],
    "--rate nan": ["rate", "nan"],
    "--rate inf": ["rate", "inf"],
    "--rate 1e99": ["rate"],
    "--rate fast": ["rate", "number"],
    "--duration -1": ["duration", "-1"],
    "--duration nan": ["duration", "nan"],
    "--duration inf": ["duration", "inf"],
    "--duration 1e300": ["duration"],
    "--lengths azure-cnv": ["azure-cnv", "did you mean"],
    "--workload chatt": ["chatt", "did you mean"],
    "--engine vllm-9": ["vllm-9", "did you mean"],
    "--batching continous": ["continous", "batching"],
    "--ordering fcsf": ["fcsf", "did you mean"],
    "--memory page": ["page", "did you mean"],
    "--routing roundrobin": ["roundrobin", "did you mean"],
    "--max-seqs 0": ["max_num_seqs", "0"],
    "--max-seqs -5": ["max_num_seqs", "-5"],
    "--max-seqs 100000000": ["max_num_seqs"],
    "--max-batched-tokens 0": ["max_num_batched_tokens"],
    "--max-batched-tokens -1": ["max_num_batched_tokens", "-1"],
    "--kv-blocks 0": ["kv_blocks", "0"],
    "--kv-blocks 1": ["kv_blocks", "1"],
    "--kv-blocks -7": ["kv_blocks", "-7"],
    "--seed -1": ["seed", "-1"],
    "--seed 99999999999999999999999": ["seed"],
    "--horizon -1": ["horizon", "-1"],
    "--horizon 0": ["horizon", "0"],
    "--warmup -2": ["warmup"],
    "--warmup soon": ["warmup"],
    "--power-cap 1": ["power_cap_w"],
    "--power-cap -1": ["power-cap", "-1"],
    "--power-cap 9999": ["power_cap_w"],
    "--slo-ttft -1": ["ttft", "-1"],
    "--slo-tpot nan": ["tpot", "nan"],
    "--concurrency 0 --count 5": ["concurrency", "0"],
    "--rate 2 --workload chat": ["keep one"],
    "--set hardware.tpp=2": ["tpp", "did you mean"],
    "--set nonsense": ["nonsense"],
    "--set model.name=": ["model.name"],
    "--set policies.batching.max_num_sqs=3": ["max_num_sqs", "did you mean"],
    "--set engine.memory_utilisation=1.5": ["memory_utilisation", "1.5"],
    "--set engine.memory_utilisation=0": ["memory_utilisation"],
    "--set hardware.ambient_c=500": ["ambient_c", "500"],
    "--plugin nowhere.py": ["nowhere.py"],
    "--model deepseek-v3": ["does not fit", "smallest change that fits"],
    "--model llama-3.1-70b": ["does not fit", "--tp"],
    "--model llama-3.1-405b --tp 2": ["does not fit"],
    "--no-such-option": ["no-such-option"],
}

TRACES = {
    "missing column": (b"arrival_s,prompt_tokens\n0,1\n", ["output_tokens", "missing"]),
    "unknown column": (b"arrival_s,prompt_tokens,output_tokens,promt\n0,1,1,1\n", ["promt"]),
    "column twice": (b"arrival_s,arrival_s,prompt_tokens,output_tokens\n0,0,1,1\n", ["twice"]),
    "negative time": (HEAD.encode() + b"-1,5,5\n", ["arrival_s", "-1"]),
    "unsorted times": (HEAD.encode() + b"5,5,5\n1,5,5\n", ["sort"]),
    "not a number": (HEAD.encode() + b"0,five,5\n", ["prompt_tokens", "five"]),
    "nan": (HEAD.encode() + b"0,nan,5\n", ["prompt_tokens"]),
    "infinite": (HEAD.encode() + b"inf,5,5\n", ["arrival_s"]),
    "zero tokens": (HEAD.encode() + b"0,0,5\n", ["prompt_tokens", "0"]),
    "negative tokens": (HEAD.encode() + b"0,5,-5\n", ["output_tokens", "-5"]),
    "fraction of a token": (HEAD.encode() + b"0,5.5,5\n", ["prompt_tokens", "5.5"]),
    "huge prompt": (HEAD.encode() + b"0,1e12,5\n", ["prompt_tokens"]),
    "longer than the model": (HEAD.encode() + b"0,9000000,5\n", ["longer than"]),
    "only a header": (HEAD.encode(), ["request"]),
    "empty": (b"", []),
    "binary": (bytes(range(256)) * 8, []),
    "not UTF-8": (HEAD.encode() + b"0,5,5\n\xff\xfe\n", ["UTF-8"]),
    "ragged": (HEAD.encode() + b"0,5,5,9,9\n", []),
    "truncated gzip": (gzip.compress(HEAD.encode() * 400)[:60], []),
    "JSON that breaks off": (b'{"timestamp": 0, "input_length": 5,', []),
}

SCENARIOS = {
    "truncated": ("[hardware\naccelerator", ["TOML"]),
    "misspelt section": ("[hardwear]\ntp = 1\n", ["hardwear", "did you mean"]),
    "misspelt key": ("[hardware]\ntensor = 1\n", ["tensor"]),
    "key twice": ("[hardware]\ntp = 1\ntp = 2\n", ["TOML"]),
    "other version": ("schema_version = 2\n", ["schema_version", "2"]),
    "wrong type": ('[hardware]\ntp = "two"\n', ["tp", "two"]),
    "nan": ("[slo]\nttft_s = nan\n", ["ttft_s"]),
    "policy without a name": ("[policies.batching]\nmax_num_seqs = 4\n", ["batching", "name"]),
    "decisions without end": ("[autoscaling]\ninterval_s = 1e-300\n", ["interval_s", "0.01"]),
    "two sources": (
        '[workload]\nrequests = "a.csv"\nnamed = "chat"\n',
        ["requests", "named"],
    ),
    "trace that is not there": ('[workload]\nrequests = "nowhere.csv"\n', ["nowhere.csv"]),
}


def refused(capsys, words, wanted, folder):
    """Run a command line that must fail with one readable message."""
    before = sorted(p.name for p in folder.iterdir())
    code = run(words)
    shown = capsys.readouterr()
    assert code == 2, shown
    assert "Traceback" not in shown.err + shown.out
    assert shown.err.strip(), "a message is shown"
    flat = " ".join(shown.err.split()).lower()
    assert [w for w in wanted if w.lower() not in flat] == [], shown.err
    assert sorted(p.name for p in folder.iterdir()) == before, "nothing is left behind"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("option", OPTIONS)
def test_option(option, folder, capsys):
    import shlex

    words = ["simulate", *shlex.split(option), "--out", "out"]
    if "--duration" not in option and "--concurrency" not in option and "--rate" not in option:
        words += SHORT
    refused(capsys, words, OPTIONS[option], folder)


@pytest.mark.parametrize("name", TRACES)
def test_trace(name, folder, capsys):
    content, wanted = TRACES[name]
    path = folder / ("trace.csv.gz" if "gzip" in name else "trace.csv")
    path.write_bytes(content)
    refused(capsys, ["simulate", "--requests", str(path), "--out", "out"], wanted, folder)


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name, folder, capsys):
    text, wanted = SCENARIOS[name]
    (folder / "scenario.toml").write_text(text)
    refused(capsys, ["simulate", "scenario.toml", "--out", "out"], wanted, folder)


def test_unwritable_folder(folder, capsys):
    (folder / "out").write_text("a file in the way")
    refused(capsys, ["simulate", *SHORT, "--out", "out/inside"], ["out"], folder)


def test_a_folder_of_something_else_is_left_alone(folder, capsys):
    (folder / "out").mkdir()
    (folder / "out" / "thesis.txt").write_text("years of work")
    refused(capsys, ["simulate", *SHORT, "--out", "out"], ["out"], folder)
    assert (folder / "out" / "thesis.txt").read_text() == "years of work"


def test_there_are_enough_cases():
    assert len(OPTIONS) + len(TRACES) + len(SCENARIOS) >= 80
