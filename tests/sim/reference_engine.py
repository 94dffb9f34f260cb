"""The rules of vLLM V1 in plain Python, one step at a time: what the compiled loop must equal.

Written from the rules, not from the loop: requests are objects, the block pool is an ordered
dictionary, every block is handed out on its own, and nothing is fused. Only the time of a step is
taken from `sim.core.clock`.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np

from sim.core.clock import prefill_attention_s, run_step
from sim.core.jit import compiled
from sim.core.layout import STATE


@compiled
def step_time(tables, state, knobs, prompts, decodes, logits):
    tokens, attention, pairs, chunks = prompts
    sequences, context, squares = decodes
    return run_step(
        tables,
        state[0],
        knobs[0],
        tokens,
        attention,
        pairs,
        sequences,
        context,
        squares,
        logits,
        chunks,
    )


@dataclass
class Job:
    index: int
    arrival: float
    ready: float
    prompt: int
    output: int
    keys: list  # one per full block of prompt + output
    blocks: list = field(default_factory=list)
    computed: int = 0
    target: int = 0
    scheduled: int = 0
    emitted: int = 0
    cached: int = 0
    preemptions: int = 0
    recomputed: int = 0
    admitted: float = np.nan
    first: float = np.nan
    last: float = np.nan
    finish: float = np.nan


class Pool:
    """Blocks with reference counts; the free ones in an ordered dictionary, oldest first."""

    def __init__(self, blocks, caching):
        self.free = OrderedDict((b, None) for b in range(blocks))
        self.users = dict.fromkeys(range(blocks), 0)
        self.key_of, self.block_of, self.caching = {}, {}, caching

    def take(self):
        block, _ = self.free.popitem(last=False)
        if block in self.key_of:
            del self.block_of[self.key_of.pop(block)]
        self.users[block] = 1
        return block

    def hit(self, block):
        if self.users[block] == 0:
            del self.free[block]
        self.users[block] += 1

    def give(self, block):
        self.users[block] -= 1
        if self.users[block] == 0:
            self.free[block] = None

    def name(self, block, key):
        if self.caching and key not in self.block_of:
            self.block_of[key], self.key_of[block] = block, key


class Engine:
    """One replica; `run` serves all jobs."""

    def __init__(self, tables, knobs, jobs, seed=0):
        self.tables, self.knobs, self.k = tables, knobs, knobs[0]
        self.jobs = sorted(jobs, key=lambda j: (j.ready, j.index))
        self.inbox = deque(self.jobs)
        self.waiting, self.running, self.flight, self.emitting = [], [], [], []
        self.size = int(self.k["block_size"])
        self.pool = Pool(int(self.k["num_blocks"]), bool(self.k["caching"]))
        self.state = np.zeros(1, STATE)
        self.state["level"], self.state["seed"] = 1.0, seed
        warm = int(knobs["warm_rows"][0])
        self.state["loaded"] = sum(1 << i for i in range(62) if 8 * i < warm)
        heat = self.k["kelvin_per_w"] * self.k["idle_w"]
        self.state["temperature_c"] = self.k["ambient_c"] + heat
        self.state["window_w"] = self.k["idle_w"]
        self.output, self.busy, self.gaps, self.steps = 0.0, False, [], []
        self.coming, self.front, self.lag = deque(self.jobs), 0.0, 0.0

    @property
    def now(self):
        return float(self.state["now"][0])

    @now.setter
    def now(self, value):
        self.state["now"] = value

    def needs(self, job, tokens):
        return -(-(job.computed + tokens) // self.size) - len(job.blocks)

    def compute(self, job, tokens, batch):
        for _ in range(self.needs(job, tokens)):
            job.blocks.append(self.pool.take())
        full = job.computed // self.size
        job.computed += tokens
        for i in range(full, job.computed // self.size):
            self.pool.name(job.blocks[i], job.keys[i])
        batch.append((job, tokens))
        if job.computed >= job.target:
            job.scheduled += 1
            job.target = job.computed + 1
            self.emitting.append(job)

    def free(self, job):
        for block in reversed(job.blocks):
            self.pool.give(block)
        job.blocks = []

    def preempt(self, job):
        self.running.remove(job)
        self.free(job)
        job.recomputed += job.computed
        job.computed, job.target = 0, job.prompt + job.scheduled
        job.preemptions += 1
        self.waiting.append(job)

    def chunk(self, need, budget):
        limit = int(self.k["long_prefill_token_threshold"])
        return min(need, budget, limit if limit and need > 1 else need)

    def schedule(self):
        batch, self.emitting, preempted = [], [], 0
        budget, place = int(self.k["max_num_batched_tokens"]), 0
        while place < len(self.running) and budget > 0:
            job = self.running[place]
            place += 1
            if job.scheduled >= job.output:
                continue
            tokens = self.chunk(job.target - job.computed, budget)
            while self.needs(job, tokens) > len(self.pool.free):
                later = [j for j in self.running[place - 1 :] if j.scheduled < j.output]
                self.preempt(later[-1])
                preempted += 1
                if later[-1] is job:
                    break
            if job not in self.running:
                break
            self.compute(job, tokens, batch)
            budget -= tokens
        if not preempted:
            self.admit(batch, budget)
        return batch

    def hits(self, job):
        found = []
        for key in job.keys[: (job.target - 1) // self.size]:
            if key not in self.pool.block_of:
                break
            found.append(self.pool.block_of[key])
        return found

    def margin(self):
        return int(self.k["watermark_blocks"]) if self.running else 0

    def admit(self, batch, budget):
        partial = 0
        while budget > 0 and self.waiting and len(self.running) < self.k["max_num_seqs"]:
            job = min(self.waiting, key=lambda j: (j.arrival, j.index))
            hits = self.hits(job)
            idle = sum(self.pool.users[b] == 0 for b in hits)
            spare = len(self.pool.free) - idle - self.margin()
            if -(-job.target // self.size) - len(hits) > spare:
                return
            need = job.target - len(hits) * self.size
            tokens = self.chunk(need, budget)
            if tokens < need and partial >= self.k["max_num_partial_prefills"]:
                return
            partial += tokens < need
            self.waiting.remove(job)
            for block in hits:
                self.pool.hit(block)
            job.blocks, job.computed = hits, len(hits) * self.size
            if job.preemptions == 0:
                job.cached, job.admitted = job.computed, self.now
            self.running.append(job)
            self.compute(job, tokens, batch)
            budget -= tokens

    def deliver(self, seen):
        before, work = self.lag, self.k["front_token_s"] * len(self.flight)
        if work or self.k["front_token_s"]:
            self.front = max(self.front, seen) + work
            self.lag = self.front - seen
        delay = self.k["client_s"] + self.k["client_per_request_s"] * len(self.running) + self.lag
        for job in self.flight:
            if job.emitted == 0:
                job.first = seen + delay
            else:
                self.gaps.append(seen - job.last + (self.lag - before))
            job.emitted, job.last = job.emitted + 1, seen
            if job.emitted == job.output:
                job.finish = seen + delay
                self.free(job)
        self.running = [j for j in self.running if np.isnan(j.finish)]
        self.output = seen
        per_request = self.k["bookkeeping_per_request_s"] * len(self.running)
        self.now = seen + self.k["bookkeeping_s"] + per_request

    def step(self, batch):
        start, chunks, decodes = self.now, [], []
        for job, tokens in batch:
            past = job.computed - tokens
            decoding = tokens == 1 and past >= job.prompt
            (decodes if decoding else chunks).append((tokens, past))
        prefill = sum(t for t, _ in chunks)
        parts = [prefill_attention_s(self.tables, t, p) for t, p in chunks]
        attention = sum(each for each, _ in parts) + max((once for _, once in parts), default=0)
        pairs = sum(t * (p + 0.5 * (t + 1)) for t, p in chunks)
        context, squares = sum(p for _, p in decodes), sum(float(p) ** 2 for _, p in decodes)
        self.state["in_flight"] = self.busy
        seen = step_time(
            self.tables,
            self.state,
            self.knobs,
            (prefill, float(attention), float(pairs), len(chunks)),
            (len(decodes), context, squares),
            len(self.emitting),
        )
        self.steps.append((start, len(chunks), prefill, len(decodes), context, len(self.running)))
        if self.busy:
            self.deliver(seen)
        else:
            self.now = start + float(self.state["step_host_s"][0])
        self.flight, self.busy = self.emitting, True

    def take_in(self):
        while self.k["front_request_s"] and self.coming and self.coming[0].ready <= self.now:
            job = self.coming.popleft()
            work = self.k["front_request_s"] + self.k["front_prompt_s"] * job.prompt
            job.ready = self.front = max(self.front, job.ready) + work

    def run(self):
        while True:
            self.take_in()
            while self.inbox and self.inbox[0].ready <= self.now:
                self.waiting.append(self.inbox.popleft())
            batch = self.schedule()
            if batch:
                self.step(batch)
            elif self.busy:
                self.deliver(float(self.state["gpu_end"][0] + self.k["visible_s"]))
                self.flight, self.busy = [], False
            elif self.inbox:
                self.now = max(self.now, self.inbox[0].ready + self.k["gather_s"])
            else:
                return self


def block_keys(table, size):
    """Return per request the name of each full block: equal names mean equal leading tokens."""
    keys, last = [], {}
    for i, row in enumerate(table.to_dict("records")):
        own = [(i, b) for b in range((row["prompt_tokens"] + row["output_tokens"]) // size + 1)]
        session = row.get("session", "")
        if session and session in last:
            shared = row["prefix_tokens"] // size
            own[:shared] = keys[last[session]][:shared]
        last[session] = i
        if "hash_ids" in row:
            for b in range(len(row["hash_ids"]) * 512 // size):
                if (b + 1) * size <= row["prompt_tokens"]:
                    own[b] = ("hash", int(row["hash_ids"][b * size // 512]), b * size % 512)
        keys.append(own)
    return keys


def reference(table, knobs, tables, seed=0):
    """Serve a requests table and return the engine."""
    k = knobs[0]
    keys = block_keys(table, int(k["block_size"]))
    jobs = []
    for i, row in enumerate(table.to_dict("records")):
        ready = row["arrival_s"] + (k["ingest_s"] + k["ingest_per_token_s"] * row["prompt_tokens"])
        prompt, output = row["prompt_tokens"], row["output_tokens"]
        jobs.append(Job(i, row["arrival_s"], ready, prompt, output, keys[i], target=prompt))
    return Engine(tables, knobs, jobs, seed).run()
