"""What is known of requests when they arrive: order, patience, known answers, encoder work."""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from hardware.kernels import load_kernels
from policies.reuse import answers, encoder
from policies.rules import AdmissionRules, Ordering, RequestView, admission, ordering
from sim.core.layout import Gate, Records
from sim.deployment import Deployment
from sim.encoder import encoder_work
from sim.gate import Buckets, draw_patience
from sim.objectives import objectives
from sim.records import order_rules, request_views, to_records
from sim.samples import check_features, with_samples
from sim.scenario import Scenario
from sim.streams import stream

__all__ = ["Intake", "asked"]


def asked(scenario: Scenario, table: pd.DataFrame) -> pd.DataFrame:
    """Return the requests that engines get to see of a requests table.

    Raises
    ------
    InputError
        The scenario asks for what the engine model does not cover.
    """
    engine = scenario.engine
    check_features(engine.lora_adapters, engine.structured_output)
    return with_samples(table, engine.samples)


@dataclass
class Intake:
    """The records of all requests, and what happens to one at its arrival.

    All random numbers here belong to a request, whatever serves it: policies that are compared
    see the same ones.

    Parameters
    ----------
    scenario : Scenario
        Policies, objectives, seed.
    table : DataFrame
        Requests.
    deployment : Deployment
        What computes encoder outputs.
    """

    scenario: Scenario
    table: pd.DataFrame
    deployment: Deployment
    records: Records = field(init=False)
    _order: Ordering = field(init=False)
    _door: AdmissionRules = field(init=False)
    _buckets: Buckets = field(init=False)
    _views: list[RequestView] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        policies, seed = self.scenario.policies, self.scenario.run.seed
        self._order = ordering.make(policies.ordering)
        self._door = admission.make(policies.admission).rules()
        self._buckets = Buckets(self._door.client_rate_per_s, self._door.client_burst)
        self._luck = stream(seed, "prediction").standard_normal(len(self.table))
        self._ttft_s = {
            name: np.inf if slo.ttft_s is None else slo.ttft_s
            for name, slo in objectives(self.scenario).items()
        }
        self.records = to_records(self.table, self._order, self._ttft_s, self._luck)
        self._wait_s = draw_patience(len(self.table), self._door, stream(seed, "patience"))
        self._encode()
        self._open()

    def _encode(self) -> None:
        """Write the encoder work of every request."""
        rules = encoder.make(self.scenario.policies.encoder).rules()
        if "image_tokens" not in self.table or not rules.encodes:
            return
        kernels = load_kernels(self.deployment.spec)
        tokens = self.table["image_tokens"].to_numpy(np.int64)
        rng = stream(self.scenario.run.seed, "images")
        work = encoder_work(rules, self.deployment.model, kernels, tokens, rng)
        requests = self.records.requests
        requests["extra_s"], requests["extra_flops"] = work.seconds, work.flops
        requests["saved_s"] = work.saved_s

    def _open(self) -> None:
        """Write what the door decides about every request of an open arrival process."""
        requests, rules = self.records.requests, answers.make(self.scenario.policies.answers)
        share = rules.rules().hit_share
        known = stream(self.scenario.run.seed, "answers").random(len(requests)) < share
        requests["gate"] = np.where(known, Gate.ANSWERED, Gate.OPEN)
        requests["timeout_s"] = requests["arrival_s"] + self._door.timeout_s
        requests["patience_s"] = requests["arrival_s"] + self._wait_s
        if np.isfinite(self._door.client_rate_per_s):
            for index in range(len(requests)):
                self._pass(index)

    def _pass(self, index: int) -> None:
        request = self.records.requests[index]
        if not self._buckets.take(int(request["client"]), float(request["arrival_s"])):
            self.records.requests["gate"][index] = Gate.REFUSED

    def arrive(self, index: int, arrival_s: float) -> None:
        """Let a request of a closed loop arrive at a time [s]: renew what depends on it."""
        requests = self.records.requests
        requests["arrival_s"][index] = arrival_s
        requests["order_key"][index] = self._key(index, arrival_s)
        requests["timeout_s"][index] = arrival_s + self._door.timeout_s
        requests["patience_s"][index] = arrival_s + self._wait_s[index]
        if requests["background"][index]:
            rules = order_rules(self._order)
            due = self._due_s(index, rules.background_deadline_s)
            requests["urgent_s"][index] = arrival_s + rules.urgent_after_s(due)
        if np.isfinite(self._door.client_rate_per_s):
            if requests["gate"][index] == Gate.REFUSED:
                requests["gate"][index] = Gate.OPEN
            self._pass(index)

    def _due_s(self, index: int, otherwise: float) -> float:
        """Return the deadline of a request, counted from its arrival [s]."""
        due = float(self.table["deadline_s"].iloc[index]) if "deadline_s" in self.table else np.nan
        return otherwise if np.isnan(due) else due

    def _key(self, index: int, arrival_s: float) -> float:
        if getattr(self._order, "by_arrival", False):
            return arrival_s
        if self._views is None:
            self._views = list(request_views(self.table, self._ttft_s, self._luck))
        return self._order.key(replace(self._views[index], arrival_s=arrival_s))
