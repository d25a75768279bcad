"""Berth's filters agree with kube-scheduler node by node, in random scenarios over every filter.

If one preference decides, both choose the same node. `BERTH_SCENARIOS` and `BERTH_PREFERENCES` (of each kind) set the
number of scenarios, and `BERTH_SEED` sets their seed. The name of a scenario, `s<seed>-<number>`, is enough to create
it again. `make test-versions` compares with kube-scheduler 1.37, too.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from berth_operator.core import filters
from berth_operator.core.decision import cycle
from berth_operator.core.decision.cycle import Placement
from berth_operator.core.decision.policy import ALWAYS, CARD_STRATEGIES, NODE_STRATEGIES, Policy
from berth_operator.core.values.request import PendingPod
from berth_operator.state.cache.cluster import Cluster as State
from berth_operator.state.objects import pods
from devcluster import Cluster
from tests.differential import generate, judges, preferences
from tests.differential.draft import Raw
from tests.differential.judges import Mismatch, Trial
from tests.differential.preferences import KINDS, SCORES, Preference
from tests.programs import versions

SCENARIOS: Final = int(os.environ.get("BERTH_SCENARIOS", "72"))
PREFERENCES: Final = int(os.environ.get("BERTH_PREFERENCES", "2"))
SEED: Final = int(os.environ.get("BERTH_SEED", "1"))
AT_ONCE: Final = 60
NO_RULE: Final = {
    "dynamic-resources": "the devices of claims are compared by `make dra-rows`",
    "resource-claims": "its reasons are compared by `make dra-integration`",
}
"""Filters of kube-scheduler without a scenario, each with the reason."""
ASKED: Final = [each.NAME for each in filters.ORDER if each.TRAITS.plugin and each.NAME not in NO_RULE]


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory, version: str) -> Iterator[Cluster]:
    """Return a cluster in which only the scenarios change nodes and pods."""
    folder: Path = tmp_path_factory.mktemp("differential") / "cluster"
    programs = versions.replaced(version, "kube-apiserver", "kube-scheduler")
    with Cluster(folder=folder, extra_args=judges.ARGUMENTS, replaced=programs) as running:
        judges.prepare(running, generate.OBJECTS)
        yield running


@pytest.fixture(scope="module")
def trials(own_cluster: Cluster, version: str) -> list[Trial]:
    namespaces = [f"slot-{i}" for i in range(min(AT_ONCE, SCENARIOS))]
    judges.create_namespaces(own_cluster, namespaces)
    results = []
    for first in range(0, SCENARIOS, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, SCENARIOS))
        drafts = list(generate.scenarios(SEED, numbers, namespaces[: len(numbers)], versions.minor(version)))
        results.append(judges.hold(own_cluster, drafts))
    return results


def test_every_verdict_is_that_of_kube_scheduler(trials: list[Trial]) -> None:
    differing = [each for trial in trials for each in trial.differing()]
    assert not differing, "\n".join(_describe(each) for each in differing)


def test_every_message_is_that_of_kube_scheduler(trials: list[Trial]) -> None:
    refused = [(trial, case) for trial in trials for case in trial.cases if not case.fits]
    pairs = {judges.comparable(trial.message(case), case.message) for trial, case in refused}
    differing = {(ours, theirs) for ours, theirs in pairs if ours != theirs}
    assert not differing, "\n".join(f"ours:   {ours}\ntheirs: {theirs}" for ours, theirs in sorted(differing))


def test_each_scenario_has_a_node_that_fits_and_one_that_does_not(trials: list[Trial]) -> None:
    verdicts = defaultdict(set)
    for case in (case for trial in trials for case in trial.cases):
        verdicts[case.scenario].add(case.fits)
    assert len(verdicts) == SCENARIOS
    assert {name for name, found in verdicts.items() if found != {True, False}} == set()


def test_every_filter_has_a_rule_or_a_reason_to_have_none() -> None:
    assert set(ASKED) <= set(generate.RULES)
    assert not set(NO_RULE) & set(generate.RULES)


@pytest.mark.parametrize("name", ASKED)
def test_without_a_filter_some_verdicts_differ(trials: list[Trial], name: str) -> None:
    order = tuple(each for each in filters.ORDER if name != each.NAME)
    scenarios = {case.scenario for trial in trials for case in trial.differing(order)}
    assert len(scenarios) >= min(5, SCENARIOS // (2 * len(generate.RULES)))


# --- what is preferred ------------------------------------------------------------------------------------------

LIKE_THEIRS: Final = {**ALWAYS, **NODE_STRATEGIES["LeastAllocated"], **CARD_STRATEGIES["None"]}
"""The weights of kube-scheduler's default profile."""
POLICIES: Final = {"as kube-scheduler": Policy(weights=tuple(LIKE_THEIRS.items())), "default": Policy()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices of kube-scheduler."""

    state: State
    scenarios: list[Preference]
    chosen: dict[str, tuple[Raw, str]]

    def ours(self, scenario: Preference, policy: Policy) -> str:
        """Return the node that Berth chooses by a policy."""
        outcome = cycle.decide(self.state.fleet, self._probe(scenario), policy)
        assert isinstance(outcome, Placement)
        return outcome.node

    def lead(self, scenario: Preference, policy: Policy) -> float:
        """Return by how many points the node that the scenario is about is better than any other, by a policy."""
        fleet, request = self.state.fleet, self._probe(scenario).request
        totals = cycle.totals(fleet, request, policy, cycle.feasible(fleet, request))
        best = fleet.rows[scenario.best]
        return float(totals[best] - np.delete(totals, best).max())

    def _probe(self, scenario: Preference) -> PendingPod:
        probe, _ = self.chosen[scenario.draft.id]
        return pods.pending(pods.transform(copy.deepcopy(probe)))


@pytest.fixture(scope="module")
def choices(own_cluster: Cluster, version: str) -> Choices:
    namespaces = [f"choice-{i}" for i in range(PREFERENCES * len(KINDS))]
    judges.create_namespaces(own_cluster, namespaces)
    scenarios = list(preferences.preferences(SEED, PREFERENCES, namespaces, versions.minor(version)))
    state, chosen = judges.chosen(own_cluster, [each.draft for each in scenarios])
    return Choices(state=state, scenarios=scenarios, chosen=chosen)


def test_kube_scheduler_prefers_the_node_that_each_scenario_is_about(choices: Choices) -> None:
    assert {each.draft.id: choices.chosen[each.draft.id][1] for each in choices.scenarios} == {
        each.draft.id: each.best for each in choices.scenarios
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_the_node_that_kube_scheduler_prefers_is_taken(choices: Choices, policy: str) -> None:
    ours = {each.draft.id: choices.ours(each, POLICIES[policy]) for each in choices.scenarios}
    assert ours == {id_: node for id_, (_, node) in choices.chosen.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_without_its_score_another_node_is_as_good(choices: Choices, version: str, kind: str) -> None:
    if kind not in preferences.kinds(versions.minor(version)):
        pytest.skip(f"kube-scheduler {version} does not score by {kind}")
    without = Policy(weights=tuple((name, each) for name, each in LIKE_THEIRS.items() if name != SCORES[kind]))
    for scenario in choices.scenarios:
        if scenario.kind == kind:
            assert choices.lead(scenario, without) <= 0 < choices.lead(scenario, POLICIES["as kube-scheduler"])


def _describe(case: Mismatch) -> str:
    verdict = "takes it" if case.fits else f"refuses it: {case.message}"
    return f"{case.scenario} on {case.node}: kube-scheduler {verdict}"
