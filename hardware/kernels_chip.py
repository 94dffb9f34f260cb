"""The numbers of a chip and of a type of matrix product that kernel forms use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Chip", "Coefficients", "GemmType", "Shape"]

Array: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = Mapping[str, Array]
Coefficients: TypeAlias = Mapping[str, float]


@dataclass(frozen=True)
class Chip:
    """Numbers of one chip that the forms use.

    Parameters
    ----------
    units : int
        Places where a tile runs by itself (SMs, cores).
    memory : float
        Peak bandwidth of main memory [byte/s].
    l2_bytes : float
        Last shared cache [byte].
    host : float
        Peak bandwidth to host memory, per direction [byte/s].
    peaks : mapping
        Precision -> dense peak [FLOP/s].
    sram_bytes : float
        Memory of one unit [byte]; 0 = unknown, any tile fits.
    pads_rows : bool
        Matrix units work on whole tiles of rows; vector units only on those that are there.
    sum_bytes : float
        Of an output while it is summed up [byte].
    exponentials : float
        Exponentials of all units [1/s]; 0 = unknown, softmax never limits.
    """

    units: int
    memory: float
    l2_bytes: float
    host: float
    peaks: Mapping[str, float]
    sram_bytes: float = 0.0
    pads_rows: bool = True
    sum_bytes: float = 4.0
    exponentials: float = 0.0

    @property
    def on_chip_bytes(self) -> Array:
        """Larger of the shared cache and all units' own memory [byte]."""
        return np.asarray(np.maximum(self.l2_bytes, np.multiply(self.units, self.sram_bytes)))

    @property
    def attention_peak(self) -> float:
        """Dense peak that attention runs at: bf16, else fp16, else the least [FLOP/s]."""
        named = next((p for p in ("bf16", "fp16") if p in self.peaks), "")
        return self.peaks[named] if named else min(self.peaks.values())


@dataclass(frozen=True)
class GemmType:
    """A type of matrix product, as its kernel handles it.

    Parameters
    ----------
    precision : str
        Whose peak the multiplication runs at.
    weight, activation, output : float
        Bytes per element, scales and positions included.
    speedup : float
        Factor on that peak (2 for 2:4 sparsity).
    quanta : tuple of int
        Rows are padded to the first of these that holds them, and to whole last ones beyond.
    block : int
        A kernel that runs whole blocks of so many rows in one launch, and the rest in another.
    """

    precision: str
    weight: float
    activation: float
    output: float
    speedup: float = 1.0
    quanta: tuple[int, ...] = ()
    block: int = 0

    def peak(self, chip: Chip) -> float:
        """Return the rate at which it multiplies: packed weights at any 16-bit one [FLOP/s]."""
        if self.block and self.precision not in chip.peaks:
            return chip.attention_peak
        return chip.peaks[self.precision] * self.speedup

    def padded(self, m: Array) -> Array:
        """Return the rows that the kernel computes for m rows.

        Examples
        --------
        >>> kind = GemmType("fp8", 1, 1, 2, quanta=(16, 64, 128, 256))
        >>> kind.padded(np.array([3.0, 65.0, 256.0, 257.0])).tolist()
        [16.0, 128.0, 256.0, 512.0]
        """
        if not self.quanta:
            return m
        padded = self.quanta[-1] * np.ceil(m / self.quanta[-1])
        for quantum in reversed(self.quanta[:-1]):
            padded = np.where(m <= quantum, float(quantum), padded)
        return padded
