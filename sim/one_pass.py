"""Networks that answer in one pass, in the same engine: encoders, and plain lists of operators.

A request of an encoder is a text whose vector or label is its only output. A request of an operator
list (a convolutional network, a recommender) is a number of samples: its prompt tokens count them.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from formats import InputError
from hardware.kernels import KernelModel
from hardware.kernels_forms import GEMM_TYPES
from sim.core.layout import SPREADS, StepTables
from sim.steptime import Batching, decode_contexts, prompt_grid
from workloads.models import ModelSpec
from workloads.operators import Operator, OperatorModel, load_operators
from workloads.precision import kernel_dtype, precision

__all__ = ["OperatorSteps", "one_pass_knobs", "operator_steps"]

Array = npt.NDArray[np.float64]
NARROW = 64  # columns or depth below which matrix units have nothing to multiply


def one_pass_knobs(knobs: npt.NDArray[np.void], longest: int) -> None:
    """Set the parameters of the loop for a model without decoding: no cache, whole prompts.

    Parameters
    ----------
    knobs : ndarray of KNOBS, shape (1,)
        Changed in place.
    longest : int
        Tokens of the longest request, its one output included.

    Raises
    ------
    InputError
        The longest prompt does not fit one step.
    """
    most = int(knobs["max_num_batched_tokens"][0])
    if longest - 1 > most:
        raise InputError(
            f"a prompt of {longest - 1} tokens does not fit one step, and an encoder sees it whole",
            "[policies.batching] max_num_batched_tokens",
            f"{longest - 1} or more",
        )
    block, seqs = int(knobs["block_size"][0]), int(knobs["max_num_seqs"][0])
    knobs["num_blocks"] = (seqs + 1) * (longest // block + 2)
    knobs["caching"] = knobs["chunked"] = knobs["watermark_blocks"] = 0
    knobs["output_limit"] = 1


@dataclass(frozen=True)
class OperatorSteps:
    """Times of an operator list on one accelerator.

    Parameters
    ----------
    kernels : KernelModel
        Kernel times.
    operators : OperatorModel
        What is run.
    model : ModelSpec
        What stands for it, in the formats that are served.
    """

    kernels: KernelModel
    operators: OperatorModel
    model: ModelSpec

    @property
    def word(self) -> str:
        """Matrix type of its products."""
        return kernel_dtype(self.model.weights, self.model.activations)

    def operator_s(self, op: Operator, samples: Array) -> Array:
        """Return seconds of all equal operators for a batch.

        A product reads its inputs once, however its windows overlap; one with very few columns or
        a short sum (depth-wise) runs on vector units; all else takes what memory moves.
        """
        element = precision(self.model.activations).bytes
        moved = op.bytes(samples, element)
        if op.flops == 0 or min(op.n * op.groups, op.k) == 0:
            return np.asarray(op.count * self.kernels.copy(moved, "hbm"))
        if op.stored and (op.groups > 1 or max(op.n, op.k) < NARROW):
            compute = op.flops * samples / self._vector_flops_per_s()
            return np.asarray(op.count * np.maximum(self.kernels.copy(moved, "hbm"), compute))
        rows = samples * op.rows * (1 if op.stored else op.groups)
        share = op.inputs / (op.rows * op.k * (1 if op.stored else op.groups))
        own = GEMM_TYPES[self.word].activation * share
        sizes = {"activation_bytes": own, "output_bytes": element}
        return np.asarray(op.count * self.kernels.gemm(rows, op.n, op.k, self.word, **sizes))

    def _vector_flops_per_s(self) -> float:
        peaks = self.kernels.chip.peaks
        return float(peaks.get("fp32", min(peaks.values())))

    def step_s(self, samples: Array) -> Array:
        """Return seconds of one pass over a batch of samples."""
        total = np.zeros(np.shape(samples))
        for op in self.operators.operators:
            total = total + self.operator_s(op, samples)
        return total

    def _weight_bytes(self, samples: Array) -> Array:
        element = precision(self.model.weights).bytes
        total = np.zeros(samples.size)
        for op in self.operators.operators:
            moved = op.bytes(samples, element)
            total += op.count * (moved - samples * (op.inputs + op.outputs) * element)
        return total

    def tables(self, limits: Batching) -> StepTables:
        """Tabulate a pass by its samples, as the loop takes it."""
        samples = np.arange(1.0, limits.max_tokens + 1.0)
        seconds = self.step_s(samples)
        rate = samples / seconds
        contexts, (chunks, pasts) = decode_contexts(limits), prompt_grid(limits)
        weights = self._weight_bytes(samples)
        tables = {"linear_s": seconds, "linear_bytes": weights, "compute_share": rate / rate.max()}
        return StepTables(
            head_s=np.zeros(limits.max_seqs + 1),
            decode_s=np.zeros((limits.max_seqs + 1, contexts.size)),
            prefill_s=np.zeros((chunks.size, pasts.size)),
            prefill_call_s=np.zeros((chunks.size, pasts.size)),
            uneven=np.zeros((limits.max_seqs + 1, contexts.size, SPREADS)),
            bounds=np.array([0.0, 8.0, 0.0, 8.0, 0.0, 4.0]),
            counts=np.array([self.operators.flops, 0.0, 0.0, 0.0]),
            **{name: np.concatenate([[0.0], values]) for name, values in tables.items()},
        )


def operator_steps(kernels: KernelModel, model: ModelSpec) -> OperatorSteps | None:
    """Return the steps of a model that stands for an operator list, None for any other.

    Examples
    --------
    >>> from hardware.catalog import load_accelerator
    >>> from hardware.kernels import load_kernels
    >>> from workloads.models import load_model
    >>> resnet = operator_steps(load_kernels(load_accelerator("h200-sxm")), load_model("resnet-50"))
    >>> one, many = resnet.step_s(np.array([1.0, 256.0]))
    >>> bool(one < many < 256 * one)
    True
    """
    if not model.operators:
        return None
    return OperatorSteps(kernels, load_operators(model.operators), model)
