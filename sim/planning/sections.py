"""Base of the sections of a plan file, and types that several of them share."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

__all__ = ["Amount", "Positive", "Price", "Range", "Section", "Share"]


class Section(BaseModel):
    """A part of a plan file: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


def check_price(value: object) -> object:
    """Refuse a price of 0 or less, and say how to have the price of the table.

    Raises
    ------
    ValueError
        The price is 0 or below.
    """
    if isinstance(value, int | float) and value <= 0:
        raise ValueError(
            f"a price of {value:g} makes no plan; leave it out to use the cost table, or give "
            "what is paid"
        )
    return value


Share = Annotated[FiniteFloat, Field(ge=0, le=1)]
Positive = Annotated[FiniteFloat, Field(gt=0, le=1e12)]
Price = Annotated[FiniteFloat, Field(gt=0, le=1e12), BeforeValidator(check_price)]
# A number of one's own, or the name of an item of the cost table without its group.
Amount = Price | str
# P10 and P90 of a factor on the central value.
Range = tuple[
    Annotated[FiniteFloat, Field(gt=0, le=1)], Annotated[FiniteFloat, Field(ge=1, le=1000)]
]
