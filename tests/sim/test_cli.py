"""The command line: what it prints, writes and returns."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import psutil
import pytest
import typer

from sim import Scenario, load_scenario, simulate
from sim.cli import run
from sim.cli.app import COMMANDS
from sim.cli.overrides import make_scenario
from sim.metrics import summary

QUICK = ["simulate", "--rate", "4", "--duration", "3"]
PLUGIN = '''
from dataclasses import dataclass
from policies.rules import ordering

@ordering("shortest-first")
@dataclass(frozen=True)
class ShortestFirst:
    """Short prompts first. Use it in this test."""

    def key(self, request):
        return request.prompt_tokens
'''


def ended(capsys, arguments):
    """Exit code, stdout and stderr of a command line."""
    code = run(arguments)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_lists_every_command(capsys):
    code, out, _ = ended(capsys, ["--help"])
    assert code == 0
    for name in COMMANDS:
        assert f" {name} " in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    code, out, _ = ended(capsys, [name, "--help"])
    assert code == 0
    assert "Usage: roofcast" in out


def test_version(capsys):
    code, out, _ = ended(capsys, ["--version"])
    assert (code, out.split()[0]) == (0, "roofcast")


def test_help_does_not_wait_for_the_engine():
    heavy = "{'numba', 'pandas', 'scipy', 'altair', 'pydantic', 'streamlit'}"
    script = (
        "import sys; from sim.cli import build_app; build_app();"
        f" print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_simulate_prints_figures_and_writes_a_folder(capsys, folder):
    code, out, err = ended(capsys, [*QUICK, "--out", "a/b", "--name", "Trial"])
    assert (code, err) == (0, "")
    for words in ("Trial: Llama-3.1-8B on 1 x NVIDIA H200", "TTFT", "output_tokens_per_s", "a/b"):
        assert words in out
    assert load_scenario(folder / "a/b/scenario.toml").name == "Trial"
    assert (folder / "a/b/report.html").exists()


def test_simulate_without_out_writes_nothing(capsys, folder):
    code, out, _ = ended(capsys, QUICK)
    assert code == 0
    assert "No files written" in out
    assert list(folder.iterdir()) == []


def test_json_is_the_summary_and_nothing_else(capsys, folder):
    code, out, err = ended(capsys, [*QUICK, "--json", "--out", "run", "--no-report"])
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads((folder / "run/summary.json").read_text())


def test_options_mean_what_the_scenario_means(capsys):
    _, out, _ = ended(capsys, [*QUICK, "--json", "--seed", "7", "--max-seqs", "2"])
    changes = {
        "workload": {
            "arrivals": {"kind": "poisson", "rate_per_s": 4},
            "lengths": "azure-conv",
            "duration_s": 3,
        },
        "run.seed": 7,
        "policies.batching": {"name": "chunked-prefill", "max_num_seqs": 2},
    }
    assert json.loads(out) == summary(simulate(Scenario().changed(changes)))


OPTIONS = {
    "accelerator": ("a100-sxm", "hardware.accelerator", "a100-sxm"),
    "replicas": (3, "hardware.replicas", 3),
    "tp": (2, "hardware.tp", 2),
    "power_cap": (500.0, "hardware.power_cap_w", 500.0),
    "model": ("qwen3-8b", "model.name", "qwen3-8b"),
    "weights": ("fp8", "model.weights", "fp8"),
    "kv_blocks": (900, "policies.memory", {"name": "paged", "kv_blocks": 900}),
    "prefix_caching": (False, "policies.caching", {"name": "none"}),
    "routing": ("random", "policies.routing", {"name": "random"}),
    "slo_ttft": (0.5, "slo.ttft_s", 0.5),
    "warmup": ("2.5", "run.warmup", 2.5),
    "horizon": (9.0, "run.horizon_s", 9.0),
    "every_step": (True, "run.every_step", True),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_each_option_sets_one_key(option):
    given, key, wanted = OPTIONS[option]
    made, _ = make_scenario(None, {option: given}, [])
    assert made == Scenario().changed({key: wanted})


def test_settings_reach_every_key():
    settings = ["run.seed=3", "name=two words", "policies.batching.max_num_seqs = 9"]
    made, _ = make_scenario(None, {}, settings)
    assert (made.run.seed, made.name) == (3, "two words")
    assert made.policies.batching == {"name": "chunked-prefill", "max_num_seqs": 9}


def test_options_go_over_a_file(folder):
    Path("s.toml").write_text(
        '[run]\nseed = 5\n[workload]\nlengths = "azure-code"\nduration_s = 9\n'
        'arrivals = { kind = "poisson", rate_per_s = 1 }\n'
    )
    made, base = make_scenario(Path("s.toml"), {"rate": 8.0, "tp": 2}, [])
    assert (made.run.seed, made.hardware.tp) == (5, 2)
    assert made.workload.arrivals.rate_per_s == 8.0
    assert (made.workload.lengths, made.workload.duration_s) == ("azure-code", 9)
    assert base == Path()


def test_a_trace_beside_the_scenario_is_found(capsys, folder):
    Path("sub").mkdir()
    Path("sub/t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,200,6\n")
    Path("sub/s.toml").write_text('[workload]\nrequests = "t.csv"\n')
    code, out, _ = ended(capsys, ["simulate", "sub/s.toml", "--json"])
    assert (code, json.loads(out)["output_tokens"]) == (0, 11)
    code, out, _ = ended(capsys, ["simulate", "--requests", "sub/t.csv", "--json"])
    assert (code, json.loads(out)["output_tokens"]) == (0, 11)


def test_a_result_can_be_run_again_from_its_scenario(capsys, folder):
    Path("t.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,200,6\n")
    ended(capsys, ["simulate", "--requests", "t.csv", "--out", "one", "--no-report"])
    code, _, _ = ended(
        capsys, ["simulate", "one/scenario.toml", "--out", "deep/two", "--no-report"]
    )
    assert code == 0
    for name in ("requests.csv", "steps.csv", "summary.json"):
        assert Path("one", name).read_bytes() == Path("deep/two", name).read_bytes()


def test_objectives_decide_the_exit_code(capsys):
    for limit, wanted in (("10", 0), ("0.001", 1)):
        code, _, err = ended(capsys, [*QUICK, "--slo-ttft", limit, "--check-slo"])
        assert code == wanted
        assert ("missed: 0.00%" in err) == bool(wanted)


def test_a_plugin_adds_a_policy(capsys, folder):
    Path("mine.py").write_text(PLUGIN)
    command = [*QUICK, "--plugin", "mine.py", "--ordering", "shortest-first", "--out", "run"]
    code, _, err = ended(capsys, [*command, "--no-report"])
    assert (code, err) == (0, "")
    assert load_scenario(Path("run/scenario.toml")).policies.ordering["name"] == "shortest-first"
    code, out, _ = ended(capsys, ["list", "policies", "--plugin", "mine.py"])
    assert code == 0
    assert "Short prompts first." in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def (", "raises SyntaxError"),
        ("x = 1\nraise RuntimeError('no luck')\n", "raises RuntimeError: no luck (line 2)"),
        ("import nothing_of_that_name", "raises ModuleNotFoundError"),
        (PLUGIN.replace("@dataclass(frozen=True)\n", ""), "must be a dataclass"),
    ],
)
def test_a_broken_plugin_is_one_message(capsys, folder, text, words):
    Path("mine.py").write_text(text)
    code, out, err = ended(capsys, [*QUICK, "--plugin", "mine.py"])
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.strip().splitlines()) == 1


BAD = {
    "--rate -1": "--rate: Input should be greater than 0, got -1.0",
    "--rate nan": "finite number",
    "--rate 1 --requests x.csv": "--requests and --rate are given; keep one of them",
    "--tp 0": "--tp: Input should be greater than or equal to 1, got 0",
    "--tp 3": "tp = 3 does not divide 32 heads",
    "--tp two": "Invalid value for '--tp'",
    "--tpp 2": "No such option: --tpp",
    "--accelerator h200-smx": "did you mean 'h200-sxm'",
    "--model llama-3.1-8": "did you mean 'llama-3.1-8b'",
    "--model deepseek-v3": "smallest change that fits: --tp 8",
    "--weights fp9": "did you mean 'fp8'",
    "--batching chunked": "did you mean 'chunked-prefill'",
    "--lengths azure": "did you mean 'azure-co",
    "--workload chatt": "did you mean 'chat'",
    "--kv-blocks 2": "[policies.memory] kv_blocks",
    "--max-seqs 0": "max_num_seqs: Input should be greater than or equal to 1, got 0",
    "--horizon 0": "--horizon: Input should be greater than 0, got 0.0",
    "--warmup -3": "greater than or equal to 0",
    "--warmup soon": "'none' or 'mser', got 'soon'",
    "--warmup 1e6": "the warm-up of 1e+06 s leaves nothing",
    "--seed -1": "--seed: Input should be greater than or equal to 0, got -1",
    "--power-cap 10": "a power cap of 10 W cannot hold",
    "--set run": "'run' is not KEY=VALUE",
    "--set run.sed=1": "did you mean 'seed'",
    "--set run.seed.x=1": "'seed' is a value, not a section",
    "--requests none.csv": "no such file",
    "--requests strange.csv": "is of no known trace format",
    "--plugin none.py": "--plugin none.py: no such file",
    "none.toml": "none.toml: no such file",
    "strange.csv": "is not UTF-8 text",
    "broken.toml": "is not valid TOML",
    "newer.toml": "schema_version: Input should be 1, got 9",
    "--check-slo": "there is no objective to check",
    "--out strange.csv": "is a file, not a folder",
    "--out strange.csv/run": "cannot be written",
    "--out /proc/run": "cannot be written",
    "--out .": "is the current folder",
    "--out mine": "holds 'thesis.tex', which is not part of a roofcast result",
}


@pytest.mark.parametrize("arguments", BAD)
def test_bad_input_is_one_message_and_leaves_nothing(capsys, folder, arguments):
    Path("strange.csv").write_bytes(b"\x00\xff\xfe")
    Path("broken.toml").write_text("[hardware\n")
    Path("newer.toml").write_text("schema_version = 9\n")
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("words")
    before = sorted(folder.rglob("*"))
    code, out, err = ended(capsys, ["simulate", "--count", "5", *arguments.split()])
    assert (code, out) == (2, "")
    assert err.startswith("Error: ")
    assert BAD[arguments] in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(folder.rglob("*")) == before


def test_unknown_commands_are_hinted(capsys):
    code, _, err = ended(capsys, ["simulat"])
    assert code == 2
    assert "simulate" in err
    assert len(err.strip().splitlines()) == 1


def test_no_arguments_print_the_help(capsys):
    code, out, err = ended(capsys, [])
    assert code == 2
    assert "Usage: roofcast" in out + err


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "Interrupted"),
        (OSError(28, "No space left on device", "/data/x"), 2, "/data/x: No space left on device"),
        (MemoryError(), 2, "out of memory"),
    ],
)
def test_errors_of_the_machine_are_one_message(capsys, monkeypatch, error, code, words):
    def broken(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("sim.simulation.simulate", broken)
    assert run(QUICK) == code
    assert words in capsys.readouterr().err


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    def broken(*_args, **_kwargs):
        raise ZeroDivisionError

    monkeypatch.setattr("sim.simulation.simulate", broken)
    with pytest.raises(ZeroDivisionError):
        run(QUICK)


def shell(*arguments, **kwargs):
    command = [sys.executable, "-m", "sim", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs
    )


def test_a_real_process_ends_with_the_same_codes(tmp_path):
    good = shell(*QUICK, "--json", "--out", tmp_path / "run", "--no-report")
    out, err = good.communicate(timeout=120)
    assert (good.returncode, err) == (0, "")
    assert json.loads(out)["finished"] > 0
    bad = shell("simulate", "--tp", "0")
    out, err = bad.communicate(timeout=60)
    assert (bad.returncode, out) == (2, "")
    assert "Traceback" not in err


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    long = shell("simulate", "--rate", "9", "--duration", "4e6", "--out", tmp_path / "run")
    seen, until = psutil.Process(long.pid), time.monotonic() + 60
    while seen.cpu_times().user < 4 and time.monotonic() < until:
        assert long.poll() is None
        time.sleep(0.1)
    os.kill(long.pid, signal.SIGINT)
    _, err = long.communicate(timeout=60)
    assert long.returncode == 130
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_closed_pipe_is_no_error():
    listing = shell("list", "models")
    listing.stdout.close()
    err = listing.stderr.read()
    listing.wait(timeout=60)
    listing.stderr.close()
    assert "Traceback" not in err


def greet(loud: bool = False) -> None:
    """Greet."""
    typer.echo("HELLO" if loud else "hello")


GROUP = typer.Typer(help="A group of two.")
GROUP.command("one")(greet)
GROUP.command("two")(greet)


def points_to(monkeypatch, *values):
    points = [EntryPoint(name, value, "roofcast.commands") for name, value in values]
    monkeypatch.setattr("sim.cli.app.entry_points", lambda group: points)
    monkeypatch.setitem(sys.modules, "greeting", sys.modules[__name__])


def test_packages_above_add_commands_by_entry_point(capsys, monkeypatch):
    points_to(monkeypatch, ("greet", "greeting:greet"), ("many", "greeting:GROUP"))
    assert ended(capsys, ["greet", "--loud"]) == (0, "HELLO\n", "")
    assert ended(capsys, ["many", "two"]) == (0, "hello\n", "")
    assert " greet " in ended(capsys, ["--help"])[1]


def test_a_command_that_cannot_be_imported_does_not_stop_the_others(capsys, monkeypatch):
    points_to(monkeypatch, ("gone", "nowhere_at_all:main"), ("greet", "greeting:greet"))
    assert ended(capsys, ["greet"]) == (0, "hello\n", "")
    code, _, err = ended(capsys, ["gone"])
    assert code == 2
    assert "cannot be loaded from nowhere_at_all:main" in err
    assert "Not available" in ended(capsys, ["--help"])[1]
