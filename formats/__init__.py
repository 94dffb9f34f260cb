"""What every file has in common: quantities with unit and source, checked reading, clear errors.

The three leaf packages (hardware, workloads, policies) and all above them share this base.
"""

from formats.catalog import Catalog
from formats.errors import InputError, RoofcastError, did_you_mean
from formats.files import atomic_write, check, parse_toml, read_table, read_text, read_toml
from formats.quantity import Kind, Quantity

__all__ = [
    "Catalog",
    "InputError",
    "Kind",
    "Quantity",
    "RoofcastError",
    "atomic_write",
    "check",
    "did_you_mean",
    "parse_toml",
    "read_table",
    "read_text",
    "read_toml",
]
