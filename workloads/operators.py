"""Models as plain lists of operators: convolutional networks, recommenders and the like."""

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt

from formats import Catalog
from workloads.models import ModelSpec, Part, PrecisionName
from workloads.precision import precision

__all__ = ["Operator", "OperatorModel", "as_model", "load_operators", "operator_models"]

DATA = Path(__file__).parent / "data" / "operators"
Array = npt.NDArray[np.float64]


class Operator(Part):
    """One operator of a model, as a matrix product where it is one.

    A convolution is the product of (rows = output pixels, k = input channels of a group x kernel
    area) with (k, n = output channels of a group), for each group; a depth-wise one has as many
    groups as channels. An operator without a product has n = k = 0 and counts by its traffic.

    Examples
    --------
    >>> conv1 = Operator(name="conv1", rows=112 * 112, n=64, k=147, inputs=150528, outputs=802816)
    >>> conv1.flops / 1e6
    236.027904
    """

    name: str = Field(min_length=1, description="name in the model")
    count: PositiveInt = Field(default=1, description="equal operators in one pass")
    rows: int = Field(default=0, ge=0, description="rows of the product per sample")
    n: int = Field(default=0, ge=0, description="columns of the output, per group [element]")
    k: int = Field(default=0, ge=0, description="length of the sum, per group [element]")
    groups: PositiveInt = Field(default=1, description="independent products")
    stored: bool = Field(default=True, description="the second operand is weights")
    inputs: int = Field(default=0, ge=0, description="elements read per sample [element]")
    outputs: int = Field(default=0, ge=0, description="elements written per sample [element]")
    other_weights: int = Field(default=0, ge=0, description="norms, biases, tables [parameter]")
    read_weights: int | None = Field(
        default=None, ge=0, description="weights read per sample, where not all (tables)"
    )
    precision: PrecisionName | None = Field(default=None, description="format; left out = model's")

    @property
    def flops(self) -> float:
        """FLOPs of one sample in one of the `count` operators [FLOP]."""
        return 2.0 * self.rows * self.n * self.k * self.groups

    @property
    def parameters(self) -> int:
        """Weights of one of the `count` operators [parameter]."""
        return self.n * self.k * self.groups * self.stored + self.other_weights

    def bytes(self, batch: npt.ArrayLike, element: float) -> Array:
        """Return bytes moved for a batch: weights once, inputs and outputs per sample [byte].

        Parameters
        ----------
        batch : array_like
            Samples, any shape.
        element : float
            Bytes of an element.
        """
        samples = np.asarray(batch, dtype=np.float64)
        weights = np.minimum(
            self.parameters,
            self.parameters if self.read_weights is None else samples * self.read_weights,
        )
        return np.asarray((weights + samples * (self.inputs + self.outputs)) * element)


class OperatorModel(Part):
    """A model that is the sum of its operators.

    Examples
    --------
    >>> m = load_operators("resnet-50")
    >>> m.parameters, round(m.flops / 1e9, 2)
    (25557032, 8.18)
    """

    schema_version: Literal[1] = 1
    name: str = Field(min_length=1, description="name as published")
    publisher: str = Field(min_length=1, description="who published it")
    source: str = Field(min_length=3, description="where the shapes come from")
    note: str = Field(default="", description="doubts, and parts that are not counted")
    sample: str = Field(min_length=1, description="what one sample is, such as a 224 x 224 image")
    dtype: PrecisionName = Field(default="fp16", description="format of weights and activations")
    operators: tuple[Operator, ...] = Field(min_length=1, description="in order of execution")
    published_params: int | None = Field(default=None, gt=0, description="total, as published")
    published_flops: float | None = Field(
        default=None, gt=0, description="per sample, two for a multiply-add [FLOP]"
    )
    published_source: str = Field(default="", description="where the published counts stand")

    @property
    def flops(self) -> float:
        """FLOPs of one sample [FLOP]."""
        return sum(op.count * op.flops for op in self.operators)

    @property
    def parameters(self) -> int:
        """Weights of all operators [parameter]."""
        return sum(op.count * op.parameters for op in self.operators)

    def bytes(self, batch: npt.ArrayLike) -> Array:
        """Return bytes that a batch moves with nothing kept on chip between operators [byte].

        Parameters
        ----------
        batch : array_like
            Samples, any shape.

        Returns
        -------
        ndarray
            Bytes, in the shape of `batch`.
        """
        total = np.zeros(np.shape(batch))
        for op in self.operators:
            element = precision(op.precision or self.dtype).bytes
            total = total + op.count * op.bytes(batch, element)
        return np.asarray(total)


operator_models: Catalog[OperatorModel] = Catalog("operator model", OperatorModel, [DATA])


def load_operators(name: str) -> OperatorModel:
    """Return an operator model by catalog name or TOML file.

    Raises
    ------
    InputError
        No such model, or its file is bad.
    """
    return operator_models.load(name)


MOST_SAMPLES = 1 << 20  # of a request


def as_model(name: str) -> ModelSpec:
    """Return what stands for an operator list where a model is asked for: its size and formats.

    Its counts are those of the list (`OperatorModel`); as an encoder it answers in one pass. The
    width of its block is a third of the widest operator, so that activations take the memory of it.

    Examples
    --------
    >>> from workloads.parameters import parameters
    >>> resnet = as_model("resnet-50")
    >>> resnet.kind, parameters(resnet).total == load_operators("resnet-50").parameters
    ('encoder', True)
    """
    found = load_operators(name)
    width = -(-max(op.inputs + op.outputs for op in found.operators) // 3)
    own = 4 + 2 * width  # of one block of width 1
    return ModelSpec(
        name=found.name,
        publisher=found.publisher,
        source=found.source,
        note=f"{found.note} Prompt tokens of a request count samples: {found.sample}.".strip(),
        kind="encoder",
        hidden=1,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        intermediate=width,
        vocab=0,
        max_positions=MOST_SAMPLES,
        lm_head=False,
        gated=False,
        norms_per_layer=0,
        final_norm=False,
        rotary=False,
        extra_parameters=max(found.parameters - own, 0),
        operators=name,
        dtype=found.dtype,
        weights=found.dtype,
        activations=found.dtype,
        kv=found.dtype,
        published_params=found.published_params,
        published_source=found.published_source,
    )
