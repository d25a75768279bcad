"""What is made of a pod as it is created, or as ephemeral containers come to it."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from berth_api import injection, request
from berth_api.injection import Object, labels_of
from berth_operator.injection import hami

_OF_POD: Final = ("volumes", "nodeSelector", "runtimeClassName")
_OF_CONTAINER: Final = ("env", "volumeMounts")
_LISTS: Final = ("initContainers", "containers", injection.EPHEMERAL)
_GPUS: Final = re.compile(r"(kubernetes[.]io|koordinator[.]sh)/gpu([.-]|$)|nvidia[.]com/(gpu|mig-)")
"""Names of resources for which the runtime must be NVIDIA's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutations:
    """What is done beside telling containers their cards; policies do the same where they are served."""

    hami_core: bool = False
    runtime_class: str = ""
    """Of pods that ask for GPUs and name none; empty: whichever is the nodes' default."""

    def made_of(self, pod: Object, before: Object | None) -> Object:
        """Return what becomes of a pod: one that is created, or was another before ephemeral containers came to it.

        Raises:
            ValueError: the pod says what cannot be read.
        """
        return injection.joined(pod, before) if before else self._created(pod)

    def _created(self, pod: Object) -> Object:
        found: Object = injection.injected(pod)
        found = hami.limited(found) if self.hami_core else found
        return with_runtime(found, self.runtime_class) if self.runtime_class else found


def with_runtime(pod: Object, name: str) -> Object:
    """Return a pod that asks for GPUs this RuntimeClass, unless it names one."""
    if "runtimeClassName" in pod["spec"] or not _asks_for_gpus(pod):
        return pod
    return {**pod, "spec": {**pod["spec"], "runtimeClassName": name}}


def _asks_for_gpus(pod: Object) -> bool:
    spec = pod["spec"]
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    requested = (name for each in containers for name in (each.get("resources") or {}).get("requests") or ())
    return any(label in labels_of(pod) for label in request.LABELS) or any(map(_GPUS.match, requested))


def patch(pod: Object, wanted: Object) -> list[dict[str, Any]]:
    """Return the JSON patch that makes of a pod the wanted one; nothing where all is well."""
    before, after = pod["spec"], wanted["spec"]
    found = list(_differing("/spec", before, after, _OF_POD))
    for kind in _LISTS:
        pairs = zip(before.get(kind) or (), after.get(kind) or (), strict=True)
        for number, (old, new) in enumerate(pairs):
            found += _differing(f"/spec/{kind}/{number}", old, new, _OF_CONTAINER)
    return found


def _differing(path: str, before: Object, after: Object, fields: Iterable[str]) -> Iterator[dict[str, Any]]:
    for each in fields:
        if after.get(each) != before.get(each):
            yield {"op": "add", "path": f"{path}/{each}", "value": after[each]}
