"""The ResourceClaims of a workload: the claims in its file, and the claims made from templates for its pods."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from berth_operator.commands.errors import InputError
from berth_operator.commands.workload import Document
from berth_operator.core.claims.objects import requests, status
from berth_operator.core.claims.objects.fields import FieldError
from berth_operator.state.watches.snapshot import RESOURCE_CLAIMS, Snapshot

Object = dict[str, Any]

DEVICE_CLASSES: Final = "device classes"


class WorkloadClaims:
    """Adds classes, claims and templates of a file to a snapshot, and claims to pods."""

    def __init__(self, snapshot: Snapshot, objects: Iterable[Document], namespace: str) -> None:
        """Add the objects of a file. A claim that already exists in the cluster stays unchanged.

        Raises:
            InputError: an object cannot be read.
        """
        self._snapshot = snapshot
        self._templates = dict(snapshot.claim_templates)
        """namespace/name -> template. The file's templates come first."""
        for document in objects:
            metadata = {"namespace": namespace, **document.body["metadata"]}
            key = f"{metadata['namespace']}/{metadata['name']}"
            if document.kind == "ResourceClaimTemplate":
                self._templates[key] = {**document.body, "metadata": metadata}
            elif document.kind == "DeviceClass":
                _check(document, requests.read_class, document.body)
                snapshot.put(DEVICE_CLASSES, document.body)
            elif key not in snapshot.cluster.fleet.claims.claims:
                self._put(document, metadata, document.body["spec"])

    def _put(self, document: Document, metadata: Mapping[str, Any], spec: Any) -> None:
        uid = f"simulated/{metadata['namespace']}/claims/{metadata['name']}"
        claim = {"metadata": {**metadata, "uid": uid}, "spec": spec}
        _check(document, status.read, claim)
        self._snapshot.put(RESOURCE_CLAIMS, claim)

    def of_pod(self, document: Document, pod: Object) -> Object:
        """Return a pod with the claims made for it from templates. Claims without a template are left out.

        Raises:
            InputError: a template cannot be read.
        """
        metadata, made = pod["metadata"], []
        owner = {"kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
        for name, key in _templates(pod):
            if (template := self._templates.get(key)) is not None:
                claim = f"{metadata['name']}-{name}"
                of_claim = {"name": claim, "namespace": metadata["namespace"], "ownerReferences": [owner]}
                self._put(document, of_claim, template["spec"]["spec"])
                made.append({"name": name, "resourceClaimName": claim})
        return {**pod, "status": {**pod["status"], "resourceClaimStatuses": made}} if made else pod

    def missing(self, pod: Object) -> list[str]:
        """Return the templates (namespace/name) that a pod names and that do not exist."""
        return [key for _, key in _templates(pod) if key not in self._templates]


def _templates(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield the name of each of the pod's claims that is made of a template, and the template (namespace/name)."""
    for claim in pod["spec"].get("resourceClaims") or ():
        if template := claim.get("resourceClaimTemplateName"):
            yield claim["name"], f"{pod['metadata']['namespace']}/{template}"


def _check(document: Document, read: Callable[[Any], object], obj: Any) -> None:
    try:
        read(obj)
    except (FieldError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{document.where} ({document.title}): {error}") from error
