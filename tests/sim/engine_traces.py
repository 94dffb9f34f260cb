"""Short ways to write and read a traced case."""

import pandas as pd

from sim.core.layout import Status


def requests(*rows, **columns):
    """Return a table of (arrival, prompt, output)."""
    table = pd.DataFrame(rows, columns=["arrival_s", "prompt_tokens", "output_tokens"])
    return table.assign(**columns)


def columns(replica, *names):
    """Return fields of the requests: a list, or a list of tuples for several."""
    found = [replica.records.requests[name].tolist() for name in names]
    return found[0] if len(found) == 1 else list(zip(*found, strict=True))


def single_steps(replica, *names):
    """Return fields of the step log as a list of tuples."""
    return list(zip(*(replica.steps()[name].tolist() for name in names), strict=True))


def statuses(replica):
    """Return what became of the requests, in words."""
    return [Status.NAMES[s] for s in columns(replica, "status")]
