"""The objects of an installation of Berth, in the order in which they are removed.

The list has every name in manifests/, whatever components are in use: a missing object is not an error. The rights in
manifests/components/cleanup name the same objects (`tests/unit/cleanup/test_installed.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from berth_api import names

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
POD_GROUP: Final = f"{names.POD_GROUPS}.{names.POD_GROUP_GROUP}"
PROGRAM_LABEL: Final = "app.kubernetes.io/name"
"""The label of every pod of Berth's programs, with the name of the Deployment or DaemonSet."""
DEPLOYMENTS: Final = ("berth-webhook", "berth-api", "berth-operator")
DAEMON_SETS: Final = ("berth-agent", "berth-mps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object that may exist."""

    kind: str
    name: str
    collection: str
    """The path of the kind on the API server, with the namespace."""
    namespace: str = ""

    @property
    def path(self) -> str:
        """Return the object's path on the API server."""
        return f"{self.collection}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def callers() -> tuple[Item, ...]:
    """Return the objects that make the API server call Berth.

    Without Berth's servers, such requests would wait or fail.
    """
    return (
        *map(_api_service, ("v1.nvidia-gpu-scheduler", _VISIBILITY)),
        *_admission("MutatingWebhookConfiguration", ["berth-injection"]),
        *_admission("ValidatingWebhookConfiguration", ["berth-validation"]),
    )


def _api_service(name: str) -> Item:
    return Item(kind="APIService", name=name, collection="/apis/apiregistration.k8s.io/v1/apiservices")


def programs(namespace: str, agent_namespace: str) -> tuple[Item, ...]:
    """Return the objects that run Berth's programs.

    The agents are in their own namespace, or in the other one, as earlier versions installed them. The objects are
    deleted, not scaled to zero or given a node selector that no node has: `kubectl apply` and Helm would keep such a
    change, or report a conflict, when Berth is installed again.
    """
    apps = "/apis/apps/v1/namespaces"
    deployments = [_program("Deployment", name, f"{apps}/{namespace}/deployments", namespace) for name in DEPLOYMENTS]
    daemon_sets = [
        _program("DaemonSet", name, f"{apps}/{place}/daemonsets", place)
        for name in DAEMON_SETS
        for place in dict.fromkeys((agent_namespace, namespace))
    ]
    return (*deployments, *daemon_sets)


def policies() -> tuple[Item, ...]:
    """Return the admission policies. For each kind, the bindings come before the policies.

    A binding without its policy has no effect. A policy without its parameter, the LeaderLease of the fence, denies
    everything that its binding selects. So all policies are deleted before any definition.
    """
    mutating = ["berth-injection", "berth-isolation", "berth-rewriting", "berth-routing", "berth-routing-devices"]
    mutating += ["berth-runtime-class", *(f"berth-words-{verb}" for verb in _OF_WORDS)]
    fence = ["berth-fence-marked", "berth-fence-epoch", "berth-fence-claims", "berth-fence-kueue"]
    limits = ["berth-agents", "berth-allocations", "berth-certificates", "berth-claims", "berth-operator-writes"]
    limits += [
        "berth-agent-slices",
        "berth-claims-pools",
        "berth-claims-taints",
        "berth-claims-writers",
        "berth-kueue-checks",
        "berth-kueue-other-checks",
    ]
    validating = [
        *fence,
        *limits,
        "berth-injection",
        "berth-isolation",
        "berth-isolation-warnings",
        "berth-kueue",
        "berth-kueue-warnings",
        "berth-namespaces",
        "berth-unscheduled",
        "berth-warnings",
        "berth-words",
        "berth-words-limit-ranges",
        "berth-words-quotas",
    ]
    validations = ["berth-validation-pods", "berth-validation-templates"]
    return (
        *_admission("MutatingAdmissionPolicyBinding", mutating),
        *_admission("MutatingAdmissionPolicy", mutating),
        *_admission("ValidatingAdmissionPolicyBinding", [*validating, *validations]),
        *_admission("ValidatingAdmissionPolicy", [*validating, "berth-validation"]),
    )


def written(namespace: str) -> tuple[Item, ...]:
    """Return the objects that the programs created and no manifest contains.

    An APIService is among them only if its operator was killed.
    """
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    return (
        _api_service(_VISIBILITY),
        *(Item(kind="Secret", name=name, collection=secrets, namespace=namespace) for name in _CERTIFICATES),
        Item(kind="EndpointSlice", name="berth-extender", collection=slices, namespace=namespace),
    )


_OF_WORDS: Final = ("renaming", "routing")
"""What policies for other systems' words do (`reference/words.yaml`)."""
_VISIBILITY: Final = "v1alpha1.visibility.berth.dev"
_CERTIFICATES: Final = ("berth-webhook", "berth-api", "berth-visibility")


def definitions() -> tuple[Item, ...]:
    """Return the definitions (CRDs). Other programs may own the definition of PodGroups."""
    plurals = (names.DEVICES, names.GPUPODS, names.LEADER_LEASES)
    listed = [*(f"{plural}.{names.GROUP}" for plural in plurals), POD_GROUP]
    return tuple(Item(kind="CustomResourceDefinition", name=name, collection=DEFINITIONS) for name in listed)


def _program(kind: str, name: str, collection: str, namespace: str) -> Item:
    return Item(kind=kind, name=name, collection=collection, namespace=namespace)


def _admission(kind: str, listed: Iterable[str]) -> Iterable[Item]:
    plural = f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"
    return [Item(kind=kind, name=name, collection=f"{ADMISSION}/{plural}") for name in listed]
