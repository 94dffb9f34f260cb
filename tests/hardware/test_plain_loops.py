"""Compiled loops give what the same lines give as plain Python."""

import numpy as np
import pytest

from hardware import kernels_queue
from workloads import prefix_cache

BLOCKS, UNITS = np.array([3.0, 1.5, 40.0, 7.2]), 6


@pytest.mark.parametrize("work", [0.5, 3.0, 100.0])
def test_an_item_goes_to_the_unit_that_falls_free_first(work):
    heap = np.array([1.0, 2.0, 4.0, 3.0, 9.0])
    plain, compiled = heap.copy(), heap.copy()
    kernels_queue._take.py_func(plain, work)
    kernels_queue._take(compiled, work)
    assert plain.tolist() == compiled.tolist()
    assert sorted(plain) == sorted([1.0 + work, 2.0, 4.0, 3.0, 9.0])


def test_splits_and_busy_time():
    found = []
    for finish, busy in (
        (kernels_queue._finish.py_func, kernels_queue._busy_time.py_func),
        (kernels_queue._finish, kernels_queue._busy_time),
    ):
        ends = np.zeros(UNITS)
        most = finish(ends, BLOCKS, np.array([2, 0, 3, 1]), 2, 8.0, 0.1, 0.3)
        found.append((most, sorted(ends), busy(ends.copy(), 4.0)))
    assert found[0] == found[1]
    assert found[0][0] == 5  # 40 blocks at most 8 at a time


def test_the_time_of_a_batch_is_its_work_over_all_units_at_least():
    orders = np.array([[0, 1, 2, 3], [3, 2, 1, 0]])
    values = (BLOCKS, orders, 8, UNITS, 0.0, 0.0, 2.0)
    plain, compiled = kernels_queue.batch_time.py_func(*values), kernels_queue.batch_time(*values)
    assert plain == compiled
    assert plain[0] >= 8 * BLOCKS.sum() / UNITS


def test_depths_of_an_lru_stack():
    blocks, offsets = np.array([0, 1, 0, 2, 1, 0]), np.array([0, 2, 4, 6])
    plain = prefix_cache._depths.py_func(blocks, offsets, 3)
    assert plain.tolist() == prefix_cache._depths(blocks, offsets, 3).tolist()
    never = np.iinfo(np.int64).max
    assert plain.tolist()[:2] == [never, never]
    assert plain[3] == never  # 2 was not used before
