"""Play workloads on a real vLLM engine (random weights) and record what happened.

  python serve.py PLAN.json OUTDIR

PLAN.json: {"name", "model": HF config dict, "engine": AsyncEngineArgs fields, "workloads": [...]}
A workload is one of
  {"name", "kind": "static", "batch": B, "prompt": P, "output": O}      B equal requests at once
  {"name", "kind": "poisson", "rate": R, "seconds": S, "lengths": FILE, "seed": K}  open loop, lengths drawn from a CSV
  {"name", "kind": "replay", "file": FILE}   CSV arrival_s,prompt_tokens,output_tokens[,session,prefix_tokens]
  {"name", "kind": "closed", "concurrency": C, "requests": N, "prompt": P, "output": O}  fixed concurrency
  {"name", "kind": "mixed", "batch": B, "prompt": P, "output": O, "chunks": [Q, ...], "after_s": A, "every_s": E}  a static
      batch, and beside its decoding one more prompt of Q tokens every E seconds from A on
A workload with "profile": {"steps": N, "when": "decode" | "any" | "mixed", "batch": B} also traces the kernels of N steps (step_log.py).

Writes requests.csv: workload,request,arrival_s,first_token_s,finish_s,prompt_tokens,output_tokens,cached_tokens
       steps.csv (step_log.py), marks.csv: workload,start,end (time.monotonic), power.csv: t,watts,sm_mhz,temp_c,gpu_util,energy_mj
"""

import asyncio
import csv
import json
import os
import random
import sys
import threading
import time

PLAN = json.load(open(sys.argv[1]))
OUT = sys.argv[2]
os.makedirs(OUT, exist_ok=True)
NAME = PLAN["name"]
os.environ["STEP_LOG"] = f"{OUT}/{NAME}_steps.csv"
os.environ["PROFILE_TRIGGER"] = f"{OUT}/{NAME}_trigger.json"
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import SamplingParams  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.sampling_params import RequestOutputKind  # noqa: E402
from vllm.v1.engine.async_llm import AsyncLLM  # noqa: E402


class Power(threading.Thread):
    def __init__(self, path):
        super().__init__(daemon=True)
        import pynvml

        self.nv = pynvml
        self.nv.nvmlInit()
        self.h = self.nv.nvmlDeviceGetHandleByIndex(0)
        self.f = open(path, "w", buffering=1 << 14)
        self.f.write("t,watts,sm_mhz,temp_c,gpu_util,energy_mj\n")
        self.stop = False

    def run(self):
        nv, h = self.nv, self.h
        while not self.stop:
            try:
                try:
                    v = nv.nvmlDeviceGetFieldValues(h, [186])[0]  # NVML_FI_DEV_POWER_INSTANT, mW
                    w = v.value.uiVal / 1e3
                except Exception:
                    w = nv.nvmlDeviceGetPowerUsage(h) / 1e3
                row = (
                    time.monotonic(),
                    w,
                    nv.nvmlDeviceGetClockInfo(h, 1),
                    nv.nvmlDeviceGetTemperature(h, 0),
                    nv.nvmlDeviceGetUtilizationRates(h).gpu,
                    nv.nvmlDeviceGetTotalEnergyConsumption(h),
                )
                self.f.write("%.4f,%.1f,%d,%d,%d,%d\n" % row)
            except Exception as e:  # keep the run alive
                self.f.write(f"# {e}\n")
            time.sleep(0.05)
        self.f.close()


def requests_of(w, rng):
    kind = w["kind"]
    if kind == "static":
        return [dict(at=0.0, p=w["prompt"], o=w["output"]) for _ in range(w["batch"])]
    if kind == "closed":
        return [dict(at=0.0, p=w["prompt"], o=w["output"]) for _ in range(w["requests"])]
    if kind == "mixed":
        late = [
            dict(at=w["after_s"] + i * w["every_s"], p=q, o=2) for i, q in enumerate(w["chunks"])
        ]
        return [dict(at=0.0, p=w["prompt"], o=w["output"]) for _ in range(w["batch"])] + late
    if kind == "poisson":
        rows = [(int(a), int(b)) for a, b in csv.reader(open(w["lengths"]))]
        rng2 = random.Random(w["seed"])
        t, out = 0.0, []
        while True:
            t += rng2.expovariate(w["rate"])
            if t > w["seconds"]:
                return out
            p, o = rng2.choice(rows)
            out.append(
                dict(
                    at=t,
                    p=min(p, w.get("max_prompt", 16000)),
                    o=max(1, min(o, w.get("max_output", 2000))),
                )
            )
    if kind == "replay":
        return [
            dict(
                at=float(r["arrival_s"]),
                p=int(r["prompt_tokens"]),
                o=int(r["output_tokens"]),
                session=r.get("session"),
                prefix=int(r.get("prefix_tokens") or 0),
            )
            for r in csv.DictReader(open(w["file"]))
        ]
    raise ValueError(kind)


async def play(engine, w, req_out, marks):
    rng = random.Random(w["name"])
    reqs = requests_of(w, rng)
    await engine.reset_prefix_cache()
    vocab = min(PLAN["model"]["vocab_size"], 32000) - 200
    sessions = {}

    def tokens(r):
        """Random ids; a session's turn repeats the first prefix_tokens of the session's previous prompt."""
        head = sessions.get(r.get("session"), [])[: r.get("prefix", 0)] if r.get("session") else []
        ids = head + [100 + rng.randrange(vocab) for _ in range(r["p"] - len(head))]
        if r.get("session"):
            sessions[r["session"]] = ids
        return ids

    for r in reqs:
        r["ids"] = tokens(r)
    if "profile" in w:
        with open(os.environ["PROFILE_TRIGGER"] + ".new", "w") as f:
            json.dump({"name": w["name"], **w["profile"]}, f)
        os.rename(os.environ["PROFILE_TRIGGER"] + ".new", os.environ["PROFILE_TRIGGER"])
    sem = asyncio.Semaphore(w.get("concurrency", 10**9))
    t0 = time.monotonic() + 0.2

    async def one(i, r):
        delay = t0 + r["at"] - time.monotonic()
        if delay > 0:
            await asyncio.sleep(delay)
        async with sem:
            arrival = time.monotonic()
            sp = SamplingParams(
                temperature=0.0,
                max_tokens=r["o"],
                min_tokens=0,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            first = last = None
            n = cached = 0
            async for o in engine.generate({"prompt_token_ids": r["ids"]}, sp, f"{w['name']}-{i}"):
                last = time.monotonic()
                n += len(o.outputs[0].token_ids) if o.outputs else 0
                if first is None and n:
                    first = last
                if o.num_cached_tokens:
                    cached = o.num_cached_tokens
            req_out.write(
                f"{w['name']},{i},{arrival - t0:.5f},{(first or last) - t0:.5f},{last - t0:.5f},{len(r['ids'])},{n},{cached}\n"
            )

    await asyncio.gather(*(one(i, r) for i, r in enumerate(reqs)))
    t1 = time.monotonic()
    marks.write(f"{w['name']},{t0:.6f},{t1:.6f}\n")
    marks.flush()
    req_out.flush()
    print(f"[{NAME}] {w['name']}: {len(reqs)} requests in {t1 - t0:.2f} s", flush=True)
    await asyncio.sleep(0.3)


async def main():
    model_dir = os.path.join(OUT, "model_" + NAME)
    os.makedirs(model_dir, exist_ok=True)
    json.dump(PLAN["model"], open(f"{model_dir}/config.json", "w"))
    args = dict(
        model=model_dir,
        skip_tokenizer_init=True,
        load_format="dummy",
        scheduler_cls="step_log.StepLogScheduler",
        disable_log_stats=True,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.9,
        max_num_seqs=512,
    )
    args.update(PLAN["engine"])
    t = time.monotonic()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
    print(f"[{NAME}] engine up in {time.monotonic() - t:.1f} s", flush=True)
    power = Power(f"{OUT}/{NAME}_power.csv")
    power.start()
    deadline = time.monotonic() + PLAN.get("budget_s", 480)
    with (
        open(f"{OUT}/{NAME}_requests.csv", "w") as req_out,
        open(f"{OUT}/{NAME}_marks.csv", "w") as marks,
    ):
        req_out.write(
            "workload,request,arrival_s,first_token_s,finish_s,prompt_tokens,output_tokens,cached_tokens\n"
        )
        marks.write("workload,start,end\n")
        await play(
            engine,
            dict(name="warmup", kind="static", batch=4, prompt=600, output=16),
            req_out,
            marks,
        )
        for w in PLAN["workloads"]:
            if time.monotonic() > deadline - w.get("cost_s", 5):
                print(f"[{NAME}] skipped {w['name']}: out of time", flush=True)
                continue
            try:
                await asyncio.wait_for(
                    play(engine, w, req_out, marks), timeout=w.get("timeout_s", 150)
                )
            except Exception as e:
                print(f"[{NAME}] {w['name']} failed: {type(e).__name__}: {e}", flush=True)
    power.stop = True
    power.join(1)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
