"""Check of labels and annotations of `berth.dev/` that have no effect."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from berth_api import metadata, names
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.reading.objects import Object, condition, key_of, name_of

CHECK: Final = "WithoutEffect"
OF_CLUSTER: Final = {"nodes": metadata.NODE, "namespaces": metadata.NAMESPACE, "devices": metadata.DEVICE}
"""List of objects -> their kind."""
READ: Final = (*OF_CLUSTER, "waiting")
MAX_MISTAKES: Final = 4
"""Mistakes of the pods of a namespace that are reported at once: a tenant may write any number of them."""


def without_effect(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each label and annotation that Berth does not read, or not with its value."""
    devices = facts.by_name("devices")
    for listed, kind in OF_CLUSTER.items():
        for obj in facts.all_of(listed):
            # The agent reports some labels of its Node itself.
            served = condition(devices.get(name_of(obj), {}), names.CLAIMS_SERVED) if kind == metadata.NODE else {}
            reported = str(served.get("message") or "")
            for place, name, message in _messages(kind, obj):
                if message.partition(":")[0] in reported:
                    continue
                verb = "label" if place == metadata.LABEL else "annotate"
                yield Finding(
                    check=CHECK,
                    object=f"{kind.lower()}/{name_of(obj)}",
                    message=message,
                    fix=f"kubectl {verb} {kind.lower()} {name_of(obj)} {name}-   # or write what is meant",
                )
    yield from _of_pods(facts.all_of("waiting"))


def _of_pods(pods: Sequence[Object]) -> Iterator[Finding]:
    """Yield a finding for each namespace and message: the pods of one template have the same mistake."""
    same: dict[str, dict[str, list[str]]] = {}
    for pod in pods:
        namespace, pod_name = key_of(pod)
        for _, _, message in _messages(metadata.POD, pod):
            same.setdefault(namespace, {}).setdefault(message, []).append(pod_name)
    for namespace, by_message in same.items():
        for message, (first, *others) in itertools.islice(by_message.items(), MAX_MISTAKES):
            more = f" (and {len(others)} more waiting pod(s))" if others else ""
            yield Finding(
                check=CHECK,
                object=f"pod/{namespace}/{first}",
                message=f"{message}{more}",
                fix=f"kubectl get pod -n {namespace} {first} -o yaml   # correct it in the template of the pod's owner",
            )


def _messages(kind: str, obj: Object) -> Iterator[tuple[metadata.Place, str, str]]:
    """Yield place, name and message of each label and annotation without effect."""
    for place in metadata.PLACES:
        for name, message in metadata.without_effect(kind, place, obj["metadata"].get(f"{place}s") or {}):
            yield place, name, message
