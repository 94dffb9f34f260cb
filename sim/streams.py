"""Named random streams: one seed, one independent generator per purpose.

A policy that draws more numbers cannot shift the arrivals: every purpose has a stream of its own,
so two scenarios with the same seed see the same requests.
"""

from zlib import crc32

import numpy as np

__all__ = ["stream", "stream_seed"]


def stream(seed: int, name: str) -> np.random.Generator:
    """Return the generator of one purpose.

    Parameters
    ----------
    seed : int
        The scenario's seed.
    name : str
        Purpose, such as "arrivals", "lengths" or "host/3".

    Examples
    --------
    >>> int(stream(1, "arrivals").integers(100)), int(stream(1, "arrivals").integers(100))
    (48, 48)
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(crc32(name.encode()),)))


def stream_seed(seed: int, name: str) -> int:
    """Return a 63-bit seed of one purpose, for the compiled loop's counter-based draws."""
    return int(stream(seed, name).integers(1 << 63))
