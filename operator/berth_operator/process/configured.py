"""The configuration in use, which may change while the operator runs."""

from collections.abc import Mapping
from dataclasses import replace

from berth_operator.core.decision.policy import Policy
from berth_operator.core.plugins import DevicePlugin
from berth_operator.core.values.quota_workload import CheckSettings
from berth_operator.metrics import counters
from berth_operator.settings.configuration import Configuration
from berth_operator.settings.flags import Settings
from berth_operator.state.cache.cluster import Cluster


class Configured:
    """The profiles and names that apply now."""

    def __init__(self, *, settings: Settings, first: Configuration, plugins: Mapping[str, DevicePlugin]) -> None:
        self._extended, self._plugins = settings.extended, plugins
        self._default_policy = replace(settings.default_policy, plugins=plugins)
        self._configuration = first.with_plugins(plugins)
        counters.CONFIGURATION_VALID.set(1)
        self._show()

    def replace(self, configuration: Configuration) -> None:
        """Use another configuration from now on."""
        self._configuration = configuration.with_plugins(self._plugins)
        self._show()

    def apply_to(self, cluster: Cluster) -> None:
        """Set what the state of the cluster knows of the configuration."""
        cluster.gangs.set_schedulers(self.scheduled)
        cluster.fleet.set_model_aliases(self._configuration.model_aliases)
        cluster.fleet.set_namespace_limits(self._configuration.namespace_limits)
        cluster.set_own_pools(self._configuration.own_pools)

    @property
    def scheduled(self) -> frozenset[str]:
        """The scheduler names whose pods Berth schedules itself, without the extender."""
        return frozenset(self._configuration.policies) - self._extended

    @property
    def managed(self) -> frozenset[str]:
        """The scheduler names whose pods Berth decides, by itself or as an extender."""
        return frozenset(self._configuration.policies) | self._extended

    @property
    def scheduled_configuration(self) -> Configuration:
        """The configuration, with only the profiles of the pods that Berth schedules itself."""
        kept = {name: policy for name, policy in self._configuration.policies.items() if name not in self._extended}
        return replace(self._configuration, policies=kept)

    @property
    def admission_check(self) -> CheckSettings:
        """The settings of the AdmissionCheck."""
        return self._configuration.admission_check

    @property
    def rack_key(self) -> str:
        """The label of nodes that names their rack."""
        return self._configuration.rack_key

    def policy(self, name: str) -> Policy:
        """Return the policy of a scheduler name."""
        return self._configuration.policies[name]

    def policy_or_default(self, name: str) -> Policy:
        """Return the policy of a scheduler name; the default policy if it has no profile."""
        return self._configuration.policies.get(name, self._default_policy)

    def scheduled_policies(self) -> dict[str, Policy]:
        """Return the policy of each scheduler name whose pods Berth schedules itself."""
        return {name: self.policy(name) for name in self.scheduled}

    def keep_partial(self, name: str) -> bool:
        """Return whether members of an incomplete gang stay bound; they do if the profile was removed."""
        policy = self._configuration.policies.get(name)
        return policy is None or policy.gang_keep_partial

    def _show(self) -> None:
        """Set the metric of the configuration in use."""
        counters.CONFIGURATION.clear()
        counters.CONFIGURATION.labels(self._configuration.hash).set(1)
