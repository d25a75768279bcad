"""Checks of Berth's parts in the API server and Nodes: definitions, policies, servers, capacity, plugins."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from berth_api import names
from berth_api.request.isolation import MPS
from berth_api.resources import quantity
from berth_api.resources.quantity import QuantityError
from berth_kubectl.doctor.claim_driver import cards_label
from berth_kubectl.doctor.facts import Facts, Finding, pods_of_agent
from berth_kubectl.reading.objects import Object, condition, key_of, name_of

APPLY: Final = "kubectl apply -k manifests/base   # or `helm upgrade` of the release"
DENYING: Final = (
    "berth-fence-marked",
    "berth-fence-epoch",
    "berth-allocations",
    "berth-agents",
    "berth-operator-writes",
    "berth-certificates",
)
"""Policies that every installation has, and their bindings of the same names."""
FENCE: Final = "berth-fence-epoch"
INJECTION: Final = "berth-injection"
WEBHOOKS: Final = (INJECTION, "berth-validation")
API_GROUPS: Final = {
    "nvidia-gpu-scheduler": "kubectl describe apiservice {name}",
    "visibility.berth.dev": "kubectl delete apiservice {name}   # a replica that answers creates it again",
}
"""Group of an aggregated API -> what to do when no server answers."""
PLUGINS: Final = {
    "k8s-device-plugin": "NVIDIA's device plugin",
    "hami": "HAMi's device plugin",
    "volcano-vgpu-device-plugin": "Volcano's device plugin",
    "volcano-device-plugin": "Volcano's device plugin",
}
"""Name of an image -> what gives the cards of its node to pods."""
NEXT_TO_AGENT: Final = "k8s-device-plugin"
"""The plugin that is needed where the agent is not the device plugin itself."""
TAINTING_ROLE: Final = "berth-claims"
"""The ClusterRole of installations that keep other schedulers from Berth's pools by DeviceTaintRules."""
ALLOCATING_ROLE: Final = "berth-claims-allocation"
"""The ClusterRole of installations that may allocate ResourceClaims."""
OF_PLUGINS: Final = (names.NVIDIA_PREFIX, "amd.com/")
"""Prefixes of the names under which device plugins offer GPUs and their partitions."""
QUOTA_OF_GPUS: Final = tuple(f"requests.{prefix}" for prefix in (*OF_PLUGINS, names.OTHER_PREFIX, names.PREFIX))
"""Prefixes of the names of GPUs in a ResourceQuota, which counts none of those with the last one."""
FULL: Final = 100
SHOWN_FIELDS: Final = 3


def old_definitions(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each definition that is missing, or lacks fields that this version writes."""
    installed = facts.by_name("customresourcedefinitions")
    for definition in facts.definitions:
        name = name_of(definition)
        if name not in installed:
            message = "the definition is missing"
        elif fields := sorted(_lacking(_schema(definition), _schema(installed[name]))):
            more = f" and {len(fields) - SHOWN_FIELDS} more" if len(fields) > SHOWN_FIELDS else ""
            message = f"the definition is older than {facts.version}: it lacks {', '.join(fields[:SHOWN_FIELDS])}{more}"
        else:
            continue
        fix = "kubectl apply -f crds/   # of the operator's version"
        yield Finding(check="OldDefinitions", object=f"crd/{name}", message=message, fix=fix)


def _schema(definition: Object) -> Mapping[str, Any]:
    versions = definition["spec"].get("versions") or ()
    served: Mapping[str, Any] = next((version for version in versions if version["name"] == names.VERSION), {})
    return dict((served.get("schema") or {}).get("openAPIV3Schema") or {})


def _lacking(wanted: Mapping[str, Any], there: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of fields that a schema lacks: the outermost ones."""
    properties = there.get("properties") or {}
    for name, child in (wanted.get("properties") or {}).items():
        field = f"{path}.{name}".removeprefix(".")
        if name in properties:
            yield from _lacking(child, properties[name], field)
        elif not there.get("x-kubernetes-preserve-unknown-fields"):
            yield field
    if "items" in wanted:
        yield from _lacking(wanted["items"], there.get("items") or {}, f"{path}[]")


def missing_policy(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each policy that is missing, has no binding, does not deny, or has another parameter."""
    policies = facts.by_name("validatingadmissionpolicies")
    bindings = facts.by_name("validatingadmissionpolicybindings")
    for name in DENYING:
        lease, spec = facts.installation.lease, bindings.get(name, {}).get("spec") or {}
        parameter = (spec.get("paramRef") or {}).get("name", lease)
        problem = ""
        if name not in policies:
            problem = "the policy is missing"
        elif name not in bindings:
            problem = "the policy has no ValidatingAdmissionPolicyBinding, so it has no effect"
        elif "Deny" not in (spec.get("validationActions") or ()):
            problem = "its binding does not deny"
        elif name == FENCE and parameter != lease:
            problem = f"its binding names the LeaderLease {parameter}, not {lease}"
        if problem:
            message = f"{problem}: {_HARM.get(name, 'other accounts can write what Berth trusts')}"
            yield Finding(check="MissingPolicy", object=f"validatingadmissionpolicy/{name}", message=message, fix=APPLY)
    injects = INJECTION in facts.by_name("mutatingadmissionpolicies") and INJECTION in facts.by_name(
        "mutatingadmissionpolicybindings"
    )
    if not injects and INJECTION not in facts.by_name("mutatingwebhookconfigurations"):
        yield Finding(
            check="MissingPolicy",
            object=f"mutatingadmissionpolicy/{INJECTION}",
            message="neither a policy nor a webhook injects NVIDIA_VISIBLE_DEVICES: pods wait with NotInjected",
            fix=f"{APPLY}; before Kubernetes 1.36 with the component webhook",
        )


_HARM: Final = {
    "berth-fence-marked": "two leaders could allocate the same device",
    "berth-fence-epoch": "two leaders could allocate the same device",
}


def unreachable_webhook(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each webhook of Berth's that no pod serves, or whose CA is not known yet."""
    services = {key_of(service): service for service in facts.all_of("services")}
    ready = {
        (key_of(piece)[0], (piece["metadata"].get("labels") or {}).get("kubernetes.io/service-name"))
        for piece in facts.all_of("endpointslices")
        if any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in piece.get("endpoints") or ())
    }
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        for configuration in facts.all_of(kind):
            if name_of(configuration) not in WEBHOOKS:
                continue
            problems: dict[str, None] = {}
            for webhook in configuration.get("webhooks") or ():
                client = webhook["clientConfig"]
                if not client.get("caBundle"):
                    problems["the webhook has no caBundle yet"] = None
                if service := client.get("service"):
                    key = (str(service["namespace"]), str(service["name"]))
                    if key not in services:
                        problems[f"its Service {'/'.join(key)} does not exist"] = None
                    elif services[key]["spec"].get("type") != "ExternalName" and key not in ready:
                        problems[f"no pod of its Service {'/'.join(key)} is ready"] = None
            for problem in problems:
                place = facts.installation.namespace
                yield Finding(
                    check="UnreachableWebhook",
                    object=f"{kind.removesuffix('s')}/{name_of(configuration)}",
                    message=f"{problem}: Berth's pods are refused, or are created without what the webhook adds",
                    fix=f"kubectl get pods -n {place} -l app.kubernetes.io/name=berth-webhook -o wide",
                )


def unreachable_api(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each aggregated API of Berth's that the API server cannot reach."""
    for service in facts.all_of("apiservices"):
        group, name = str(service["spec"].get("group")), name_of(service)
        why, available = facts.unanswered.get(name), condition(service, "Available")
        if not why and available.get("status") != "True":
            why = str(available.get("message") or available.get("reason") or "its availability is not known")
        if group in API_GROUPS and why:
            yield Finding(
                check="UnreachableApi",
                object=f"apiservice/{name}",
                message=f"the API server cannot reach it ({why}): no namespace can be deleted meanwhile",
                fix=API_GROUPS[group].format(name=name),
            )


def no_taint_rules(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if other schedulers are to be kept from Berth's pools, and the API server has no way to."""
    if facts.taint_rules is False:
        yield Finding(
            check="NoTaintRules",
            object=f"clusterrole/{TAINTING_ROLE}",
            message="the API server serves no DeviceTaintRules, so other schedulers choose devices of Berth's pools, "
            "and their pods wait, because a policy refuses the allocation",
            fix="kube-apiserver --feature-gates=DRADeviceTaintRules=true "
            "--runtime-config=resource.k8s.io/v1beta2=true   # from 1.36; else set schedulerName: berth-scheduler in "
            "all pods with such claims",
        )


def shared_pool(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pool of which Berth and another scheduler have allocated devices to ResourceClaims."""
    holders: dict[tuple[str, str], dict[bool, str]] = {}
    for claim in facts.all_of("resourceclaims"):
        # Berth's claims are those whose allocation Berth's field manager wrote.
        is_ours = any(
            str(entry.get("manager")).startswith(f"{facts.installation.lease}/")
            for entry in claim["metadata"].get("managedFields") or ()
            if "f:allocation" in (entry.get("fieldsV1") or {}).get("f:status", {})
        )
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results") or ():
            if not result.get("adminAccess"):
                holders.setdefault((result["driver"], result["pool"]), {}).setdefault(is_ours, "/".join(key_of(claim)))
    for (driver, pool), claims in sorted(holders.items()):
        if claims.keys() == {True, False}:
            yield Finding(
                check="SharedPool",
                object=f"pool/{driver}/{pool}",
                message=f"Berth allocated devices to the ResourceClaim {claims[True]}, and another scheduler to "
                f"{claims[False]}: Berth gives none of this pool until no such claim is left",
                fix=f"kubectl describe resourceclaim -n {claims[False].replace('/', ' ')}   # keep that scheduler from "
                "the pool, and delete the pods",
            )


def other_device_plugin(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each pod that gives the cards of a node to pods, where Berth does."""
    devices = facts.by_name("devices")
    for pod in facts.all_of("pods"):
        device = devices.get(str(pod["spec"].get("nodeName") or ""))
        if device is None or (pod.get("status") or {}).get("phase") not in ("Pending", "Running"):
            continue
        plugin = next(filter(None, map(plugin_of, pod["spec"].get("containers") or ())), "")
        if plugin and (plugin != NEXT_TO_AGENT or condition(device, names.DEVICES_OFFERED)):
            namespace, name = key_of(pod)
            yield Finding(
                check="OtherDevicePlugin",
                object=f"node/{name_of(device)}",
                message=f"{PLUGINS[plugin]} (pod {namespace}/{name}) gives pods the same cards as Berth",
                fix=f"kubectl describe pod -n {namespace} {name}   # keep its DaemonSet off the nodes of Berth",
            )


def plugin_of(container: Object) -> str:
    """Return the name in PLUGINS of a container's image; empty if it is none."""
    image = str(container.get("image") or "").partition("@")[0]
    base = image.rpartition("/")[2].partition(":")[0]
    is_plugin = base != "hami" or "device-plugin" in str(container.get("name") or "")
    return base if base in PLUGINS and is_plugin else ""


def missing_capacity(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each Node that shows less in its allocatable than its Device has."""
    nodes = facts.by_name("nodes")
    for device in facts.all_of("devices"):
        node = nodes.get(name_of(device))
        if node is None or condition(device, names.READY).get("status") != "True":
            continue
        gpus = [card for card in (device.get("spec") or {}).get("devices") or () if card["type"] == names.GPU]
        uses = (device.get("status") or {}).get("devices") or ()
        barred = {use["minor"] for use in uses if use["type"] == names.GPU and use.get("barred")}
        gpus = [card for card in gpus if card["minor"] not in barred]
        # The plug-in withholds from kubelet what claims may hold.
        by_claim = bool(cards_label(node) and condition(device, names.CLAIMS_SERVED))
        if problem := _capacity_problem(gpus, node.get("status") or {}, by_claim=by_claim):
            yield Finding(
                check="MissingCapacity",
                object=f"node/{name_of(device)}",
                message=f"{problem}: pods that request this are not placed there",
                fix=f"kubectl describe node {name_of(device)}",
            )


def no_mps(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each Node that is labelled for MPS and offers none."""
    for node in facts.all_of("nodes"):
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        is_labelled = (node["metadata"].get("labels") or {}).get(names.ISOLATION_KEY) == MPS
        if is_labelled and not _amount(allocatable, names.MPS_RESOURCE):
            yield Finding(
                check="NoMps",
                object=f"node/{name_of(node)}",
                message=f"has label {names.ISOLATION_KEY}: {MPS}, and its agent offers no {names.MPS_RESOURCE}: no pod "
                "gets its GPUs",
                fix=f"{pods_of_agent(facts, name_of(node))}   # or remove the label",
            )


def uncounted_gpus(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each namespace whose ResourceQuota limits GPUs: Kubernetes does not count all their names."""
    limiting: dict[str, str] = {}
    for quota in facts.all_of("resourcequotas"):
        hard = quota["spec"].get("hard") or {}
        for name in (name for name in hard if name.startswith(QUOTA_OF_GPUS) and names.GPU in name):
            limiting.setdefault(key_of(quota)[0], f"ResourceQuota {name_of(quota)} has {name}: {hard[name]}")
    for namespace, has in sorted(limiting.items()):
        ours = names.PREFIX + names.GPU
        yield Finding(
            check="UncountedGpus",
            object=f"namespace/{namespace}",
            message=f"its {has}, and a ResourceQuota does not count {ours}: pods that request that get more GPUs",
            fix=f"kubectl edit configmap -n {facts.installation.namespace} berth-operator   # or Helm's value: "
            "namespaceLimits counts all names; then delete the quota",
        )


def _capacity_problem(gpus: list[Object], status: Object, *, by_claim: bool) -> str:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    whole = [card for card in gpus if card.get("health") and not (card.get("mig") or {}).get("enabled")]
    ours = names.PREFIX + names.GPU
    if _amount(allocatable, ours) < FULL * len(whole):
        return f"allocatable has {ours}: {allocatable.get(ours, 0)}, and the Device has {len(whole)} healthy GPUs"
    if all(card.get("health") for card in gpus) and not by_claim:
        for name in capacity:
            if name.startswith(OF_PLUGINS) and _amount(allocatable, name) < _amount(capacity, name):
                return (
                    f"allocatable has {name}: {allocatable.get(name, 0)} of {capacity[name]}, and all GPUs are healthy"
                )
    return ""


def _amount(resources: Mapping[str, Any], name: str) -> int:
    try:
        return quantity.parse(resources.get(name, 0))
    except QuantityError:
        return 0
