"""Engine profiles: what a serving engine adds around the GPU's kernels, one TOML file each."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from formats import Catalog, Quantity

__all__ = ["DispatchKind", "DispatchPerLayer", "EngineProfile", "engines"]


DispatchKind = Literal["dense", "dense_8bit", "moe"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DispatchPerLayer(_Strict):
    """Host time to dispatch a step with prompts, per layer and at the fastest host level."""

    piecewise: Quantity = Field(description="up to the largest graph [s/layer]")
    eager: Quantity = Field(description="beyond the largest graph [s/layer]")


class Dispatch(_Strict):
    """Dispatch times by kind of model."""

    dense: DispatchPerLayer
    dense_8bit: DispatchPerLayer
    moe: DispatchPerLayer


class HostTimes(_Strict):
    """Host times of an engine; levels are multiples of the fastest."""

    ingest: Quantity = Field(description="arrival to first possible schedule [s]")
    ingest_per_token: Quantity = Field(description="the same, per prompt token [s/token]")
    gather: Quantity | None = Field(
        None, description="how long an idle engine takes requests into its next step [s]"
    )
    client: Quantity = Field(description="output to client [s]")
    client_per_request: Quantity = Field(description="the same, per running request [s/request]")
    bookkeeping: Quantity = Field(description="output to next schedule [s]")
    bookkeeping_per_request: Quantity = Field(description="the same, per request [s/request]")
    visible: Quantity = Field(description="end of GPU work to output on the host [s]")
    graph_dispatch: Quantity = Field(description="dispatch of a decode step as one graph [s]")
    graph_level_share: Quantity = Field(description="part of it that the level scales [1]")
    graph_lead: Quantity = Field(description="schedule to first kernel, graph step [s]")
    eager_lead: Quantity = Field(description="schedule to first kernel, other steps [s]")
    level_mean: Quantity = Field(description="mean stay at a host level [s]")
    level_high: Quantity = Field(description="slowest level; levels are uniform from 1 [1]")
    level_jitter: Quantity = Field(description="half-width of the noise of one dispatch [1]")
    dispatch_per_layer: Dispatch


class FrontEnd(_Strict):
    """The process between clients and engine: it does one thing after another.

    It takes requests in (HTTP, tokenising) and sends tokens (detokenising, streaming), in the order
    in which they come, while the engine runs its steps. A profile without one keeps up.
    """

    request: Quantity = Field(description="work on a request that comes [s/request]")
    prompt_token: Quantity = Field(description="the same, per prompt token [s/token]")
    output_token: Quantity = Field(description="work on a token that leaves [s/token]")


class Collectives(_Strict):
    """How an engine sums over tensor ranks where that is not vLLM's way."""

    one_shot: Quantity = Field(
        description="largest sum in which every rank reads all buffers, NCCL beyond [byte]"
    )


class GpuExtras(_Strict):
    """GPU time that kernel tables do not hold."""

    attention_per_layer: Quantity = Field(
        description="decode attention of a layer beyond its table: the merge of splits [s]"
    )
    attention_per_sequence: Quantity = Field(description="the same, per sequence [s/request]")
    piecewise_gap_per_layer: Quantity = Field(description="between graph pieces of a step [s]")
    padding_experts: Quantity = Field(description="share of padding rows with own experts [1]")
    expert_routing_per_layer: Quantity = Field(description="router kernels, per layer [s]")
    products_8bit: Quantity = Field(
        description="time of 8-bit matrix products over that of the tables [1]"
    )
    decode_attention_8bit: Quantity = Field(
        description="the same of decode attention over an 8-bit cache [1]"
    )
    elementwise: Quantity = Field(
        description="time of element-wise kernels that the engine's own fusions leave [1]"
    )
    elementwise_summed: Quantity = Field(
        description="the same where tensor ranks sum: norms may run inside the all-reduce [1]"
    )


class Graphs(_Strict):
    """CUDA graphs."""

    largest: Quantity = Field(description="largest captured batch [token]")


class Loading(_Strict):
    """Most requests of a step up to which every eight load kernels of their own at first use.

    The load waits for the GPU: the step's dispatch ends when the GPU has finished it.
    """

    dense: Quantity = Field(description="16-bit weights [request]")
    dense_8bit: Quantity = Field(description="8-bit weights [request]")
    moe: Quantity = Field(description="mixtures of experts [request]")


class EngineMemory(_Strict):
    """Memory that is not weights and not KV."""

    utilisation: Quantity = Field(description="share of memory the engine may use [1]")
    reserved: Quantity = Field(description="graphs, workspaces [byte]")


class EngineProfile(_Strict):
    """One serving engine."""

    schema_version: Literal[1]
    name: str
    note: str = ""
    graphs: Graphs
    host: HostTimes
    front: FrontEnd | None = None
    collectives: Collectives | None = None
    gpu: GpuExtras
    memory: EngineMemory
    loading: Loading | None = None

    def host_knobs(self, layers: int, kind: DispatchKind, slowness: float) -> dict[str, float]:
        """Return the host's part of the engine loop's parameters [s].

        Parameters
        ----------
        layers : int
            Layers of the model.
        kind : {"dense", "dense_8bit", "moe"}
            Which dispatch times it has.
        slowness : float
            Factor on all host times, 1 = the profile's host.
        """
        host = self.host
        per_layer: DispatchPerLayer = getattr(host.dispatch_per_layer, kind)
        gather = host.gather.value if host.gather else 0.0
        times = {
            "ingest_s": host.ingest.value - gather,
            "gather_s": gather,
            "ingest_per_token_s": host.ingest_per_token.value,
            "client_s": host.client.value,
            "client_per_request_s": host.client_per_request.value,
            "bookkeeping_s": host.bookkeeping.value,
            "bookkeeping_per_request_s": host.bookkeeping_per_request.value,
            "visible_s": host.visible.value,
            "graph_dispatch_s": host.graph_dispatch.value,
            "graph_lead_s": host.graph_lead.value,
            "eager_lead_s": host.eager_lead.value,
            "piecewise_gap_s": self.gpu.piecewise_gap_per_layer.value * layers,
            "piecewise_dispatch_s": per_layer.piecewise.value * layers,
            "eager_dispatch_s": per_layer.eager.value * layers,
        }
        if self.front is not None:
            times |= {
                "front_request_s": self.front.request.value,
                "front_prompt_s": self.front.prompt_token.value,
                "front_token_s": self.front.output_token.value,
            }
        loading = getattr(self.loading, kind).value if self.loading else 0
        levels = {
            "load_rows": loading,
            "graph_level_share": host.graph_level_share.value,
            "level_mean_s": host.level_mean.value,
            "level_low": 1.0,
            "level_high": host.level_high.value,
            "level_jitter": host.level_jitter.value,
        }
        return {name: value * slowness for name, value in times.items()} | levels


engines: Catalog[EngineProfile] = Catalog(
    "engine profile", EngineProfile, [Path(__file__).parent / "data" / "engines"]
)
