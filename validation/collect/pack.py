"""Gather what serve.py wrote for several runs into the compressed tables that the project keeps.

  python pack.py OUTDIR RUN=FOLDER [RUN=FOLDER ...]

requests, steps, power and marks get the columns run and workload, their times start at the workload's start; warm-up and traced
workloads are left out. kernel_traces: run, trace, kind, steps, position, kernel, start_us, us: the kernels from a step's embedding
to the next step's (medians over the trace's steps of that kind with the most common kernel sequence). traced_steps: their steps. drafts: the requests that verified drafts, of runs with speculation.
"""

import sys
from pathlib import Path

import pandas as pd

OUT = Path(sys.argv[1])


def kept(name):
    return name != "warmup" and not name.startswith("trace_")


def windows(marks, table, column, before, after):
    """The rows of each kept workload with times from its start."""
    parts = []
    for w in marks.itertuples():
        if not kept(w.workload):
            continue
        x = table[(table[column] >= w.start - before) & (table[column] <= w.end + after)].copy()
        for c in x.columns:
            if c in ("t", "t_schedule", "t_output", "t_enter"):
                x[c] = (x[c] - w.start).round(5 if c != "t" else 3)
        for c in ("host_ms", "gpu_ms", "gpu_gap_ms"):
            if c in x.columns:
                x[c] = x[c].round(3)
        x.insert(0, "workload", w.workload)
        parts.append(x)
    return pd.concat(parts)


def trace_rows(run, kernels, steps):
    """One row per position in the step's kernel sequence."""
    out = []
    for name, x in kernels.groupby("profile", sort=False):
        st = steps[steps.profile == name].reset_index(drop=True)
        x = x.reset_index(drop=True)
        at = x.index[x.kernel.str.contains("embedding")].tolist()
        parts = [x.iloc[a:b] for a, b in zip(at, [*at[1:], len(x)])]
        kinds = ["prefill" if n else "decode" for n in st.n_prefill]
        for kind in sorted(set(kinds)):
            mine = [p for p, k in zip(parts, kinds) if k == kind]
            keys = [tuple(p.kernel) for p in mine]
            best = max(set(keys), key=keys.count)
            same = [p for p, k in zip(mine, keys) if k == best]
            us = pd.concat([p.us.reset_index(drop=True) for p in same], axis=1).median(axis=1)
            t = pd.concat(
                [(p.start_us - p.start_us.iloc[0]).reset_index(drop=True) for p in same], axis=1
            ).median(axis=1)
            out.append(
                pd.DataFrame(
                    {
                        "run": run,
                        "trace": name,
                        "kind": kind,
                        "steps": len(same),
                        "position": range(len(best)),
                        "kernel": [k[:140] for k in best],
                        "start_us": t.round(2),
                        "us": us.round(3),
                    }
                )
            )
    return pd.concat(out)


def traces(run, read):
    """The tables of the traced steps."""
    steps = read("kernel_steps")
    times = ["t_schedule", "t_output", "t_enter"]
    return {
        "kernel_traces": trace_rows(run, read("kernels"), steps),
        "traced_steps": steps.rename(columns={"profile": "trace"}).drop(columns=times),
    }


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    tables = {
        k: []
        for k in ("requests", "steps", "power", "marks", "kernel_traces", "traced_steps", "drafts")
    }
    for arg in sys.argv[2:]:
        run, folder = arg.split("=", 1)
        read = lambda part: pd.read_csv(Path(folder) / f"{run}_{part}.csv", comment="#")
        marks = read("marks")
        one = {
            "requests": read("requests").loc[lambda r: r.workload.map(kept)],
            "steps": windows(marks, read("steps"), "t_schedule", 0.05, 0.02),
            "power": windows(marks, read("power"), "t", 0.1, 0.1),
            "marks": marks[marks.workload.map(kept)].assign(
                end=lambda m: (m.end - m.start).round(4), start=0.0
            ),
        }
        if (Path(folder) / f"{run}_kernels.csv").exists():
            one |= traces(run, read)
        if (Path(folder) / f"{run}_drafts.csv").exists():
            one["drafts"] = windows(marks, read("drafts"), "t_schedule", 0.05, 0.02)
        for k, v in one.items():
            if "run" not in v.columns:
                v = v.copy()
                v.insert(0, "run", run)
            tables[k].append(v)
    for k, v in tables.items():
        if not v:
            continue
        t = pd.concat(v)
        t.to_csv(
            OUT / f"{k}.csv.gz",
            index=False,
            compression={"method": "gzip", "compresslevel": 9, "mtime": 0},
        )
        print(k, len(t), (OUT / f"{k}.csv.gz").stat().st_size)


main()
