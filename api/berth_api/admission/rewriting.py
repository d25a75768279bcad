"""The names under which kube-scheduler passes a pod's devices to Berth's extender.

The `managedResources` of an extender may only be extended resources, and no name in `kubernetes.io/` is one. So if
kube-scheduler places pods with Berth's extender, `kubernetes.io/gpu` becomes `koordinator.sh/gpu`, and so on. Both
names mean the same to Berth. The API server rewrites them (`manifests/components/extender/admission.yaml` has the same
rules in CEL), or Berth's webhook does.

An extended resource has equal requests and limits. As everywhere in Berth, the request counts.
"""

from berth_api import names
from berth_api.admission import routing
from berth_api.admission.injection import NOTHING, Object, Put, all_containers, with_containers


def rewritten(pod: Object) -> Object:
    """Return a new pod of the default scheduler with the names that kube-scheduler passes to the extender."""
    spec = pod["spec"]
    if spec.get("schedulerName") != routing.DEFAULT or spec.get("nodeName"):
        return pod
    changed: list[Put] = []
    for kind, number, container in all_containers(spec):
        resources = container.get("resources") or {}
        # A resource that is requested by both names keeps them, and the pod is refused.
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        new_names = {
            name: new
            for name, amount in requests.items()
            if amount not in NOTHING
            and name.startswith(names.PREFIX)
            and routing.RESOURCES.fullmatch(name) is not None
            and (new := names.OTHER_PREFIX + name.removeprefix(names.PREFIX)) not in {*requests, *limits}
        }
        if new_names:
            kept = {name: amount for name, amount in limits.items() if name not in new_names}
            renamed = {
                **resources,
                "requests": {new_names.get(name, name): amount for name, amount in requests.items()},
                "limits": {**kept, **{new: requests[name] for name, new in new_names.items()}},
            }
            changed.append((kind, number, {**container, "resources": renamed}))
    return {**pod, "spec": with_containers(spec, changed)}
