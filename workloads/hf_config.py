"""Checked access to a Hugging Face config.json: every bad or missing key is named."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from formats import InputError, did_you_mean, read_text

__all__ = ["HFConfig", "read_json"]

# Keys of these forms shape the network: one that no reader asks for must not pass unnoticed.
SHAPING = re.compile(
    r"^(num|n)_|_(size|dim|dims|rank|experts|layers|heads|freq|step|pattern)$"
    r"|^(mamba|ssm|linear|conv|index|recurrent|rnn|lru|cross_attention)_"
)
HARMLESS = {
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "embed_dim",
    "ep_size",
    "expert_layer_offset",
    "image_size",
    "max_window_layers",
    "mlp_only_layers",
    "moe_layer_freq",
    "n_ctx",
    "n_group",
    "n_positions",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_ln_in_parallel_attn",
    "num_nextn_predict_layers",
    "num_return_sequences",
    "query_pre_attn_scalar",
    "rotary_dim",
    "sliding_window_size",
}


class HFConfig:
    """A config.json (or a table in it) that remembers which keys were asked for.

    Parameters
    ----------
    data : dict
        Parsed JSON object.
    where : str
        File (and table) for messages.

    Examples
    --------
    >>> c = HFConfig({"n_embd": 768, "n_layer": True}, "config.json")
    >>> c.integer("hidden_size", "n_embd")
    768
    >>> c.integer("n_layer")
    Traceback (most recent call last):
    formats.errors.InputError: config.json: n_layer = True is not a whole number \
(allowed: whole numbers from 1); correct it
    """

    def __init__(self, data: dict[str, Any], where: str) -> None:
        self.data, self.where = data, where
        self.used: set[str] = set()

    def get(self, *names: str) -> tuple[str, Any]:
        """Return the first of `names` that has a value, as (name, value), else (first, None)."""
        self.used.update(names)
        for name in names:
            if self.data.get(name) is not None:
                return name, self.data[name]
        return names[0], None

    def integer(self, *names: str, default: int | None = None, low: int = 1) -> int:
        """Return a whole number of at least `low`.

        Raises
        ------
        InputError
            Missing without a default, not a whole number, or below `low`.
        """
        name, value = self.get(*names)
        if value is None:
            if default is None:
                raise self.missing(names)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise self.wrong(name, value, "a whole number", f"whole numbers from {low}")
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """Return a true or false value."""
        name, value = self.get(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false", "true, false")
        return value

    def text(self, *names: str, default: str | None = None) -> str:
        """Return a string."""
        name, value = self.get(*names)
        if value is None:
            if default is None:
                raise self.missing(names)
            return default
        if not isinstance(value, str):
            raise self.wrong(name, value, "a string", "a string")
        return value

    def listed(self, name: str, kind: type) -> list[Any] | None:
        """Return a list whose entries are all of one type, or None when absent."""
        _, value = self.get(name)
        if value is None:
            return None
        plain = isinstance(value, list) and all(type(x) is kind for x in value)
        if not plain:
            raise self.wrong(
                name, value, f"a list of {kind.__name__}", f"a list of {kind.__name__}"
            )
        return list(value)

    def table(self, name: str) -> "HFConfig | None":
        """Return a nested object, or None when absent."""
        _, value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object", "an object")
        return HFConfig(value, f"{self.where}, {name}")

    def missing(self, names: Sequence[str]) -> InputError:
        """Return the error for an absent key."""
        other = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        hint = did_you_mean(names[0], self.data)
        return InputError(f"{names[0]}{other} is missing", self.where, repair=f"add it, {hint}")

    def wrong(self, name: str, value: object, what: str, allowed: str) -> InputError:
        """Return the error for a bad value."""
        shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
        return InputError(f"{name} = {shown} is not {what}", self.where, allowed, "correct it")

    def refuse_unknown(self) -> None:
        """Raise InputError for a key that shapes the network and that nobody asked for."""
        for name, value in self.data.items():
            dull = value is None or value is False or name in HARMLESS or name in self.used
            if not dull and SHAPING.search(name) and not name.startswith("pooler_"):
                hint = did_you_mean(name, self.used)
                what = f"{name} is a key that this architecture is not known to have"
                raise InputError(what, self.where, repair=hint)


def read_json(path: Path) -> HFConfig:
    """Read a JSON object from a file.

    Raises
    ------
    InputError
        The file cannot be read, is not JSON, or is not an object.
    """
    text = read_text(path)
    try:
        data = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as e:
        raise InputError(f"is not valid JSON: {e}", str(path), repair="fetch it again") from None
    if not isinstance(data, dict):
        raise InputError("is not a JSON object", str(path), repair="name a config.json")
    return HFConfig(data, str(path))
