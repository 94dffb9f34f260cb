"""Clock, power and temperature against time: steps from idle, square waves, a long load and its cooling.

  python dynamics.py OUTDIR [BUDGET_S] [LONG_S] [COOL_S]

Writes units.csv (experiment, unit, t_s, us, probe_mhz: one row per unit of work, about 5 ms, t at its end),
       phases.csv (experiment, phase, t0_s, t1_s) and nvml.csv (every ~5 ms). All times are seconds since the script's start.
"""

import sys
import time

import torch

from gpu_tools import BF16, DEV, FP8, Budget, Nvml, Probe, Table, capture, event, guard

OUT = sys.argv[1]
budget = Budget(float(sys.argv[2]) if len(sys.argv) > 2 else 200.0)
LONG = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
COOL = float(sys.argv[4]) if len(sys.argv) > 4 else 40.0
LAYER = (
    (6144, 4096),
    (4096, 4096),
    (28672, 4096),
    (4096, 14336),
)  # (n, k) of a Llama-3.1-8B decoder layer


class Unit:
    """A captured piece of work of a few milliseconds ending in a clock probe."""

    def __init__(self, name, calls, probe, flops, nbytes):
        self.name, self.flops, self.nbytes = name, flops, nbytes
        self.calls = calls  # keeps the captured operands alive
        self.graph = capture([*calls, probe])


def gemm_unit(name, m, n, k, times, probe, dtype=BF16):
    xs = torch.randn(m, k, device=DEV, dtype=BF16)
    ws = [torch.randn(n, k, device=DEV, dtype=BF16) for _ in range(2)]
    if dtype == FP8:
        x8, w8 = xs.to(FP8), [w.to(FP8) for w in ws]
        one = torch.ones((), device=DEV)
        calls = [
            lambda i=i: torch._scaled_mm(
                x8, w8[i % 2].t(), scale_a=one, scale_b=one, out_dtype=BF16
            )
            for i in range(times)
        ]
    else:
        o = torch.empty(m, n, device=DEV, dtype=BF16)
        calls = [lambda i=i: torch.mm(xs, ws[i % 2].t(), out=o) for i in range(times)]
    el = 1 if dtype == FP8 else 2
    return Unit(
        name, calls, probe, 2.0 * m * n * k * times, times * (el * (n * k + m * k) + 2 * m * n)
    )


def layer_unit(name, m, layers, probe):
    """GEMMs of decoder layers at m tokens with a SiLU-and-multiply between, other weights in every layer."""
    ws = [
        [torch.randn(n, k, device=DEV, dtype=BF16) * 0.02 for n, k in LAYER] for _ in range(layers)
    ]
    x = torch.randn(m, 4096, device=DEV, dtype=BF16)

    def one(w):
        qkv = torch.mm(x, w[0].t())
        h = torch.mm(qkv[:, :4096], w[1].t())
        g = torch.mm(h, w[2].t())
        a = torch.nn.functional.silu(g[:, :14336]) * g[:, 14336:]
        return torch.mm(a, w[3].t())

    size = sum(n * k for n, k in LAYER)
    return Unit(
        name,
        [lambda w=w: one(w) for w in ws],
        probe,
        2.0 * m * size * layers,
        2.0 * layers * (size + m * sum(n + k for n, k in LAYER)),
    )


class Recorder:
    """Plays phases and keeps one row per unit on the host's clock."""

    def __init__(self, probe):
        self.probe = probe
        self.units = Table(OUT, "units", ["experiment", "unit", "t_s", "us", "probe_mhz"])
        self.phases = Table(OUT, "phases", ["experiment", "phase", "t0_s", "t1_s"])
        torch.cuda.synchronize()
        self.t0 = budget.t0
        self.pending = []
        self.rebase()

    def rebase(self):
        torch.cuda.synchronize()
        self.base = event()
        self.base.record()
        torch.cuda.synchronize()
        self.base_t = time.monotonic() - self.t0

    def now(self):
        return time.monotonic() - self.t0

    def idle(self, experiment, seconds):
        t = self.now()
        time.sleep(max(0.0, seconds))
        self.phases.row(experiment, "idle", t, self.now())

    def load(self, experiment, unit_list, seconds):
        """Replay the units in turn for the given time, at most three in flight."""
        t = self.now()
        i, mine = 0, []
        while self.now() - t < seconds:
            u = unit_list[i % len(unit_list)]
            a, b = event(), event()
            a.record()
            u.graph.replay()
            b.record()
            mine.append((experiment, u.name, a, b))
            if len(mine) > 3:
                mine[-3][3].synchronize()
            i += 1
        torch.cuda.synchronize()
        self.phases.row(experiment, "+".join(u.name for u in unit_list), t, self.now())
        self.pending += mine

    def flush(self):
        """Turn the kept events into rows; probes were counted in the same order as the units."""
        torch.cuda.synchronize()
        n = len(self.pending)
        mhz = self.probe.mhz(self.probe.count() - n, n) or [0.0] * n
        for (experiment, name, a, b), f in zip(self.pending, mhz):
            self.units.row(
                experiment,
                name,
                self.base_t + self.base.elapsed_time(b) / 1e3,
                a.elapsed_time(b) * 1e3,
                f,
            )
        self.pending = []
        self.rebase()


@guard
def steps(rec, units):
    for u in units:
        if budget.left() < 10:
            return
        rec.idle(f"step_{u.name}", 1.2)
        rec.load(f"step_{u.name}", [u], 2.5)
        rec.idle(f"step_{u.name}", 0.8)
        rec.flush()


@guard
def square_waves(rec, unit):
    for on, off in (
        (0.01, 0.01),
        (0.01, 0.03),
        (0.025, 0.025),
        (0.05, 0.05),
        (0.1, 0.1),
        (0.25, 0.25),
        (0.5, 0.5),
        (0.1, 0.3),
        (0.3, 0.1),
        (0.02, 0.005),
    ):
        if budget.left() < 6:
            return
        name = f"square_{on * 1e3:g}on_{off * 1e3:g}off"
        end = rec.now() + max(1.2, 3.2 * (on + off))
        while rec.now() < end:
            rec.load(name, [unit], on)
            rec.idle(name, off)
        rec.flush()
        rec.idle(name + "_rest", 0.5)


@guard
def mixes(rec, heavy, light):
    """Heavy (compute) units among light (memory) ones, as prefill chunks among decode steps."""
    for k in (1, 2, 4, 8, 16):
        if budget.left() < 6:
            return
        rec.load(f"mix_1_{k}", [heavy] + [light] * k, 1.5)
        rec.idle(f"mix_1_{k}", 0.4)
        rec.flush()


@guard
def long_load(rec, unit):
    rec.idle("thermal", 2.0)
    rec.load("thermal", [unit], LONG)
    rec.idle("thermal", COOL)
    rec.flush()


def main():
    import os

    os.makedirs(OUT, exist_ok=True)
    probe = Probe()
    nvml = Nvml()
    nvml.start()
    heavy = layer_unit("prefill_m2048", 2048, 4, probe)
    light = layer_unit("decode_m64", 64, 32, probe)
    compute = gemm_unit("gemm8192_bf16", 8192, 8192, 8192, 3, probe)
    fp8 = gemm_unit("gemm8192_fp8", 8192, 8192, 8192, 5, probe, FP8)
    middle = layer_unit("prefill_m256", 256, 16, probe)
    rec = Recorder(probe)
    t = Table(OUT, "unit_work", ["unit", "flops", "bytes"])
    for u in (heavy, light, compute, fp8, middle):
        t.row(u.name, u.flops, u.nbytes)
    t.done()
    rec.idle("start", 1.0)
    steps(rec, [heavy, compute, fp8, light, middle])
    square_waves(rec, heavy)
    mixes(rec, heavy, light)
    long_load(rec, compute)
    rec.units.done()
    rec.phases.done()
    nvml.stop = True
    nvml.join(2)
    t = Table(OUT, "nvml", Nvml.COLUMNS)
    for r in nvml.rows:
        t.row(r[0] - budget.t0, *r[1:])
    t.done()


main()
