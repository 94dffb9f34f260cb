"""Speculative decoding as engines name it.

vLLM 0.24: `--speculative-config` (fields of its SpeculativeConfig). SGLang 0.5: the options
`--speculative-*`. TensorRT-LLM 1.2: `speculative_config` of the LLM API, one class per way.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from policies.speculation import SpeculationRules
from sim.tuning.writer import Writer

__all__ = ["Drafts", "sglang_drafts", "trtllm_drafts", "unknown_drafts", "vllm_drafts"]

NGRAM_MAX, NGRAM_MIN = 4, 2  # words looked up, as in the measured runs with prompt lookup
HEAD = "DRAFT_HEAD"
MEASURE = "acceptance is an input of the simulation: compare it with what the engine reports"


@dataclass(frozen=True)
class Drafts:
    """How a scenario speculates.

    Attributes
    ----------
    name : str
        The policy.
    rules : SpeculationRules
        What it does.
    model : str
        Checkpoint that drafts; empty where none does.
    """

    name: str
    rules: SpeculationRules
    model: str = ""


Write = Callable[[Writer, Drafts], None]


def _told(write: Mapping[str, Write], lengths: tuple[str, ...]) -> Write:
    """Return what tells an engine: by policy, and which rules of length it knows."""

    def tell(out: Writer, drafts: Drafts) -> None:
        if drafts.name == "none":
            return
        if drafts.name not in write:
            out.miss("decoding.name", drafts.name)
            return
        write[drafts.name](out, drafts)
        rules = drafts.rules
        if rules.length not in lengths:
            out.miss("decoding.length", rules.length, "drafts have a fixed length")
        if rules.candidates > rules.tokens:
            out.miss("decoding.candidates", rules.candidates, "a chain of drafts is verified")
        if rules.source in {"layers", "heads"} and drafts.name != "mtp":
            out.notes.append(f"{HEAD}: the checkpoint of the trained head, not known here")
        out.notes.append(MEASURE)

    return tell


def _vllm(**fields: object) -> Write:
    def write(out: Writer, drafts: Drafts) -> None:
        content = {"num_speculative_tokens": drafts.rules.tokens, **fields}
        if drafts.name != "mtp" and drafts.rules.source in {"model", "layers", "heads"}:
            content["model"] = drafts.model or HEAD
        out.words.extend(["--speculative-config", json.dumps(content)])
        if drafts.name == "eagle":
            out.notes.append('"method": "eagle3" for heads of EAGLE-3')
        if drafts.name == "prompt-lookup":
            out.notes.append("prompt_lookup_max and _min are not simulated: they set acceptance")

    return write


def _sglang(algorithm: str) -> Write:
    def write(out: Writer, drafts: Drafts) -> None:
        out.words.extend(["--speculative-algorithm", algorithm])
        tokens = drafts.rules.tokens
        if drafts.name == "prompt-lookup":
            out.words.extend(["--speculative-ngram-max-bfs-breadth", "1"])
            out.notes.append("NGRAM switches mixed chunks off and asks for CUDA")
        else:
            out.words.extend(["--speculative-num-steps", f"{tokens}"])
            out.words.extend(["--speculative-eagle-topk", "1"])
        # the target's own next token counts as one
        out.words.extend(["--speculative-num-draft-tokens", f"{tokens + 1}"])
        if drafts.name in {"draft-model", "eagle"}:
            out.words.extend(["--speculative-draft-model-path", drafts.model or HEAD])
        if drafts.name == "eagle":
            out.notes.append("--speculative-algorithm EAGLE3 for heads of EAGLE-3")
        if algorithm in {"STANDALONE", "NGRAM"} and out.facts.dp > 1:
            out.notes.append(f"{algorithm} does not run with --enable-dp-attention")

    return write


def _trtllm(kind: str, length: str = "max_draft_len", **fields: object) -> Write:
    def write(out: Writer, drafts: Drafts) -> None:
        content = {"decoding_type": kind, length: drafts.rules.tokens, **fields}
        if drafts.name in {"draft-model", "eagle"}:
            content["speculative_model"] = drafts.model or HEAD
        if drafts.rules.length == "batch":
            content["max_concurrency"] = drafts.rules.largest_batch
        out.config |= {f"speculative_config.{key}": value for key, value in content.items()}
        if drafts.name == "draft-model":
            out.config["disable_overlap_scheduler"] = True
        if drafts.name == "eagle":
            out.notes.append("its PyTorch backend runs heads of EAGLE-3 only")
        if drafts.name == "prompt-lookup":
            out.notes.append("max_matching_ngram_size is not simulated: it sets acceptance")

    return write


vllm_drafts = _told(
    {
        "draft-model": _vllm(method="draft_model"),
        "eagle": _vllm(method="eagle"),
        "mtp": _vllm(method="mtp"),
        "medusa": _vllm(method="medusa"),
        "prompt-lookup": _vllm(
            method="ngram", prompt_lookup_max=NGRAM_MAX, prompt_lookup_min=NGRAM_MIN
        ),
    },
    ("fixed",),
)
sglang_drafts = _told(
    {
        "draft-model": _sglang("STANDALONE"),
        "eagle": _sglang("EAGLE"),
        "mtp": _sglang("EAGLE"),
        "prompt-lookup": _sglang("NGRAM"),
    },
    ("fixed",),
)
trtllm_drafts = _told(
    {
        "draft-model": _trtllm("Draft_Target"),
        "eagle": _trtllm("Eagle"),
        "mtp": _trtllm("MTP", "num_nextn_predict_layers"),
        "prompt-lookup": _trtllm("NGram", max_matching_ngram_size=NGRAM_MAX),
    },
    ("fixed", "batch"),
)
unknown_drafts = _told({}, ())
