"""Shared helpers of the GPU measurement scripts: tables, time budget, CUDA-graph timing, NVML sampling, SM-clock probe."""

import csv
import functools
import os
import threading
import time

import torch

DEV = torch.device(os.environ.get("COLLECT_DEVICE", "cuda"))
BF16 = torch.bfloat16
FP8 = torch.float8_e4m3fn
L2_BYTES = torch.cuda.get_device_properties(0).L2_cache_size


class Budget:
    """Seconds left of a time budget that starts at construction."""

    def __init__(self, seconds):
        self.t0 = time.monotonic()
        self.seconds = seconds

    def left(self):
        return self.seconds - (time.monotonic() - self.t0)


class Table:
    """A CSV file written row by row, flushed often so that a killed run keeps its rows."""

    def __init__(self, folder, name, columns):
        self.f = open(f"{folder}/{name}.csv", "w", newline="")
        self.w = csv.writer(self.f)
        self.w.writerow(columns)
        self.n, self.name, self.t = 0, name, time.monotonic()

    def row(self, *values):
        self.w.writerow([f"{v:.4f}" if isinstance(v, float) else v for v in values])
        self.n += 1
        if self.n % 20 == 0:
            self.f.flush()

    def done(self):
        self.f.close()
        print(f"{self.name}: {self.n} rows in {time.monotonic() - self.t:.1f} s", flush=True)


def guard(fn):
    """Report an exception and go on with the next family."""

    @functools.wraps(fn)
    def run(*args, **kwargs):
        t = time.monotonic()
        try:
            fn(*args, **kwargs)
        except Exception as e:
            print(f"{fn.__name__} stopped: {type(e).__name__}: {str(e)[:400]}", flush=True)
        torch.cuda.empty_cache()
        print(f"-- {fn.__name__}: {time.monotonic() - t:.1f} s", flush=True)

    return run


def capture(calls):
    """One CUDA graph of zero-argument calls, replayed once."""
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        calls[0]()
        calls[-1]()
    torch.cuda.current_stream().wait_stream(s)
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for c in calls:
            c()
    g.replay()
    torch.cuda.synchronize()
    return g


def event():
    return torch.cuda.Event(enable_timing=True)


def replay_ms(g, n):
    """Milliseconds of n back-to-back replays."""
    a, b = event(), event()
    a.record()
    for _ in range(n):
        g.replay()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b)


def graph_us(calls, target_ms=8.0, repeats=3):
    """Median microseconds per call of the list, replayed as one CUDA graph."""
    g = capture(calls)
    once = max(replay_ms(g, 1), 1e-3)
    n = max(1, min(200, int(target_ms / once)))
    ts = sorted(replay_ms(g, n) / n / len(calls) * 1e3 for _ in range(repeats))
    return ts[len(ts) // 2]


def copies(bytes_each, most=24):
    """How many operand sets rotate so that together they exceed three times the L2."""
    return max(1, min(most, -(-3 * L2_BYTES // max(bytes_each, 1)), int(20e9 / bytes_each)))


class Nvml(threading.Thread):
    """Samples (t, watts, sm_mhz, temp_c, mem_temp_c, energy_mj, reasons) every few milliseconds; t is time.monotonic()."""

    COLUMNS = ["t_s", "watts", "sm_mhz", "temp_c", "mem_temp_c", "energy_mj", "reasons"]

    def __init__(self, period_s=0.004):
        super().__init__(daemon=True)
        import pynvml

        self.nv = pynvml
        self.nv.nvmlInit()
        self.h = self.nv.nvmlDeviceGetHandleByIndex(0)
        self.period = period_s
        self.rows = []
        self.stop = False

    def watts(self):
        try:
            return (
                self.nv.nvmlDeviceGetFieldValues(self.h, [186])[0].value.uiVal / 1e3
            )  # instant power, mW
        except Exception:
            return self.nv.nvmlDeviceGetPowerUsage(self.h) / 1e3

    def mem_temp(self):
        try:
            return self.nv.nvmlDeviceGetFieldValues(self.h, [82])[0].value.uiVal
        except Exception:
            return -1

    def reasons(self):
        for name in (
            "nvmlDeviceGetCurrentClocksEventReasons",
            "nvmlDeviceGetCurrentClocksThrottleReasons",
        ):
            try:
                return int(getattr(self.nv, name)(self.h))
            except Exception:
                continue
        return -1

    def run(self):
        nv, h = self.nv, self.h
        slow, i = (0, -1, -1), 0
        while not self.stop:
            try:
                if i % 10 == 0:
                    slow = (nv.nvmlDeviceGetTemperature(h, 0), self.mem_temp(), 0)
                i += 1
                self.rows.append(
                    (
                        time.monotonic(),
                        self.watts(),
                        nv.nvmlDeviceGetClockInfo(h, 1),
                        slow[0],
                        slow[1],
                        nv.nvmlDeviceGetTotalEnergyConsumption(h),
                        self.reasons(),
                    )
                )
            except Exception:
                pass
            time.sleep(self.period)

    def between(self, t0, t1):
        """Mean watts, mean SM MHz and last temperature of the samples in [t0, t1]."""
        rows = [r for r in self.rows[-4000:] if t0 <= r[0] <= t1] or self.rows[-1:]
        if not rows:
            return 0.0, 0.0, 0
        return sum(r[1] for r in rows) / len(rows), sum(r[2] for r in rows) / len(rows), rows[-1][3]


PROBE = r"""
extern "C" __global__ void probe(unsigned long long* buf, unsigned long long cap, unsigned long long ns) {
  unsigned long long t, t0, t1; long long c0, c1;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t0)); } while (t0 == t);
  c0 = clock64();
  do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t1)); } while (t1 - t0 < ns);
  c1 = clock64();
  unsigned long long i = buf[0] % cap; buf[0] += 1;
  buf[1 + 3 * i] = t0; buf[2 + 3 * i] = t1 - t0; buf[3 + 3 * i] = (unsigned long long)(c1 - c0);
}
"""


class Probe:
    """One thread that counts SM cycles over about 20 µs of the GPU's nanosecond timer; can sit inside a captured graph."""

    def __init__(self, cap=200_000, ns=20_000):
        self.cap, self.ns, self.kernel = cap, ns, None
        self.buf = torch.zeros(1 + 3 * cap, dtype=torch.int64, device=DEV)
        try:
            import cupy

            self.cupy = cupy
            self.kernel = cupy.RawKernel(PROBE, "probe")
            self()
            torch.cuda.synchronize()
            print("probe MHz", self.last(), flush=True)
        except Exception as e:
            print("no clock probe:", type(e).__name__, str(e)[:200], flush=True)
            self.kernel = None

    def __call__(self):
        if self.kernel is None:
            return
        s = self.cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with s:
            self.kernel(
                (1,),
                (1,),
                (self.buf.data_ptr(), self.cupy.uint64(self.cap), self.cupy.uint64(self.ns)),
            )

    def last(self):
        """SM MHz of the newest probe, 0 without one."""
        if self.kernel is None:
            return 0.0
        i = (int(self.buf[0]) - 1) % self.cap
        t, dt, dc = (int(v) for v in self.buf[1 + 3 * i : 4 + 3 * i])
        return dc / dt * 1e3 if dt else 0.0

    def count(self):
        return int(self.buf[0]) if self.kernel is not None else 0

    def mhz(self, start, n):
        """SM MHz of n probes from index start, a list."""
        if self.kernel is None or n <= 0:
            return []
        b = self.buf.cpu()
        out = []
        for j in range(start, start + n):
            i = j % self.cap
            dt, dc = int(b[2 + 3 * i]), int(b[3 + 3 * i])
            out.append(dc / dt * 1e3 if dt else 0.0)
        return out
