"""The operator's settings that a command uses: from the command line, or else as the operator serves them.

If neither has a setting, the command assumes the operator's default, and a note reports this.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from berth_api import names, words
from berth_api.objects.visibility import API_VERSION, OperatorSettings
from berth_api.request import BUILT_IN
from berth_api.request.kinds import KindError, read_gpu_vendors
from berth_client.errors import ApiError
from berth_operator.apis.visibility.kinds import EXPLANATIONS, FLEET, PODS, SETTINGS_PARAMETER
from berth_operator.commands.errors import InputError
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.pods import pod_mix_document
from berth_operator.core.fleet.pods.pod_mix import PodMix
from berth_operator.settings import configuration
from berth_operator.settings.configuration import Configuration, ConfigurationError
from berth_operator.state.objects import genius_priority
from berth_operator.state.objects.genius_priority import PriorityLimits

Get = Callable[[str, Mapping[str, str]], Awaitable[Any]]
"""Returns what a path answers with these parameters."""

ANY_POD: Final = "-"
"""Stands for a pod's name: the settings are the settings of its namespace."""
NOT_SERVED: Final = "the visibility API is not served"
ASK: Final = {SETTINGS_PARAMETER: "true"}
DEFAULT: Final = Configuration(policies={names.SCHEDULER: Policy()})
LIMITS: Final = "namespaceLimits"
"""A field of the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The values that the command line sets; None or empty for values that it does not set."""

    config: Path | None = None
    genius_priorities: str | None = None
    trusted_schedulers: str | None = None
    node_selector: str | None = None
    agent_namespace: str | None = None
    memory_units: str | None = None
    gpu_vendors: str | None = None


NOTHING: Final = Given()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What the operator serves of its settings to a user."""

    settings: OperatorSettings = field(default_factory=OperatorSettings)
    """Empty if nothing is served."""
    why_not: str = ""
    """Why some settings are not served; empty if all are."""
    is_forbidden: bool = False
    """Whether the user lacks the right to read all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The settings with which a command decides."""

    configuration: Configuration
    priorities: PriorityLimits
    trusted_schedulers: frozenset[str]
    node_selector: str
    agent_namespace: str
    charges_foreign: bool
    charges_unheld: bool
    memory_units: Mapping[str, int]
    nic_resources: Mapping[str, int] = field(default_factory=dict)
    gpu_vendors: frozenset[str] = BUILT_IN.gpu_vendors
    """As the operator serves them; a command has no flag for them."""
    reserved_nodes: Mapping[str, str] = field(default_factory=dict)
    """UID of a pod that waits -> the node that is reserved for it."""
    mix: PodMix | None = None
    """The operator's pod mix; None if it is unknown."""
    note: str = ""
    """The assumptions and their reasons; empty if there are none."""


# --- asking the operator ------------------------------------------------------------------------------------


async def ask(get: Get, namespaces: Collection[str]) -> Served:
    """Return the settings for the cluster, or else for the given namespaces whose pods the user may read.

    Raises:
        Unreachable: the API server did not answer.
    """
    of_cluster = await _answer(get, f"/apis/{API_VERSION}/{FLEET.plural}")
    if not of_cluster.is_forbidden:
        return of_cluster
    known = of_cluster
    for namespace in sorted(namespaces):
        path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PODS}/{ANY_POD}/{EXPLANATIONS}"
        answer = await _answer(get, path)
        if not answer.settings:
            known = known if known.settings else replace(known, why_not=answer.why_not)
        else:
            priorities = {**known.settings.get("geniusPriorities", {}), **answer.settings["geniusPriorities"]}
            file = answer.settings["configuration"]
            limits = {**known.settings.get("configuration", {}).get(LIMITS, {}), **file[LIMITS]}
            settings: OperatorSettings = {
                **answer.settings,
                "geniusPriorities": priorities,
                "configuration": {**file, LIMITS: limits},
            }
            known = replace(known, settings=settings)
    return known


async def _answer(get: Get, path: str) -> Served:
    """Return the settings that a path answers."""
    try:
        answer: OperatorSettings = await get(path, ASK)
    except ApiError as error:
        why_not = NOT_SERVED if error.status == HTTPStatus.NOT_FOUND else error.message
        return Served(why_not=why_not, is_forbidden=error.status == HTTPStatus.FORBIDDEN)
    return Served(settings=answer)


# --- putting them together ----------------------------------------------------------------------------------


def combined(given: Given, served: Served) -> Effective:
    """Return the settings with which a command decides.

    Raises:
        InputError: a setting of the command line is invalid.
        ConfigurationError: the configuration file of the command line is invalid.
    """
    used = DEFAULT
    if served.settings:
        try:
            if "podMix" in served.settings:
                pod_mix_document.of_document(served.settings["podMix"])
            used = configuration.of_document(served.settings["configuration"], "its configuration")
        except (LookupError, TypeError, ValueError, ArithmeticError, ConfigurationError) as error:
            served = Served(why_not=f"the operator has another version: {error}")
    settings = served.settings
    priorities = PriorityLimits(of=dict(settings.get("geniusPriorities", {})))
    if given.genius_priorities is not None:
        try:
            priorities = genius_priority.read_limits(given.genius_priorities)
        except ValueError as error:
            raise InputError(f"--genius-priorities: {error}") from error
    units: Mapping[str, int] = dict(settings.get("memoryUnits", {}))
    if given.memory_units is not None:
        try:
            units = words.read_units(given.memory_units)
        except words.UnitError as error:
            raise InputError(f"--memory-units: {error}") from error
    vendors = frozenset(settings.get("gpuVendors", BUILT_IN.gpu_vendors))
    if given.gpu_vendors is not None:
        try:
            vendors = read_gpu_vendors(given.gpu_vendors)
        except KindError as error:
            raise InputError(f"--gpu-vendors: {error}") from error
    trusted, selector, agents = given.trusted_schedulers, given.node_selector, given.agent_namespace
    note = ""
    if "trustedSchedulers" not in served.settings:
        if served.settings:
            known = ", ".join(served.settings["geniusPriorities"])
            what = f"of the operator's settings only those for pods of {known} are known"
        else:
            what = "the operator's settings are not known"
        note = f"{what}: {served.why_not}; assumed are {', '.join(_assumed(given, served.settings))}"
    return Effective(
        configuration=used if given.config is None else configuration.load(given.config),
        priorities=priorities,
        trusted_schedulers=frozenset(
            settings.get("trustedSchedulers", ()) if trusted is None else filter(None, trusted.split(","))
        ),
        node_selector=str(settings.get("nodeSelector", "")) if selector is None else selector,
        agent_namespace=str(settings.get("agentNamespace", names.LEASE_NAMESPACE)) if agents is None else agents,
        charges_foreign=bool(settings.get("chargeForeign", True)),
        charges_unheld=bool(settings.get("chargeUnheld", False)),
        memory_units=units,
        nic_resources=dict(settings.get("nicResources", {})),
        gpu_vendors=vendors,
        reserved_nodes=dict(settings.get("reservedNodes", {})),
        mix=None if (mix := settings.get("podMix")) is None else pod_mix_document.of_document(mix),
        note=note,
    )


def _assumed(given: Given, settings: OperatorSettings) -> Iterator[str]:
    """Yield the assumptions, each with the flag that sets it."""
    if given.config is None and not settings:
        yield f"a default profile for {names.SCHEDULER} (--config)"
    if given.config is None and settings:
        yield "no namespaceLimits in other namespaces, no pools of Berth for claims (--config)"
    if given.genius_priorities is None:
        where = " in other namespaces" if settings else ""
        yield f"no {names.GENIUS_PRIORITY} above 0{where} (--genius-priorities)"
    if given.trusted_schedulers is None:
        yield "no trusted schedulers (--trusted-schedulers)"
    if given.node_selector is None:
        yield "all nodes (--node-selector)"
    if given.agent_namespace is None:
        yield f"Leases of agents in {names.LEASE_NAMESPACE} (--agent-namespace)"
    if given.memory_units is None and not settings:
        yield "the usual units of other systems' resources (--memory-units)"
    if given.gpu_vendors is None and not settings:
        yield f"GPUs of {' and '.join(BUILT_IN.gpu_vendors)} for kubernetes.io/gpu (--gpu-vendors)"
    yield "that cards in use outside Kubernetes are taken"
    yield "that no node is reserved for a pod that waits"
    yield "that the operator has seen no pods but the existing ones"
