"""Messages of simulation, validation and page: each names what is wrong, where, and the repair."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from formats import InputError, parse_toml
from sim import (
    comparison,
    deployment,
    encoder,
    explain,
    parallelism,
    results,
    rules,
    samples,
    simulation,
)
from sim.cli import catalog, kinds, overrides, sweep, waterfall
from sim.core import pointers
from sim.fleets import run as fleet_run
from sim.fleets import sections
from sim.planning import demand, load, parts, planfile, supply
from sim.scenario import Scenario
from sim.sweeping import grid, keys, pool, saturation
from sim.sweeping import run as sweep_run
from sim.tuning import flags, space, storage, tuner
from ui import share
from validation import fit_machine, fit_planning, foreign, queueing, user_files
from workloads.models import load_model

SCALER = {"name": "target-utilisation"}
OPEN = {"arrivals": {"kind": "poisson", "rate_per_s": 5}, "lengths": "azure-conv"}
OPEN |= {"duration_s": 2.0}
CLOSED = {"arrivals": {"kind": "closed-loop", "concurrency": 2}, "lengths": "azure-conv"}
DETAILED = {"ttfts": [0.1], "itls": [[0.1]], "input_lens": [5], "output_lens": [2]}


def put(folder, text, name="file.toml"):
    path = folder / name
    path.write_text(text)
    return path


def refuses(cases):
    """Run every case: what must fail, and words of its message."""
    return pytest.mark.parametrize(("call", "words"), cases.values(), ids=cases)


def scenario(**changed):
    return Scenario.model_validate(changed)


def gridded(**changed):
    return grid.Grid.model_validate({"schema_version": 1, "keys": {"hardware.tp": [1]}} | changed)


def traffic(**changed):
    return demand.Traffic.model_validate({"name": "chat", "users": 5, "workload": "chat"} | changed)


def candidates(*changed):
    base = {"accelerator": "h200-sxm"}
    specs = [supply.CandidateSpec.model_validate(base | one) for one in changed]
    return supply.expand(specs, demand.Served(name="llama-3.1-8b"))


def bench(folder, **changed):
    return user_files.read_measured(put(folder, json.dumps(DETAILED | changed), "run.json"))


def run_csv(folder, *rows):
    text = "\n".join([",".join(user_files.COLUMNS), *rows, ""])
    return user_files.read_measured(put(folder, text, "requests.csv"))


def unreadable(*_):
    raise OSError(5, "broken disk")


def unlisted(folder):
    (folder / "out").mkdir()
    with mock.patch.object(Path, "iterdir", unreadable):
        results.check_target(folder / "out")


def _idle(_):
    with mock.patch.object(fit_machine, "_ratios", return_value=np.empty(0)):
        fit_machine.host_slowness([None])


def _without_dask(_):
    with mock.patch.object(pool, "import_module", side_effect=ImportError):
        next(pool._dask("local:1"))


def _gone(_):
    future = mock.Mock(result=mock.Mock(side_effect=KeyError))
    work = mock.Mock(running={future: None}, count=3, done=0)
    sweep_run._Work._take(work, future, mock.Mock(lost=(), gone=(KeyError,)))


COMMANDS = {
    "a file of no kind": (
        lambda f: catalog._read_file(str(put(f, "x = 1\n")), None),
        "is no file of any kind; name its kind with --kind",
    ),
    "kind without files": (
        lambda f: catalog._read_file(str(put(f, "x = 1\n")), "metrics"),
        "metrics have no files",
    ),
    "kind": (
        lambda _: list(kinds.kinds("modles")),
        "nothing of kind 'modles' to list; did you mean",
    ),
    "two sources": (
        lambda _: overrides.make_scenario(None, {"rate": 1.0, "workload": "chat"}, []),
        "--workload and --rate are given; keep one",
    ),
    "plugin": (lambda f: overrides.load_plugin(f / "x.py"), "no such file"),
    "plugin of another kind": (
        lambda f: overrides.load_plugin(put(f, "", "x.txt")),
        r"is not a Python file .allowed: a name that ends in .py",
    ),
    "plugin that registers no dataclass": (
        lambda f: overrides.load_plugin(
            put(f, "from policies.rules import ordering\n@ordering('x')\nclass X: ...\n", "x.py")
        ),
        "--plugin .*policy 'x' must be a dataclass",
    ),
    "plugin that fails": (
        lambda f: overrides.load_plugin(put(f, "\n1 / 0\n", "x.py")),
        "raises ZeroDivisionError: division by zero.*line 2",
    ),
    "waterfall of nothing": (
        lambda _: waterfall.show_waterfall(
            scenario(model={"name": "llama-3.1-405b"}), Path(), 4, None, True
        ),
        "no step of the waterfall runs on h200-sxm; raise --tp",
    ),
    "rate of a sweep": (lambda _: sweep.sweep(Path("x.toml"), rate="all"), "'all' is not auto"),
}
RUNS = {
    "one scenario": (lambda _: comparison.compare([scenario()]), "there is one scenario"),
    "one replication": (
        lambda _: comparison.compare([scenario(), scenario()], replications=1),
        "1 replication has no spread",
    ),
    "confidence": (
        lambda _: comparison.compare([scenario(), scenario()], confidence=1.5),
        "confidence is 1.5",
    ),
    "load": (lambda _: explain.Load(batch=0), "batch = 0 .allowed: 1 to 134217728"),
    "features": (
        lambda _: samples.check_features(2, False),
        r"\[engine\] lora_adapters: .*leave it out",
    ),
    "tables": (
        lambda _: rules.check_tables(
            SimpleNamespace(linear_s=np.zeros(9), head_s=np.zeros(9)),
            {"max_num_batched_tokens": 9, "max_num_seqs": 8},
        ),
        "max_num_batched_tokens is 9, the step tables end at 8",
    ),
    "an array in pieces": (
        lambda _: pointers._addresses(
            mock.Mock(_asdict=lambda: {"held": np.zeros((4, 4))[:, 0]}), pointers.POOL_AT
        ),
        "held must be contiguous",
    ),
    "KV blocks": (
        lambda _: deployment.deploy(
            scenario(policies={"memory": {"name": "paged", "kv_blocks": 4}}), longest=4000
        ),
        "kv_blocks = 4 cannot hold one request of 4000 tokens",
    ),
    "encoder": (
        lambda _: encoder._work(
            mock.Mock(flops_per_token=0.0), load_model("llama-3.1-8b"), None, np.ones(1)
        ),
        "has no vision encoder; give flops_per_token",
    ),
    "no requests": (
        lambda _: simulation.simulate(
            scenario(), pd.DataFrame({"arrival_s": [], "prompt_tokens": [], "output_tokens": []})
        ),
        "no request|no rows|empty",
    ),
    "pool that is not there": (
        lambda _: fleet_run._scale(
            scenario(
                pools=[{"name": "all"}], fleet={}, autoscaling={"pools": ["al"], "policy": SCALER}
            ),
            SimpleNamespace(pools=[SimpleNamespace(section=SimpleNamespace(name="all"))]),
        ),
        "no pool named 'al'",
    ),
    "replicas at least": (
        lambda _: sections.AutoscalingSection(least=9, most=8),
        "least = 9 must not exceed most = 8",
    ),
    "micro-batches": (
        lambda _: parallelism.check_parallelism(
            parallelism.Parallelism(micro_batches=4), load_model("llama-3.1-8b"), 8
        ),
        "micro_batches = 4 needs a pipeline; set pp above 1",
    ),
    "results in the current folder": (
        lambda f: results.check_target(Path.cwd()),
        "is the current folder, which cannot be replaced",
    ),
    "results in a file": (lambda f: results.check_target(put(f, "")), "is a file, not a folder"),
    "results in a folder that cannot be read": (unlisted, "cannot be read: broken disk"),
}
PLANS = {
    "shape without weight": (
        lambda _: demand.Shape(hourly=[0.0] * 24),
        "hourly and daily each need a weight above 0",
    ),
    "nothing asked": (
        lambda _: planfile.PlanFile.model_validate(
            {"schema_version": 1, "name": "x", "candidates": [{"accelerator": "h200-sxm"}]}
        ),
        "nothing is asked; add",
    ),
    "two volumes": (lambda _: traffic(requests_per_s=1), "users and requests_per_s are given"),
    "lengths of a trace": (
        lambda _: traffic(users=None, trace="a.csv", lengths="azure-conv"),
        "a trace has its own lengths and prefixes",
    ),
    "shape": (lambda _: load._weights("chat"), "workload 'chat' has no daily shape"),
    "lengths": (
        lambda _: load._one_lengths({"prompt": 5}, "[[traffic]] chat lengths"),
        r"\[\[traffic\]\] chat lengths: .*see `roofcast list lengths`",
    ),
    "trace without time": (
        lambda f: load._traced(
            traffic(users=None, trace="t.csv"),
            None,
            put(f, "arrival_s,prompt_tokens,output_tokens\n0,5,5\n", "t.csv").parent,
        ),
        "a trace that spans no time has no rate",
    ),
    "ratio of a mixed fleet": (
        lambda _: parts.counts("best", "mixed"),
        "a mixed fleet needs a ratio",
    ),
    "empty pool": (
        lambda _: parts.counts("2:0", "disaggregated"),
        "ratio 2:0 leaves a pool without replicas",
    ),
    "price": (lambda _: candidates({"price": -1.0}), "a price of -1 makes no plan"),
    "twice": (lambda _: candidates({}, {}), "two candidates are called .*another name"),
    "node": (
        lambda _: candidates({"node": "hgx-h100"}),
        "node 'hgx-h100' carries h100-sxm, not h200-sxm",
    ),
}
SWEEPS = {
    "no values": (lambda _: gridded(keys={"hardware.tp": []}), "a key has no values"),
    "range": (
        lambda _: gridded(keys={"hardware.tp": {"low": 1, "high": 2}}),
        "ranges need method = 'sobol'",
    ),
    "too many points": (
        lambda _: grid.points(
            gridded(keys={f"a.{n}": list(range(1001)) for n in "xy"}, method="cartesian")
        ),
        "the grid has 1,002,001 points .*use method = 'sobol'",
    ),
    "ends": (lambda _: keys.Span(low=2, high=1), "high = 1 must be above low = 2"),
    "logarithm": (lambda _: keys.Span(low=0, high=1, log=True), "a log range needs low above 0"),
    "whole": (lambda _: keys.Span(low=0.5, high=2, whole=True), "whole needs whole ends"),
    "place": (
        lambda _: keys.change(scenario(), {"pools.3.name": "x"}),
        "'3' is no place in the list .*none, the list is empty",
    ),
    "a name in a grid": (
        lambda _: keys.check_scenario(scenario(model={"name": "lama"}), "grid: point 3"),
        "grid: point 3: no model named 'lama'",
    ),
    "rate of a closed loop": (
        lambda _: saturation.saturation_curve(scenario(workload=CLOSED | {"count": 4})),
        "a closed loop has no rate .*give it arrivals with a rate",
    ),
    "a scenario that fails": (
        lambda _: saturation.saturation_curve(
            scenario(model={"name": "llama-3.1-70b"}, workload=OPEN)
        ),
        "does not fit",
    ),
    "no Dask": (_without_dask, "Dask is not installed; pip install"),
    "cluster gone": (_gone, "the cluster is gone with 3 points left; start it again"),
    "local cluster": (lambda _: pool._count("local:0"), "'local:0' is not local:N"),
    "scheduler": (
        lambda _: pool._connected(mock.Mock(side_effect=OSError("no route")), "tcp://x:1"),
        "no Dask scheduler answers at tcp://x:1: no route",
    ),
    "no worker": (
        lambda _: pool._dask_pool(
            None, mock.Mock(wait_for_workers=mock.Mock(side_effect=TimeoutError))
        ),
        "no worker has joined the Dask scheduler",
    ),
}
TUNING = {
    "objective": (
        lambda _: tuner.tune(scenario(), space.Space(knobs={"hardware.tp": [1]}), []),
        "no objective is given; such as goodput",
    ),
    "engine": (lambda _: flags.check_engine("vlm"), "no options are known of an engine 'vlm'"),
    "knob without values": (
        lambda _: space.Space(knobs={"hardware.tp": []}),
        "knob hardware.tp has no values",
    ),
    "knob of no policy": (
        lambda _: space.check_space(
            space.Space(knobs={"policies.batching.max_seqs": [1]}), scenario()
        ),
        "no batching policy of this space has a parameter 'max_seqs'",
    ),
    "value of a knob": (
        lambda _: space.check_space(space.Space(knobs={"hardware.tp": [0]}), scenario()),
        "space: knobs.hardware.tp = 0",
    ),
    "storage": (
        lambda _: storage.open_study("x", 1, "nosuch://place"),
        "the study cannot be opened: .*--storage",
    ),
}
MEASURED = {
    "no file": (lambda f: foreign.read_foreign(f / "x.csv", ["a"]), "there is no such file"),
    "no column": (
        lambda f: foreign.read_foreign(put(f, "b\n1\n", "x.csv"), ["a"]),
        "lacks column 'a'",
    ),
    "too few dispatches": (_idle, "0 dispatches"),
    "no rows of the model": (
        lambda f: fit_planning.published_loads(
            put(f, ",".join(fit_planning.COLUMNS) + "\n", "x.csv")
        ),
        "no rows of .*name silicon_e2e",
    ),
    "rate": (lambda _: queueing.mm1(0.0, 1.0), "arrival_per_s is 0 .allowed: a positive number"),
    "servers": (lambda _: queueing.mmc(1.0, 1.0, 0), "servers is 0"),
    "neither JSON nor CSV": (
        lambda f: user_files.read_measured(put(f, "{", "run.json")),
        "is neither JSON nor CSV",
    ),
    "other JSON": (lambda f: user_files.read_measured(put(f, "[]", "r.json")), "none of the known"),
    "totals": (
        lambda f: user_files.read_measured(put(f, '{"mean_ttft_ms": 5}', "r.json")),
        "holds the totals only",
    ),
    "arrivals": (lambda f: bench(f, request_rate=5), "has no start_times"),
    "another writer": (
        lambda f: bench(f, itls=5),
        "is not as vllm bench serve writes it: TypeError",
    ),
    "no benchmark": (
        lambda f: user_files.read_measured(put(f, '{"benchmarks": []}', "r.json")),
        "holds no benchmark",
    ),
    "few": (lambda f: run_csv(f, "0,1,2,5,5"), "holds 1 finished requests .*measure longer"),
    "order": (
        lambda f: run_csv(f, *["0,1,2,5,5"] * 40, "5,4,6,5,5"),
        "request 40 has its first token before it was sent",
    ),
}
PAGE = {
    "link": (
        lambda _: share.from_link("x"),
        "the scenario in it cannot be read .*copy the whole link",
    ),
    "cut link": (
        lambda _: share.from_link(share.to_link(scenario(name="cut"))[:-8]),
        "too long or cut off",
    ),
    "upload": (lambda _: parse_toml(b"\xff", Scenario, "a.toml"), "a.toml: is not UTF-8 text"),
    "upload that is no TOML": (
        lambda _: parse_toml("[", Scenario, "a.toml"),
        "is not valid TOML: .*mend that line",
    ),
}


@refuses(COMMANDS | RUNS | PLANS | SWEEPS | {f"tune: {k}": v for k, v in TUNING.items()})
def test_simulation(call, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        call(tmp_path)


@refuses(MEASURED | PAGE)
def test_measured_and_page(call, words, tmp_path):
    with pytest.raises(InputError, match=words):
        call(tmp_path)
