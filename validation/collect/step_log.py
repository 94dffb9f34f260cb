"""A vLLM scheduler that writes one CSV row for every engine step, and traces GPU kernels on request.

Columns (times are time.monotonic() seconds of the engine process):
  t_schedule  when schedule() returned the batch
  t_output    when the step's sampled tokens came back
  n_prefill   requests that computed prompt tokens in this step
  prefill_tokens  prompt tokens computed in this step (sum of chunks)
  prefill_attn    sum over those requests of chunk * (context before + (chunk + 1) / 2), the causal query-key pairs
  n_decode    requests that computed one token in this step
  decode_context  sum over those requests of the tokens already in their KV cache
  n_running, n_waiting  queue lengths after scheduling
  n_preempted requests preempted by this step
  kv_usage    fraction of KV blocks in use (0..1)
  t_enter     when schedule() was entered
  decode_context_max  longest context among the decoding requests
  host_ms     host time of the step's dispatch: worker execute_model + sample_tokens
  gpu_ms      GPU time from the step's first to its last work on the compute stream (holds the gaps while the GPU waits for the host)
  gpu_gap_ms  GPU time between the previous step's end and this step's start (-1: no previous step)
  n_drafting  requests that verified drafted tokens in this step (speculation; 0 without)
  n_drafted   drafted tokens verified in this step
  n_accepted  of those, accepted
  sample_ms   the part of host_ms in sample_tokens: output projection and sampling
  device_allocs, reserved_mb  allocations from the device by PyTorch so far, and what it holds [MB]

With speculation gpu_ms ends before the tokens come back to the host and the next drafts are proposed there, and
<STEP_LOG without _steps.csv>_drafts.csv has a row for every request that verified drafts in a step: t_schedule,request,
context,drafted,accepted. Its engine schedules in step with the GPU: plans name SyncStepLogScheduler.

A file named by the environment variable PROFILE_TRIGGER holding {"name", "steps", "when": "decode" | "any" | "mixed", "batch"} starts a
kernel trace at the next step that fits; its rows go to <STEP_LOG without _steps.csv>_kernels.csv: profile,kernel,start_us,us and
<...>_kernel_steps.csv: profile, then the step's columns.
"""

import csv
import json
import os
import time

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

HEADER = (
    "t_schedule,t_output,n_prefill,prefill_tokens,prefill_attn,n_decode,decode_context,"
    "n_running,n_waiting,n_preempted,kv_usage,t_enter,decode_context_max,host_ms,gpu_ms,gpu_gap_ms,"
    "n_drafting,n_drafted,n_accepted,sample_ms,device_allocs,reserved_mb\n"
)


class GpuClock:
    """Wraps the worker's execute_model and sample_tokens with host timers and CUDA events."""

    def __init__(self, speculative=False):
        self.steps = []  # [host_s, start event, end event] of dispatched steps, oldest first
        self.current = None
        self.last_end = None
        self.sample_s, self.allocs, self.reserved = 0.0, 0, 0.0
        try:
            import torch
            from vllm.v1.worker.gpu_worker import Worker

            self.torch = torch
            self.wrap(Worker)
            if speculative:
                self.end_before_drafting()
        except Exception as e:
            print("no GPU step times:", type(e).__name__, e, flush=True)

    def event(self):
        e = self.torch.cuda.Event(enable_timing=True)
        e.record()
        return e

    def wrap(self, worker):
        run, sample, me = worker.execute_model, worker.sample_tokens, self

        def execute_model(w, scheduler_output):
            if not scheduler_output.total_num_scheduled_tokens:
                return run(w, scheduler_output)
            t = time.monotonic()
            start = me.event()
            out = run(w, scheduler_output)
            me.current = [time.monotonic() - t, start, None, 0.0, 0, 0.0]
            return out

        def sample_tokens(w, grammar_output):
            t = time.monotonic()
            out = sample(w, grammar_output)
            if me.current is not None:
                me.current[0] += time.monotonic() - t
                me.current[3] = time.monotonic() - t
                stats = me.torch._C._cuda_memoryStats(0)
                me.current[4] = stats["num_device_alloc"]
                me.current[5] = stats["reserved_bytes"]["all"]["current"] / 1e6
                me.current[2] = me.current[2] or me.event()
                me.steps.append(me.current)
                me.current = None
            return out

        worker.execute_model, worker.sample_tokens = execute_model, sample_tokens

    def end_before_drafting(self):
        """Put a step's end event before the tokens are copied to the host, where the next drafts are proposed."""
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        keep, me = GPUModelRunner._bookkeeping_sync, self

        def bookkeeping(runner, *args, **kwargs):
            if me.current is not None:
                me.current[2] = me.event()
            return keep(runner, *args, **kwargs)

        GPUModelRunner._bookkeeping_sync = bookkeeping

    def pop(self):
        """(host_ms, gpu_ms, gpu_gap_ms) of the oldest step, after its end; -1 where unknown."""
        if not self.steps:
            return -1.0, -1.0, -1.0
        host, a, b, self.sample_s, self.allocs, self.reserved = self.steps.pop(0)
        try:
            b.synchronize()
            gap = self.last_end.elapsed_time(a) if self.last_end is not None else -1.0
            self.last_end = b
            return host * 1e3, a.elapsed_time(b), gap
        except Exception:
            return host * 1e3, -1.0, -1.0


class Tracer:
    """Kernel trace of a few steps with the PyTorch profiler, on request."""

    def __init__(self, prefix):
        self.prefix, self.trigger = prefix, os.environ.get("PROFILE_TRIGGER", "")
        self.job, self.prof, self.left = None, None, 0

    def before(self, n_prefill, n_decode):
        """Called with the next step's composition, before it runs."""
        if self.prof is not None:
            self.left -= 1
            if self.left < 0:
                self.finish()
            return
        if self.job is None and self.trigger and os.path.exists(self.trigger):
            self.job = json.load(open(self.trigger))
            os.remove(self.trigger)
        if self.job is None:
            return
        full = n_decode >= self.job.get("batch", 1)
        wanted = {"any": True, "decode": not n_prefill and full, "mixed": n_prefill and full}
        if wanted[self.job["when"]]:
            self.start()

    def start(self):
        try:
            import torch
            from torch.profiler import ProfilerActivity, profile

            torch.cuda.synchronize()
            self.prof = profile(activities=[ProfilerActivity.CUDA])
            self.prof.start()
            self.left = self.job["steps"] - 1
        except Exception as e:
            print("no kernel trace:", type(e).__name__, e, flush=True)
            self.prof, self.job = None, None

    def finish(self):
        import torch

        name, self.job = self.job["name"], None
        try:
            torch.cuda.synchronize()
            self.prof.stop()
            rows = [
                (e.start_ns(), e.duration_ns(), e.name())
                for e in self.prof.profiler.kineto_results.events()
                if "CUDA" in str(e.device_type())
            ]
            rows.sort()
            path = self.prefix + "_kernels.csv"
            new = not os.path.exists(path)
            with open(path, "a", newline="") as f:
                w = csv.writer(f)
                if new:
                    w.writerow(["profile", "kernel", "start_us", "us"])
                for s, d, n in rows:
                    w.writerow([name, n[:220], f"{(s - rows[0][0]) / 1e3:.3f}", f"{d / 1e3:.3f}"])
            print(f"kernel trace {name}: {len(rows)} rows", flush=True)
        except Exception as e:
            print("kernel trace failed:", type(e).__name__, e, flush=True)
        self.prof = None

    @property
    def on(self):
        return self.prof is not None


class StepLog:
    """What a scheduler class gets on top of vLLM's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        path = os.environ["STEP_LOG"]
        self._log = open(path, "w", buffering=1 << 16)
        self._log.write(HEADER)
        self._open_steps = {}
        self._clock = GpuClock(self.num_spec_tokens > 0)
        self._tracer = Tracer(path.replace("_steps.csv", ""))
        self._traced = open(path.replace("_steps.csv", "_kernel_steps.csv"), "w", buffering=1)
        self._traced.write("profile," + HEADER)
        self._drafts = None
        if self.num_spec_tokens:
            self._drafts = open(path.replace("_steps.csv", "_drafts.csv"), "w", buffering=1 << 16)
            self._drafts.write("t_schedule,request,context,drafted,accepted\n")

    def schedule(self, *args, **kwargs):
        enter = time.monotonic()
        out = super().schedule(*args, **kwargs)
        if out.total_num_scheduled_tokens:
            n_prefill = prefill_tokens = n_decode = decode_context = longest = 0
            prefill_attn = 0.0
            before = {r.req_id: r.num_computed_tokens for r in out.scheduled_new_reqs}
            cached = out.scheduled_cached_reqs
            before.update(zip(cached.req_ids, cached.num_computed_tokens))
            drafts = out.scheduled_spec_decode_tokens
            for req_id, q in out.num_scheduled_tokens.items():
                ctx = before.get(req_id, 0)
                request = self.requests.get(req_id)
                prompt = request.num_prompt_tokens if request is not None else 0
                if q == 1 + len(drafts.get(req_id, ())) and ctx >= prompt:
                    n_decode += 1
                    decode_context += ctx
                    longest = max(longest, ctx)
                else:
                    n_prefill += 1
                    prefill_tokens += q
                    prefill_attn += q * (ctx + (q + 1) / 2)
            preempted = getattr(out, "preempted_req_ids", None) or ()
            self._tracer.before(n_prefill, n_decode)
            name = self._tracer.job["name"] if self._tracer.on else ""
            self._open_steps[id(out)] = (
                name,
                enter,
                longest,
                {r: before.get(r, 0) for r in drafts},
                time.monotonic(),
                n_prefill,
                prefill_tokens,
                prefill_attn,
                n_decode,
                decode_context,
                len(self.running),
                len(self.waiting),
                len(preempted),
                self.kv_cache_manager.usage,
            )
        return out

    def update_from_output(self, scheduler_output, model_runner_output):
        now = time.monotonic()
        row = self._open_steps.pop(id(scheduler_output), None)
        if row is not None:
            name, enter, longest, contexts, t, *rest = row
            counts = self._count_drafts(t, contexts, scheduler_output, model_runner_output)
            host, gpu, gap = self._clock.pop()
            line = f"{t:.6f},{now:.6f}," + ",".join(
                f"{x:.4f}" if isinstance(x, float) else str(x) for x in rest
            )
            line += f",{enter:.6f},{longest},{host:.4f},{gpu:.4f},{gap:.4f},{counts}"
            line += f",{self._clock.sample_s * 1e3:.4f},{self._clock.allocs},{self._clock.reserved:.1f}\n"
            self._log.write(line)
            if name:
                self._traced.write(f"{name},{line}")
        result = super().update_from_output(scheduler_output, model_runner_output)
        if not self.running and not self.waiting:
            self._log.flush()
            if self._drafts:
                self._drafts.flush()
        return result

    def _count_drafts(self, t, contexts, scheduler_output, model_runner_output):
        """Log what became of each request's drafts; n_drafting,n_drafted,n_accepted of the step."""
        drafted = accepted = 0
        place, tokens = model_runner_output.req_id_to_index, model_runner_output.sampled_token_ids
        for req_id, ids in scheduler_output.scheduled_spec_decode_tokens.items():
            kept = max(0, len(tokens[place[req_id]]) - 1) if req_id in place else 0
            drafted, accepted = drafted + len(ids), accepted + kept
            self._drafts.write(f"{t:.6f},{req_id},{contexts[req_id]},{len(ids)},{kept}\n")
        return f"{len(contexts)},{drafted},{accepted}"


class StepLogScheduler(StepLog, AsyncScheduler):
    """The scheduler of an engine with two steps in flight."""


class SyncStepLogScheduler(StepLog, Scheduler):
    """The scheduler of an engine that waits for a step before it forms the next."""
