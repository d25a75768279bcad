"""Render a configuration as the content of a file that has the same effect. Pure functions."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic.alias_generators import to_camel

from berth_operator.settings.configuration import ALL, Configuration

Object = dict[str, Any]

API_VERSION: Final = "config.berth.dev/v1alpha1"
KIND: Final = "BerthSchedulerConfiguration"


def document(configuration: Configuration) -> Object:
    """Return what `configuration.of_document` reads as this configuration, without plug-ins."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "profiles": [
            {
                "schedulerName": name,
                # The strategy for nodes is only a set of weights, and all weights are listed.
                "strategy": {"cards": policy.card_strategy, "claims": policy.claim_strategy},
                "plugins": {
                    "filters": {"disabled": sorted(policy.switched_off)},
                    "scores": {"disabled": [ALL], "weights": dict(policy.weights)},
                },
                "preemption": policy.preemption,
                "reserveAfterSeconds": int(policy.reserve_after),
                "subdevices": policy.subdevices,
                "gang": {"topologyKeys": list(policy.gang_topology_keys), "keepPartial": policy.gang_keep_partial},
                "genius": _camel(asdict(policy.genius)),
            }
            for name, policy in configuration.policies.items()
        ],
        "modelAliases": {name: list(globs) for name, globs in configuration.model_aliases.items()},
        "claims": {
            "drivers": sorted(configuration.own_pools.drivers),
            "pools": sorted(map(str, configuration.own_pools.pools)),
        },
        "namespaceLimits": {name: {**limits} for name, limits in configuration.namespace_limits.items()},
    }


def _camel(fields: Mapping[str, Any]) -> Object:
    return {to_camel(name): _camel(value) if isinstance(value, dict) else value for name, value in fields.items()}
