"""Base of the sections of a plan file, and types that several of them share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

__all__ = ["Amount", "Range", "Section", "Share"]


class Section(BaseModel):
    """A part of a plan file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Positive = Annotated[FiniteFloat, Field(gt=0, le=1e12)]
# A number of one's own, or the name of an item of the cost table without its group.
Amount = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)] | str
# P10 and P90 of a factor on the central value.
Range = tuple[
    Annotated[FiniteFloat, Field(gt=0, le=1)], Annotated[FiniteFloat, Field(ge=1, le=1000)]
]
