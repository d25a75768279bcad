"""The configuration file: the scheduler names, and a policy for the pods of each.

The file has the form of kube-scheduler's `KubeSchedulerConfiguration`: profiles with plug-ins that are switched off by
name, or by `*` for all. docs/configuration.md explains every field. The models here check the form. `parse` converts
the file into a `Policy` for each scheduler name.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from berth_api.request import EQUAL, LAST, NEVER
from berth_api.request.model import NO_ALIASES, ModelAliases
from berth_api.resources import quantity
from berth_api.resources.quantity import QuantityError
from berth_base import documents
from berth_base.allowed import Allowed
from berth_base.documents import DocumentError
from berth_operator.core import filters, scores
from berth_operator.core.claims.objects.slices import PoolID
from berth_operator.core.decision.policy import ALWAYS, CARD_STRATEGIES, CLAIM_STRATEGIES, NODE_STRATEGIES, Policy
from berth_operator.core.fleet.claims.store import NO_POOLS, OwnPools
from berth_operator.core.fleet.namespaces import LIMITED, NO_LIMITS, NamespaceLimits
from berth_operator.core.plugins import DevicePlugin
from berth_operator.core.scores.genius import (
    DEFAULT_WEIGHTS,
    DynamicWeights,
    GeniusWeights,
    PowerPreference,
    StaticWeights,
)
from berth_operator.core.values.quota_workload import CheckSettings

ALL: Final = "*"
"""In a list of plug-ins, stands for all that can be switched off."""
SCHEDULER_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
"""What Kubernetes accepts as the reporting controller of an Event."""

_NAME: Final = "up to 63 letters, digits, dots, dashes and underscores; it begins and ends with a letter or digit"
_LABEL: Final = r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_RESOURCE: Final = "[a-z0-9.-]+/[A-Za-z0-9._-]+"
_SUBDOMAIN: Final = r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?"
_SWITCHES: Final = (ALL, *(module.NAME for module in filters.ORDER if not module.TRAITS.needed))
_NEEDED: Final = {module.NAME: module.TRAITS.needed for module in filters.ORDER if module.TRAITS.needed}
_SCORES: Final = tuple(score.NAME for score in scores.ALL)
_DEFAULT: Final = Policy()
_GENIUS: Final = DEFAULT_WEIGHTS
_CHECK: Final = CheckSettings()
MAX_ALIASES: Final = 256
"""Names in `modelAliases` at most."""
MAX_LIMITED: Final = 1024
"""Namespaces in `namespaceLimits` at most."""


HOSTNAME: Final = "kubernetes.io/hostname"
ZONE: Final = "topology.kubernetes.io/zone"


class ConfigurationError(Exception):
    """A configuration file is invalid; the text names the field, the value and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The content of a configuration file."""

    policies: Mapping[str, Policy]
    """Scheduler name -> policy; at least one."""
    model_aliases: ModelAliases = field(default_factory=lambda: NO_ALIASES)
    """Other names of GPU models."""
    own_pools: OwnPools = NO_POOLS
    """The pools of ResourceSlices that no other scheduler serves."""
    namespace_limits: NamespaceLimits = field(default_factory=lambda: NO_LIMITS)
    """What the pods of namespaces may hold of GPUs."""
    admission_check: CheckSettings = _CHECK
    hash: str = ""
    """SHA-256 of the file in hexadecimal digits; empty without a file."""

    @property
    def rack_key(self) -> str:
        """Return the label of the narrowest topology domain of several nodes below a zone; empty for none."""
        keys = next(iter(self.policies.values())).gang_topology_keys
        return next((key for key in keys if key not in (HOSTNAME, ZONE)), "")

    def with_plugins(self, plugins: Mapping[str, DevicePlugin]) -> Self:
        """Return the configuration with these plug-ins in every policy."""
        policies = {name: replace(policy, plugins=plugins) for name, policy in self.policies.items()}
        return replace(self, policies=policies)


# --- the form of the file -----------------------------------------------------------------------------------


def _allowed(names: Iterable[str]) -> str:
    return f"allowed: {', '.join(names)}"


def _among(what: str, name: str, allowed: Iterable[str]) -> str:
    if name not in allowed:
        raise ValueError(f"{_shown(name)} is no {what}; {_allowed(allowed)}")
    return name


def _check_switch(name: str) -> str:
    if name in _NEEDED:
        raise ValueError(f'"{name}" cannot be switched off, because {_NEEDED[name]}; {_allowed(_SWITCHES)}')
    return _among("filter", name, _SWITCHES)


def _amount(value: str | int) -> int:
    try:
        amount = quantity.parse(value)
    except QuantityError as error:
        raise ValueError(f"{_shown(value)} is no amount; allowed: quantities such as 800 or 640Gi") from error
    if amount < 0:
        raise ValueError(f"{_shown(value)} is below 0")
    return amount


Switch = Annotated[str, AfterValidator(_check_switch), Field(json_schema_extra={"enum": list(_SWITCHES)})]
Score = Annotated[
    str,
    AfterValidator(lambda name: _among("score", name, _SCORES)),
    Field(json_schema_extra={"enum": list(_SCORES)}),
]
ScoreOrAll = Annotated[
    str,
    AfterValidator(lambda name: _among("score", name, (ALL, *_SCORES))),
    Field(json_schema_extra={"enum": [ALL, *_SCORES]}),
]
NodeStrategy = Annotated[
    str,
    AfterValidator(lambda name: _among("strategy for nodes", name, NODE_STRATEGIES)),
    Field(json_schema_extra={"enum": list(NODE_STRATEGIES)}),
]
CardStrategy = Annotated[
    str,
    AfterValidator(lambda name: _among("strategy for cards", name, CARD_STRATEGIES)),
    Field(json_schema_extra={"enum": list(CARD_STRATEGIES)}),
]
ClaimStrategy = Annotated[
    str,
    AfterValidator(lambda name: _among("strategy for claims", name, CLAIM_STRATEGIES)),
    Field(json_schema_extra={"enum": list(CLAIM_STRATEGIES)}),
]
SubdeviceRule = Annotated[
    Literal["last", "equal", "never"],
    BeforeValidator(lambda name: _among("rule for subdevices", name, (LAST, EQUAL, NEVER))),
]
Weight = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Preference = Annotated[
    Literal["Headroom", "Draw"],
    BeforeValidator(lambda name: _among("power preference", name, get_args(PowerPreference))),
]
Alias = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"), Allowed(_NAME)]
ModelGlobs = Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(min_length=1, max_length=64)]
Namespace = Annotated[
    str, Field(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), Allowed("the name of a namespace, such as team-a")
]
LimitedResource = Annotated[
    str,
    AfterValidator(lambda name: _among("resource with a limit", name, LIMITED)),
    Field(json_schema_extra={"enum": list(LIMITED)}),
]
Amount = Annotated[int, BeforeValidator(_amount, json_schema_input_type=str | int)]
Label = Annotated[
    str, Field(pattern=_LABEL, max_length=317), Allowed("the key of a label, such as topology.kubernetes.io/zone")
]
DriverName = Annotated[
    str,
    Field(pattern=f"^({_SUBDOMAIN}|\\*)$", max_length=63),
    Allowed("the name of a driver, such as gpu.nvidia.com, or * for all"),
]
PoolName = Annotated[
    str,
    Field(pattern=f"^{_SUBDOMAIN}(/{_SUBDOMAIN})+$", max_length=317),
    Allowed("a driver and the name of its pool, such as gpu.nvidia.com/node-1"),
]
SchedulerName = Annotated[str, Field(pattern=f"^{SCHEDULER_NAME}$"), Allowed(_NAME)]
SchedulerNames = Annotated[
    str,
    Field(pattern=f"^{SCHEDULER_NAME}(,{SCHEDULER_NAME})*$"),
    Allowed("names of schedulers, separated by commas without spaces, such as berth,berth-spread"),
]
"""Scheduler names, joined by commas."""
ResourceNames = Annotated[
    str,
    Field(pattern=f"^({_RESOURCE}(,{_RESOURCE})*)?$"),
    Allowed("names of resources with a domain, separated by commas without spaces, such as nvidia.com/a100"),
]
"""Names of extended resources, joined by commas."""


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        strict=True,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _check_fields(cls, raw: Any) -> Any:
        """Refuse unknown fields with a message that lists the known ones."""
        known = sorted(field.alias or name for name, field in cls.model_fields.items())
        if not isinstance(raw, dict):
            raise ValueError(f"must be an object with fields of {', '.join(known)}, not {_shown(raw)}")  # noqa: TRY004 - pydantic's
        for name in raw:
            _among("field", name, known)
        return raw


class Strategy(_Part):
    """Named sets of weights."""

    nodes: NodeStrategy = next(iter(NODE_STRATEGIES))
    """Which nodes are preferred by CPU and memory, after the cards' strategy. LeastAllocated spreads pods;
    MostAllocated packs them."""
    cards: CardStrategy = next(iter(CARD_STRATEGIES))
    """Which devices are preferred. Fragmentation keeps the rest usable for the typical pods; MostAllocated keeps whole
    cards and whole nodes free; LeastAllocated spreads pods."""
    claims: ClaimStrategy = next(iter(CLAIM_STRATEGIES))
    """Which devices ResourceClaims get. Fragmentation keeps the rest usable, and chooses devices that are close to each
    other; FirstFit takes the first devices that fit, like kube-scheduler."""

    def weights(self) -> dict[str, float]:
        """Return the weights of every profile, with those of the strategies."""
        chosen = NODE_STRATEGIES[self.nodes], CARD_STRATEGIES[self.cards], CLAIM_STRATEGIES[self.claims]
        return {**ALWAYS, **{name: weight for weights in chosen for name, weight in weights.items()}}


class Filters(_Part):
    """Which filters run."""

    disabled: list[Switch] = []
    """Names of filters that do not run; `*` for all that can be disabled."""

    def switched_off(self) -> frozenset[str]:
        """Return the names of the filters that do not run."""
        return frozenset(_SWITCHES if ALL in self.disabled else self.disabled) - {ALL}


class Scores(_Part):
    """Which scores run, and the weight of each."""

    disabled: list[ScoreOrAll] = []
    """Names of scores that do not run, even if the strategy has them; `*` for all that are not in `weights`."""
    weights: dict[Score, Weight] = {}
    """Name of a score -> its weight, 0 to 1000. Overrides the strategy and `disabled`."""

    def weighed(self, given: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
        """Return the enabled ones of these weights, with those set here."""
        kept = {name: weight for name, weight in given.items() if not {ALL, name} & set(self.disabled)}
        return tuple((name, weight) for name, weight in {**kept, **self.weights}.items() if weight)


class Plugins(_Part):
    """Single filters and scores."""

    filters: Filters = Filters()
    scores: Scores = Scores()


class GeniusStatic(_Part):
    """The weights of what a node's GPUs are, in the score `genius`."""

    weight: Weight = _GENIUS.static.weight
    """Weight of all terms of this section."""
    memory: Weight = _GENIUS.static.memory
    """Memory of the node's GPUs."""
    multiprocessors: Weight = _GENIUS.static.multiprocessors
    """Their multiprocessors."""
    memory_bandwidth: Weight = _GENIUS.static.memory_bandwidth
    """Their memory bandwidth."""
    encoders: Weight = _GENIUS.static.encoders
    """Their video encoders."""
    decoders: Weight = _GENIUS.static.decoders
    """Their video decoders."""


class GeniusDynamic(_Part):
    """The weights of what a node's GPUs do, in the score `genius`."""

    weight: Weight = _GENIUS.dynamic.weight
    """Weight of all terms of this section."""
    free_memory: Weight = _GENIUS.dynamic.free_memory
    """Free memory, by allocation and as measured."""
    power: Weight = _GENIUS.dynamic.power
    """Power, by `powerPreference`."""
    idle_encoders: Weight = _GENIUS.dynamic.idle_encoders
    """Idle video encoders."""
    idle_decoders: Weight = _GENIUS.dynamic.idle_decoders
    """Idle video decoders."""
    idle_multiprocessors: Weight = _GENIUS.dynamic.idle_multiprocessors
    """Idle multiprocessors."""


class GeniusSection(_Part):
    """The terms of the score `genius`; only the proportions of the weights matter."""

    static: GeniusStatic = GeniusStatic()
    dynamic: GeniusDynamic = GeniusDynamic()
    power_preference: Preference = _GENIUS.power_preference
    """Which nodes the term `power` prefers. Headroom: nodes with much power left; Draw, as in the original: nodes that
    draw much power."""

    def weights(self) -> GeniusWeights:
        """Return the weights that decisions read."""
        return GeniusWeights(
            static=StaticWeights(**self.static.model_dump()),
            dynamic=DynamicWeights(**self.dynamic.model_dump()),
            power_preference=self.power_preference,
        )


class GangSection(_Part):
    """How gangs are placed."""

    topology_keys: list[Label] = list(_DEFAULT.gang_topology_keys)
    """Keys of node labels that a gang's members should have in common, the closest first."""
    keep_partial: bool = _DEFAULT.gang_keep_partial
    """Whether the bound members of a gang stay if the gang could not be completed."""


class Profile(_Part):
    """How the pods of one scheduler name are scheduled."""

    scheduler_name: SchedulerName
    """The `schedulerName` of its pods."""
    strategy: Strategy = Strategy()
    plugins: Plugins = Plugins()
    preemption: bool = _DEFAULT.preemption
    """Whether pods of lower priority may be preempted for a pod that fits nowhere."""
    reserve_after_seconds: Annotated[int, Field(ge=0, le=86400)] = int(_DEFAULT.reserve_after)
    """Seconds after which a pod that waits for devices may get a node reservation, so that smaller pods do not overtake
    it; 0 for never."""
    subdevices: SubdeviceRule = LAST
    """Whether `nvidia.com/gpu` may be a time-sliced replica or MIG instance. `last`: only if no whole card is free for
    the pod; `equal`: like a whole card; `never`. The annotation `berth.dev/gpu-subdevices` of a pod overrides it."""
    gang: GangSection = GangSection()
    genius: GeniusSection = GeniusSection()

    def policy(self) -> Policy:
        """Return the policy that decisions read."""
        return Policy(
            weights=self.plugins.scores.weighed(self.strategy.weights()),
            switched_off=self.plugins.filters.switched_off(),
            card_strategy=self.strategy.cards,
            claim_strategy=self.strategy.claims,
            preemption=self.preemption,
            reserve_after=float(self.reserve_after_seconds),
            subdevices=self.subdevices,
            gang_topology_keys=tuple(self.gang.topology_keys),
            gang_keep_partial=self.gang.keep_partial,
            genius=self.genius.weights(),
        )


class ClaimsSection(_Part):
    """The devices in ResourceSlices that are Berth's: no other scheduler may give them to ResourceClaims."""

    drivers: Annotated[list[DriverName], Field(max_length=64)] = []
    """Drivers whose pools are all Berth's: `gpu.nvidia.com`; `*` for all drivers."""
    pools: Annotated[list[PoolName], Field(max_length=1024)] = []
    """Single pools that are Berth's, as `driver/pool`: `gpu.nvidia.com/node-1`."""

    def own(self) -> OwnPools:
        """Return the pools that decisions read."""
        named = (pool.partition("/") for pool in self.pools)
        return OwnPools(
            drivers=frozenset(self.drivers), pools=frozenset(PoolID(driver, pool) for driver, _, pool in named)
        )


class CheckSection(_Part):
    """The AdmissionCheck `berth.dev/fits-devices` of Kueue."""

    pending_seconds: Annotated[int, Field(ge=0, le=3600)] = int(_CHECK.pending)
    """Seconds for which a workload keeps its quota while the places that it lacks become free."""
    gather_seconds: Annotated[int, Field(ge=0, le=86400)] = int(_CHECK.gather)
    """Seconds for which places are gathered for a workload as they become free; 0 for never."""
    promise_seconds: Annotated[int, Field(ge=10, le=86400)] = int(_CHECK.promise)
    """Seconds for which places are kept for a workload until it is admitted, and then for its pods."""
    fleet_grows: bool = _CHECK.fleet_grows
    """Whether an autoscaler may add nodes of kinds that the cluster does not have yet. If true, no workload is rejected
    for its size."""

    def settings(self) -> CheckSettings:
        """Return the settings that the check reads."""
        return CheckSettings(
            pending=float(self.pending_seconds),
            gather=float(self.gather_seconds),
            promise=float(self.promise_seconds),
            fleet_grows=self.fleet_grows,
        )


class File(_Part):
    """A BerthSchedulerConfiguration."""

    api_version: Literal["config.berth.dev/v1alpha1"]
    kind: Literal["BerthSchedulerConfiguration"]
    profiles: Annotated[list[Profile], Field(json_schema_extra={"minItems": 1})]
    """One profile for each scheduler name."""
    model_aliases: Annotated[dict[Alias, ModelGlobs], Field(max_length=MAX_ALIASES)] = {}
    """Other names of GPU models: name -> globs; one of them must match the model that the driver reports. Pods may use
    these names wherever they name a model."""
    claims: ClaimsSection = ClaimsSection()
    namespace_limits: Annotated[dict[Namespace, dict[LimitedResource, Amount]], Field(max_length=MAX_LIMITED)] = {}
    """How much of the GPUs the pods of a namespace may hold together: `gpu` in hundredths of cards, `gpu-memory` in
    bytes."""
    admission_check: CheckSection = CheckSection()

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if not self.profiles:
            raise ValueError("profiles: must have at least one")
        names = [profile.scheduler_name for profile in self.profiles]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f'profiles[{index}].schedulerName: "{name}" is that of profiles[{names.index(name)}]')
        return self


# --- reading it ---------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """A loader that refuses duplicate keys, of which PyYAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in keys:
                raise yaml.MarkedYAMLError(problem=f'"{key.value}" is set twice', problem_mark=key.start_mark)
            keys.add(str(key.value))
        return super().construct_mapping(node, deep)


def load(path: Path) -> Configuration:
    """Read a configuration file.

    Raises:
        ConfigurationError: the file is missing or invalid.
    """
    return parse(read(path), path)


def read(path: Path) -> bytes:
    """Return the content of a configuration file.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error


def parse(content: bytes, path: Path) -> Configuration:
    """Return the configuration of a file's content; the path is for errors.

    Raises:
        ConfigurationError: the content is invalid.
    """
    try:
        document = documents.read(content, _Loader)
    except DocumentError as error:
        raise ConfigurationError(f"{path}: not YAML: {error}") from error
    return replace(of_document(document, str(path)), hash=hashlib.sha256(content).hexdigest())


def of_document(document: object, where: str) -> Configuration:
    """Return the configuration of a decoded file; `where` is for errors.

    Raises:
        ConfigurationError: the document is invalid.
    """
    try:
        file = File.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError(f"{where}: {'; '.join(messages(error))}") from error
    policies = {profile.scheduler_name: profile.policy() for profile in file.profiles}
    aliases = {name.lower(): tuple(globs) for name, globs in file.model_aliases.items()}
    return Configuration(
        policies=policies,
        model_aliases=aliases,
        own_pools=file.claims.own(),
        namespace_limits=file.namespace_limits,
        admission_check=file.admission_check.settings(),
    )


def messages(error: ValidationError) -> Iterator[str]:
    """Yield each error in the form `profiles[0].preemption: must be a valid boolean, not "yes"`."""
    for problem in error.errors():
        # Without pydantic's extra part for keys of mappings.
        parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"] if part != "[key]")
        where, message = "".join(parts).removeprefix("."), problem["msg"]
        if problem["type"] == "missing":
            message = "is missing"
        elif problem["type"] == "value_error":
            message = message.removeprefix("Value error, ")
        elif problem["type"] in ("model_type", "dict_type"):  # its message names our class
            message = f"must be an object, not {_shown(problem['input'])}"
        else:
            message = f"{re.sub('^[A-Z][a-z]+ should', 'must', message)}, not {_shown(problem['input'])}"
        yield f"{where}: {message}" if where else message


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, default=str)
