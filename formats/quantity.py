"""A number that says its unit, its source and what kind of number it is."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

__all__ = ["Kind", "Quantity"]

Kind = Literal["datasheet", "measured", "fitted", "assumption"]


class Quantity(BaseModel):
    """One number of a data file.

    Examples
    --------
    >>> q = Quantity(value=4.8e12, unit="byte/s", kind="datasheet", source="vendor datasheet")
    >>> f"{q.value / 1e12} TB/s"
    '4.8 TB/s'
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: FiniteFloat = Field(ge=0, description="the number, in base SI units")
    unit: str = Field(min_length=1, description="unit of value, such as byte/s")
    kind: Kind = Field(description="datasheet (dense peak), measured, fitted or assumption")
    source: str = Field(min_length=3, description="where the number comes from")
    note: str = Field(default="", description="rule of an assumption, or a known conflict")
