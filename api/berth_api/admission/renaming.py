"""Rename, in new pods, other systems' resources that a device plugin would allocate. The new names are Berth's.

If the Node offers a resource of another system, kubelet would give a container devices that the plugin chooses, in
addition to Berth's devices. So if a pod is read by another system's words, Berth renames the resource when the pod is
created. The amount is read as before. The annotation keeps the original. The API server renames
(`manifests/base/words.yaml`, generated from the same table), or Berth's webhook does.
"""

from collections.abc import Mapping
from typing import Final

import orjson

from berth_api import names
from berth_api.admission.injection import Object, Put, all_containers, annotations_of, with_containers
from berth_api.words import TABLE, Row

LISTS: Final = ("requests", "limits")


def renamed(pod: Object) -> Object:
    """Return a new pod with such resources renamed, and the originals in its annotation."""
    annotations = annotations_of(pod)
    rows = [row for row in TABLE.by_plugin if _is_used(pod["spec"], row)]
    known = names.ORIGINAL_RESOURCES in annotations
    changed = [(put, _names(put[2], rows, known=known)) for put in all_containers(pod["spec"])]
    changed = [(put, new_names) for put, new_names in changed if new_names]
    if not changed:
        return pod
    originals: dict[str, dict[str, str]] = {}
    containers: list[Put] = []
    for (kind, number, container), new_names in changed:
        amounts = {**_of(container, "limits"), **_of(container, "requests")}
        originals[container["name"]] = {name: str(amounts[name]) for name in new_names}
        resources = {**container["resources"]}
        for key in LISTS:
            if held := _of(container, key):
                new = {new_names[name]: amount for name, amount in held.items() if name in new_names}
                resources[key] = {**new, **{name: held[name] for name in held if name not in new_names}}
        containers.append((kind, number, {**container, "resources": resources}))
    written = annotations if known else {**annotations, names.ORIGINAL_RESOURCES: orjson.dumps(originals).decode()}
    return {
        **pod,
        "metadata": {**pod["metadata"], "annotations": written},
        "spec": with_containers(pod["spec"], containers),
    }


def _is_used(spec: Object, row: Row) -> bool:
    """Return whether a container requests by another word of the row's system."""
    telling = {word.name for word in row.system.words} & TABLE.telling
    return any(
        not telling.isdisjoint(_of(container, kind)) for _, _, container in all_containers(spec) for kind in LISTS
    )


def _names(container: Object, rows: list[Row], *, known: bool) -> Mapping[str, str]:
    """Return old name -> new name; a container that has both keeps them, and the pod is refused.

    If the annotation is there, a webhook has added a resource again that was renamed before.
    """
    return {
        row.word.name: row.word.renamed
        for row in rows
        for kind in LISTS
        if row.word.name in _of(container, kind) and (known or row.word.renamed not in _of(container, kind))
    }


def _of(container: Object, kind: str) -> Object:
    return (container.get("resources") or {}).get(kind) or {}
