"""The settings that a command uses: its own flags, what the operator serves to the user, and assumptions."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from berth_api import names
from berth_api.objects.visibility import OperatorSettings
from berth_client.errors import ApiError
from berth_operator.commands import effective
from berth_operator.commands.effective import NOTHING, Given, Served
from berth_operator.commands.errors import InputError
from berth_operator.core.decision.policy import Policy
from berth_operator.settings import rendering
from berth_operator.settings.configuration import Configuration

GROUP = "/apis/visibility.berth.dev/v1alpha1"
FLEET = f"{GROUP}/fleet"
PACKING = Policy(card_strategy="MostAllocated", switched_off=frozenset({"taints"}))
PROFILES = rendering.document(Configuration(policies={"mine": PACKING}))


def limited(**limits: object) -> dict[str, object]:
    return {**PROFILES, "namespaceLimits": limits}


HEAD = {"kind": "OperatorSettings", "configuration": PROFILES, "memoryUnits": {"aliyun.com/gpu-mem": 2**30}}
OF_ML = {**HEAD, "geniusPriorities": {"ml": 5}, "configuration": limited(ml={"gpu": 200})}
OF_CLUSTER = {
    **HEAD,
    "gpuVendors": ["*"],
    "geniusPriorities": {"*": 2},
    "trustedSchedulers": ["koord-scheduler"],
    "nodeSelector": "pool=a",
    "agentNamespace": "leases",
    "chargeForeign": False,
    "chargeUnheld": True,
}
NO_FLEET = ApiError(403, "Forbidden", "no fleet")
NO_ML = ApiError(403, "Forbidden", "no pods/explanation")
ASSUMED = (
    "no trusted schedulers (--trusted-schedulers), all nodes (--node-selector), Leases of agents in "
    "berth-node-lease (--agent-namespace), that cards in use outside Kubernetes are taken, "
    "that no node is reserved for a pod that waits, that the operator has seen no pods but the existing ones"
)
OF_NVIDIA = "GPUs of nvidia for kubernetes.io/gpu (--gpu-vendors), "
UNITS = f"the usual units of other systems' resources (--memory-units), {OF_NVIDIA}"
BEFORE, OUTSIDE = ASSUMED.rsplit("that cards", 1)
UNKNOWN = (
    "assumed are a default profile for berth-scheduler (--config), no genius/priority above 0 (--genius-priorities), "
    f"{BEFORE}{UNITS}that cards{OUTSIDE}"
)


def of(namespace: str) -> str:
    return f"{GROUP}/namespaces/{namespace}/pods/-/explanation"


def asked(answers: Mapping[str, Any], *namespaces: str) -> Served:
    """Return what a user gets who gets these answers."""

    async def get(path: str, params: Mapping[str, str]) -> Any:
        assert params == {"settings": "true"}
        answer = answers.get(path, ApiError(404, "NotFound", "the server could not find the requested resource"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return asyncio.run(effective.ask(get, namespaces))


def test_the_right_for_the_fleet_shows_all() -> None:
    used = effective.combined(NOTHING, asked({FLEET: OF_CLUSTER}, "ml"))
    assert used.configuration.policies == {"mine": PACKING}
    assert (used.priorities.highest("ml"), used.trusted_schedulers) == (2, frozenset({"koord-scheduler"}))
    assert used.memory_units == {"aliyun.com/gpu-mem": 2**30}
    assert used.gpu_vendors == {"*"}
    assert (used.node_selector, used.agent_namespace) == ("pool=a", "leases")
    assert (used.charges_foreign, used.charges_unheld) == (False, True)
    assert used.note == ""


def test_the_right_for_explanations_shows_what_concerns_the_namespaces() -> None:
    of_web = {**OF_ML, "geniusPriorities": {"web": 0}, "configuration": limited(web={"gpu": 100})}
    answers = {FLEET: NO_FLEET, of("ml"): OF_ML, of("theirs"): NO_ML, of("web"): of_web}
    used = effective.combined(NOTHING, asked(answers, "ml", "theirs", "web"))
    assert used.configuration.policies == {"mine": PACKING}
    assert used.configuration.namespace_limits == {"ml": {"gpu": 200}, "web": {"gpu": 100}}
    assert (used.priorities.highest("ml"), used.priorities.highest("theirs")) == (5, 0)
    assert (used.charges_foreign, used.charges_unheld) == (True, False)
    assert used.note == (
        "of the operator's settings only those for pods of ml, web are known: no fleet; assumed are "
        "no namespaceLimits in other namespaces, no pools of Berth for claims (--config), "
        f"no genius/priority above 0 in other namespaces (--genius-priorities), {ASSUMED}"
    )


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        pytest.param({}, "the visibility API is not served", id="not served"),
        pytest.param({FLEET: NO_FLEET, of("ml"): NO_ML}, "no pods/explanation", id="no right"),
        pytest.param({FLEET: ApiError(503, "", "no replica leads")}, "no replica leads", id="no leader"),
        pytest.param(
            {FLEET: {**OF_CLUSTER, "configuration": {**PROFILES, "new": 1}}},
            'the operator has another version: its configuration: "new" is no field; allowed: admissionCheck, '
            "apiVersion, claims, kind, modelAliases, namespaceLimits, profiles",
            id="a newer operator",
        ),
    ],
)
def test_what_is_not_known_is_named_with_what_is_assumed(answers: Mapping[str, Any], why: str) -> None:
    used = effective.combined(NOTHING, asked(answers, "ml"))
    assert used.note == f"the operator's settings are not known: {why}; {UNKNOWN}"
    assert used.configuration.policies == {names.SCHEDULER: Policy()}
    assert (used.priorities.highest("ml"), used.node_selector) == (0, "")


def test_the_command_line_comes_first(tmp_path: Path) -> None:
    config = tmp_path / "berth.yaml"
    config.write_text(yaml.safe_dump(rendering.document(Configuration(policies={"own": Policy()}))))
    given = Given(
        config=config,
        genius_priorities="ml=7",
        trusted_schedulers="",
        node_selector="pool=b",
        agent_namespace="own",
        memory_units="aliyun.com/gpu-mem=1Mi",
        gpu_vendors="amd",
    )
    used = effective.combined(given, Served(settings=cast("OperatorSettings", OF_CLUSTER)))
    assert (list(used.configuration.policies), used.priorities.highest("ml")) == (["own"], 7)
    assert (used.trusted_schedulers, used.node_selector, used.agent_namespace) == (frozenset(), "pool=b", "own")
    assert used.memory_units == {"aliyun.com/gpu-mem": 2**20}
    assert used.gpu_vendors == {"amd"}
    assert effective.combined(given, Served(why_not="why")).note == (
        "the operator's settings are not known: why; assumed are that cards in use outside Kubernetes are taken, "
        "that no node is reserved for a pod that waits, that the operator has seen no pods but the existing ones"
    )
    with pytest.raises(InputError, match='--memory-units: "cpu"; allowed are'):
        effective.combined(Given(memory_units="cpu=1"), Served())
    with pytest.raises(InputError, match="--genius-priorities: ml is listed twice"):
        effective.combined(Given(genius_priorities="ml=1,ml=2"), Served())
