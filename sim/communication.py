"""What the ranks of one replica tell each other in a step, and how long it takes.

Tensor parallelism sums after attention and after the MLP of every layer and gathers the logits;
data-parallel attention exchanges tokens with the experts; pipelines hand activations on; context
parallelism passes the keys of a prompt around and merges partial results of decoding.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hardware.interconnect import all_reduce_s, collective_s, exposed_s, hierarchical_s, send_s
from hardware.links import Link, link_for, load_link
from hardware.specs import AcceleratorSpec
from sim.parallelism import Parallelism
from workloads.counts import attention_layers, inclusion_probabilities, zipf_popularity
from workloads.layers import split
from workloads.models import ModelSpec
from workloads.precision import precision

__all__ = ["Communication", "expert_imbalance", "scale_up_link"]

Array = npt.NDArray[np.float64]
PCIE = {"pcie3-x16": 1.6e10, "pcie4-x16": 3.2e10, "pcie5-x16": 6.4e10, "pcie6-x16": 1.28e11}
NODE = 8  # ranks that read one another's memory
ONE_STAGE = (256 << 10, 512 << 10)  # vLLM's kernel is one-shot below: of 8 ranks, of 4 [byte]
CUSTOM_LIMIT = 8 << 20  # largest buffer that vLLM's custom all-reduce takes [byte]


def scale_up_link(spec: AcceleratorSpec, accelerator: str, name: str | None = None) -> Link:
    """Return the link inside a node: the one named, the accelerator's own, else its PCIe."""
    if name is not None:
        return load_link(name)
    rate = spec.links.host.bytes_per_s.value
    nearest = min(PCIE, key=lambda link: abs(np.log(PCIE[link] / rate)))
    return link_for(accelerator) or load_link(nearest)


def expert_imbalance(model: ModelSpec, ep: int, skew: float, tokens: Array) -> Array:
    """Return the load of the busiest expert rank over the mean, at least 1.

    Two parts: experts differ in popularity (Zipf exponent `skew`; laid out in order of
    popularity, rank by rank in turn and back), and finitely many tokens scatter (the largest of
    `ep` normal variables with the mean as variance exceeds it by sqrt(2 ln ep x mean)).

    Examples
    --------
    >>> from workloads.models import load_model
    >>> model = load_model("qwen3-30b-a3b")
    >>> expert_imbalance(model, 8, 0.0, np.array([1.0, 1e2, 1e4])).round(2).tolist()
    [3.04, 1.2, 1.02]
    """
    if ep == 1 or model.moe is None:
        return np.ones_like(tokens)
    moe = model.moe
    chosen = inclusion_probabilities(zipf_popularity(moe.experts, skew), moe.top_k)
    order = np.arange(moe.experts)
    turn, place = np.divmod(order, ep)
    rank = np.where(turn % 2 == 0, place, ep - 1 - place)
    loads = np.bincount(rank, chosen, minlength=ep)
    mean = np.maximum(tokens, 1.0) * moe.top_k / ep
    scatter = np.sqrt(2.0 * np.log(ep) / mean)
    most = min(moe.top_k, moe.experts // ep) * ep / moe.top_k
    return np.asarray(np.minimum(loads.max() / loads.mean() * (1.0 + scatter), most))


@dataclass(frozen=True)
class Communication:
    """Collectives of one replica's step.

    Parameters
    ----------
    model : ModelSpec
        Sizes and number formats.
    parallel : Parallelism
        Ranks.
    inside, between : Link
        Within the fast domain, and beyond it.
    overlap : float
        Share of sums and exchanges that runs beside computation [0..1].
    one_shot : float or None
        Largest sum in which every rank reads all buffers, None = vLLM's choice [byte].
    """

    model: ModelSpec
    parallel: Parallelism
    inside: Link
    between: Link
    overlap: float = 0.0
    one_shot: float | None = None

    @property
    def _wide(self) -> float:
        return precision(self.model.dtype).bytes

    def _collective(self, op: str, nbytes: Array, ranks: int) -> Array:
        """Return the time of a collective, over several nodes where the domain is too small."""
        domain = self.inside.ranks
        if ranks <= domain:
            return collective_s(op, nbytes, ranks, self.inside)
        nodes = split(ranks, domain)
        return hierarchical_s(op, nbytes, split(ranks, nodes), nodes, self.inside, self.between)

    def all_reduce_s(self, tokens: Array) -> Array:
        """Return the time of one sum over tensor ranks of one activation per token [s].

        The engine's own kernels up to `CUSTOM_LIMIT`, the faster of these and NCCL beyond.
        """
        size = np.asarray(tokens * self.model.hidden * self._wide)
        own = collective_s("custom_all_reduce", size, self.parallel.tp, self.inside)
        library = collective_s("all_reduce", size, self.parallel.tp, self.inside)
        if self.one_shot is not None:
            return np.where(size <= self.one_shot, self._one_shot_s(size, own), library)
        return np.where(size <= CUSTOM_LIMIT, own, np.minimum(own, library))

    def _one_shot_s(self, size: Array, own: Array) -> Array:
        """Return the time of sums in which every rank reads all buffers [s].

        vLLM's kernel, which is one up to `ONE_STAGE`; beyond, the bytes of all buffers at the rate
        of the link.
        """
        ranks = self.parallel.tp
        if ranks <= 2 or ranks > NODE or self.inside.fidelity == "analytic":
            return own
        limit = ONE_STAGE[ranks <= 4]
        first = collective_s("custom_all_reduce", np.minimum(size, limit), ranks, self.inside)
        read = all_reduce_s("one_shot", np.maximum(size, limit), ranks, self.inside)
        return np.asarray(first + read - all_reduce_s("one_shot", limit, ranks, self.inside))

    def layers_s(self, tokens: Array) -> Array:
        """Return seconds of all layers' sums on one tensor group, and of hand-overs of stages.

        Parameters
        ----------
        tokens : ndarray
            Tokens of one micro-batch on one data-parallel rank.
        """
        model, parallel = self.model, self.parallel
        total = np.zeros_like(tokens)
        own = tokens / parallel.cp
        if parallel.tp > 1:
            exchanged = model.expert_layer_count if self.exchanges else 0
            total = total + (2 * model.layers - exchanged) * self.all_reduce_s(own)
        return np.asarray(total * (1.0 - self.overlap)) + self._stages_s(own)

    def _stages_s(self, tokens: Array) -> Array:
        """Return seconds of passing activations from stage to stage, all stages together."""
        parallel = self.parallel
        if parallel.pp == 1:
            return np.zeros_like(tokens)
        size = np.asarray(tokens * self.model.hidden * self._wide)
        link = self.inside if parallel.accelerators <= self.inside.ranks else self.between
        sent = send_s(size / parallel.tp, link)
        if parallel.tp > 1:
            sent = sent + collective_s("all_gather", size, parallel.tp, self.inside)
        return np.asarray(sent * parallel.pp)

    @property
    def exchanges(self) -> bool:
        """Whether experts serve tokens of more than one tensor group."""
        parallel = self.parallel
        return self.model.moe is not None and parallel.dp * parallel.cp > 1

    def experts_s(self, tokens: Array, imbalance: Array) -> Array:
        """Return seconds of all expert layers' exchanges: tokens there, results back.

        Parameters
        ----------
        tokens : ndarray
            Tokens of one micro-batch on all data-parallel ranks together.
        imbalance : ndarray
            Load of the busiest expert rank over the mean.
        """
        moe, parallel = self.model.moe, self.parallel
        if moe is None or not self.exchanges:
            return np.zeros_like(tokens)
        one_way = self._exchange_s if parallel.ep > 1 else self._gather_s
        narrow = min(precision(self.model.activations).bytes, self._wide)
        total = one_way(tokens, narrow, imbalance) + one_way(tokens, self._wide, imbalance)
        return np.asarray(self.model.expert_layer_count * total * (1.0 - self.overlap))

    def _gather_s(self, tokens: Array, width: float, imbalance: Array) -> Array:
        """Every rank gets all tokens, or gives its sums of all: gather, or reduce-scatter."""
        size = np.asarray(tokens * self.model.hidden * width)
        op = "all_gather" if width < self._wide else "reduce_scatter"
        return self._collective(op, size, self.parallel.stage)

    def _exchange_s(self, tokens: Array, width: float, imbalance: Array) -> Array:
        """Each token goes to the ranks that hold its experts, once to each of them."""
        parallel, moe = self.parallel, self.model.moe
        top_k = moe.top_k if moe else 1
        copies = parallel.ep * (1.0 - (1.0 - 1.0 / parallel.ep) ** top_k)
        size = np.asarray(tokens / parallel.stage * self.model.hidden * width * copies * imbalance)
        total = self._collective("all_to_all", size, parallel.ep)
        shared = parallel.expert_tp
        if shared > 1:
            local = np.asarray(tokens / parallel.ep * self.model.hidden * width * copies)
            total = total + self._collective("all_gather", local, shared)
        return total

    def head_s(self, sequences: Array) -> Array:
        """Return seconds of gathering the logits of so many sequences."""
        size = np.asarray(sequences * self.model.vocab * self._wide)
        return self._collective("all_gather", size, self.parallel.tp)

    def ring_s(self, chunk: Array, past: Array, compute_s: Array) -> Array:
        """Return seconds of passing keys and values of a prompt around the context ranks.

        They pass while attention works on what is there; what takes longer than that shows.
        """
        if self.parallel.cp == 1:
            return np.zeros_like(compute_s)
        model, tp = self.model, self.parallel.tp
        width = precision(model.kv).bytes
        total = np.zeros_like(compute_s)
        for group in attention_layers(model, tp):
            keys = np.minimum(chunk + past, group.window or np.inf)
            size = np.asarray(keys * group.kv_width * width)
            total = total + group.count * self._collective("all_gather", size, self.parallel.cp)
        return exposed_s(total, compute_s, overlap=1.0)

    def merge_s(self, sequences: Array) -> Array:
        """Return seconds of merging partial attention of decoding over the context ranks."""
        if self.parallel.cp == 1:
            return np.zeros_like(sequences)
        total = np.zeros_like(sequences)
        for group in attention_layers(self.model, self.parallel.tp):
            heads, _, _, value = group.shape("decode")
            size = np.asarray(sequences * heads * (value + 1) * self._wide * self.parallel.cp)
            total = total + group.count * self._collective("all_gather", size, self.parallel.cp)
        return total
