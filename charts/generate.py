"""Write the files of the chart that repeat kustomize's manifests and the configuration's schema.

`python -m charts.generate [--check]`

Each file in `charts/berth/files` is a list of objects as `kubectl kustomize` builds them from `manifests/`. The chart's
templates choose among them and replace namespace and scheduler names (docs/decisions/0026-chart.md).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from berth_operator.settings.configuration import File
from devcluster.building import programs
from devcluster.control_plane.manifests import documents
from reference import writing

ROOT: Final = Path(__file__).parent.parent
MANIFESTS: Final = ROOT / "manifests"
FOLDER: Final = Path(__file__).parent / "berth/files"
SCHEMA: Final = Path(__file__).parent / "berth/values.schema.json"
HEADER: Final = "# Generated from manifests/ by `make generate`; do not edit.\n"

Object = dict[str, Any]

_RBAC: Final = r"(ServiceAccount|(Cluster)?Role(Binding)?)"
_VALIDATING: Final = r"ValidatingAdmissionPolicy(Binding)?"
_POLICIES: Final = rf"(MutatingAdmissionPolicy(Binding)?/.*|{_VALIDATING}/berth-(unscheduled|injection|isolation.*))"
_ISSUED: Final = r"(Issuer|Certificate)"
_EXTENDER: Final = ("isolation", "runtime-class", "extender", "extender-cert-manager")
_SERVERS: Final = (
    "validation",
    "debug-api",
    "list-watch-api",
    "monitoring",
    "monitoring-prometheus-operator",
)


@dataclass(frozen=True, slots=True)
class Part:
    """One file: some objects of the base with components."""

    components: tuple[str, ...]
    objects: str
    """Regular expression of kind/name."""
    base: str = "base"
    """Folder of the kustomization."""


PARTS: Final = {
    "operator-rbac": Part((), rf"{_RBAC}/berth-operator(-auth-delegator)?"),
    "agent-rbac": Part((), rf"{_RBAC}/berth-agent(-auth-delegator)?"),
    "user-rbac": Part((), r"ClusterRole/berth-(view|edit|devices-view|metrics-reader)"),
    "operator-policies": Part((), rf"{_VALIDATING}/berth-(fence-.*|allocations|operator-writes|certificates)"),
    "agent-policies": Part((), rf"{_VALIDATING}/berth-agents"),
    "operator-disruption": Part((), r"PodDisruptionBudget/berth-operator"),
    # Pods of default-scheduler are routed, refused, or placed by kube-scheduler with the extender.
    "policies-routed": Part(("isolation", "runtime-class"), _POLICIES),
    "policies-refused": Part(("isolation", "runtime-class", "no-routing"), _POLICIES),
    "policies-extended": Part(_EXTENDER, _POLICIES),
    "webhooks-routed": Part(("webhook", "webhook-isolation"), r"MutatingWebhookConfiguration/.*"),
    "webhooks-refused": Part(("webhook", "webhook-isolation", "no-routing"), r"MutatingWebhookConfiguration/.*"),
    "webhooks-extended": Part(
        ("webhook", "webhook-isolation", "extender", "webhook-extender"), r"MutatingWebhookConfiguration/.*"
    ),
    "validation-policy": Part((), rf"{_VALIDATING}/berth-validation.*"),
    "warnings-policy": Part((), rf"{_VALIDATING}/berth-(warnings|words.*|namespaces)"),
    "validation-webhook": Part((*_SERVERS, "validation-bindings"), r"ValidatingWebhookConfiguration/.*"),
    "webhook": Part(_SERVERS, rf"({_RBAC}|Service|PodDisruptionBudget)/berth-webhook"),
    "webhook-bindings": Part((*_SERVERS, "validation-bindings"), r"ClusterRole(Binding)?/berth-webhook-bindings"),
    "webhook-certificate": Part(("validation", "webhook-cert-manager"), rf"{_ISSUED}/berth-webhook.*"),
    "evictions": Part(("evictions",), r"ClusterRole(Binding)?/berth-evictions"),
    "claims": Part(("claims",), rf"(ClusterRole(Binding)?/berth-claims|{_VALIDATING}/berth-claims-(pools|taints))"),
    "claims-allocation": Part(
        ("claims",),
        rf"(ClusterRole(Binding)?/berth-claims-allocation|{_VALIDATING}/berth-((fence-)?claims|claims-writers))",
    ),
    "dra": Part(("dra",), rf"(ClusterRole(Binding)?/berth-agent-dra|{_VALIDATING}/berth-agent-slices|DeviceClass/.*)"),
    "kueue-policy": Part(("kueue",), rf"{_VALIDATING}/berth-kueue(-warnings)?"),
    "kueue-check": Part(
        ("kueue",),
        rf"(ClusterRole(Binding)?/berth-kueue|{_VALIDATING}/berth-(fence-kueue|kueue-checks|kueue-other-checks))",
    ),
    "gangs-grove": Part(("gangs-grove",), r"ClusterRole(Binding)?/berth-gangs-grove"),
    "gangs-jobset": Part(("gangs-jobset",), r"ClusterRole(Binding)?/berth-gangs-jobset"),
    "gangs-kubeflow": Part(("gangs-kubeflow",), r"ClusterRole(Binding)?/berth-gangs-kubeflow"),
    "gangs-lws": Part(("gangs-lws",), r"ClusterRole(Binding)?/berth-gangs-lws"),
    "gangs-ray": Part(("gangs-ray",), r"ClusterRole(Binding)?/berth-gangs-ray"),
    "defragmentation": Part(("defragmentation",), r"ClusterRole(Binding)?/berth-defragmentation"),
    "extender": Part(_EXTENDER, r"(Service|Role|RoleBinding)/berth-extender"),
    "extender-certificates": Part(_EXTENDER, rf"{_ISSUED}/berth-extender.*"),
    "debug-api": Part(_SERVERS, r"ClusterRole(Binding)?/berth-(operator-debug-api|debug-reader)"),
    "list-watch-api": Part(_SERVERS, r"(?!Deployment)\w+/(berth-api.*|v1\.nvidia-gpu-scheduler)"),
    "visibility": Part(
        (),
        r"\w+/(berth-visibility|berth-operator-(visibility|authentication-reader))|ClusterRole/berth-visibility-.*",
    ),
    "monitoring": Part(_SERVERS, r"ConfigMap/berth-(dashboard|rules)"),
    "pod-monitors": Part(_SERVERS, r"(PodMonitor/.*|\w+/berth-metrics)"),
    "cleanup": Part((), rf"{_RBAC}/.*", base="cleanup"),
    "prometheus-rule": Part(_SERVERS, r"PrometheusRule/.*"),
}
"""File without its ending -> what is in it."""


def files() -> dict[Path, str]:
    """Return the text of each file."""
    combinations = {(part.base, part.components) for part in PARTS.values()}
    with ThreadPoolExecutor() as pool:
        built = dict(zip(combinations, pool.map(_built, combinations), strict=True))
    return {
        FOLDER / f"{name}.yaml": _text(_chosen(part, built[part.base, part.components])) for name, part in PARTS.items()
    }


def _built(combination: tuple[str, Iterable[str]]) -> list[Object]:
    """Return what kubectl makes of a kustomization and components."""
    base, components = combination
    with tempfile.TemporaryDirectory() as folder:
        body = {
            "resources": [os.path.relpath(MANIFESTS / base, folder)],  # kustomize accepts no absolute path
            "components": [os.path.relpath(MANIFESTS / "components" / name, folder) for name in components],
        }
        Path(folder, "kustomization.yaml").write_text(yaml.safe_dump(body))
        command: list[str | Path] = [programs.ensure(["kubectl"])["kubectl"], "kustomize", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return documents(done.stdout)


def _chosen(part: Part, objects: Iterable[Object]) -> list[Object]:
    chosen = [obj for obj in objects if re.fullmatch(part.objects, f"{obj['kind']}/{obj['metadata']['name']}")]
    if not chosen:
        raise ValueError(f"no object of manifests/ matches {part.objects}")
    return chosen


class _Dumper(yaml.SafeDumper):
    """Writes text with quotes as it is, so that the templates find names between quotes."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if '"' in text or "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _text(objects: list[Object]) -> str:
    return HEADER + yaml.dump(objects, Dumper=_Dumper, sort_keys=False, width=sys.maxsize, allow_unicode=True)


# --- the schema of the values ----------------------------------------------------------------------------------------


_SECTIONS: Final = ("profiles", "modelAliases", "claims")
"""Fields of the operator's configuration that are values of the chart. For a wrong key, Helm names a wrong path where
the schema has `propertyNames`, so `namespaceLimits` is not among them."""
_EXPLAINING: Final = ("title", "description", "default")


def schema() -> str:
    """Return the schema of the values. Its `$defs` with a capital are parts of the operator's configuration."""
    body = json.loads(SCHEMA.read_text())
    model = File.model_json_schema()
    own = {name: part for name, part in body["$defs"].items() if not name[0].isupper()}
    sections = {name[0].upper() + name[1:]: model["properties"][name] for name in _SECTIONS}
    body["$defs"] = own | _reachable({name: _bare(part) for name, part in sections.items()}, model["$defs"])
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def _bare(part: Any) -> Any:
    """Return a schema without explanations, which refuses names that it does not have."""
    if isinstance(part, list):
        return [_bare(item) for item in part]
    if not isinstance(part, dict):
        return part
    bare = {name: _bare(value) for name, value in part.items() if name not in _EXPLAINING}
    closed = {"additionalProperties": False} if "patternProperties" in bare else {}
    return bare | closed


def _reachable(parts: Object, defined: Mapping[str, Any]) -> Object:
    """Return these parts with the definitions that they refer to."""
    found = dict(parts)
    while missing := set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(found))) - found.keys():
        found |= {name: _bare(defined[name]) for name in sorted(missing)}
    return found


def main() -> int:
    """Write the files, or with --check report which differ; return 1 if one does."""
    options = writing.parser(__doc__).parse_args()
    stale = writing.write({SCHEMA: schema()}, "the operator's configuration", check=options.check)
    return max(stale, writing.write(files(), "manifests/", check=options.check))


if __name__ == "__main__":
    sys.exit(main())
