"""The example driver of Kubernetes for dynamic resource allocation, on a real node.

with DraDriver(node, devices=2) as driver:
    driver.devices()  # as its ResourceSlice lists them: `gpu-0` and `gpu-1`
    ...               # by CDI, a container with a claim of gpu-0 has the variable GPU_DEVICE_0=gpu-0

Its devices have the attributes `uuid`, `index`, `model` and `driverVersion`, but no PCI address. `addressed` adds one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self

from devcluster import Arena
from devcluster.building import programs
from devcluster.control_plane.api import Manifest
from devcluster.real_node import RealNode
from tests.objects.resource_claims import PCI, listed, resource_slice

NAME: Final = "gpu.example.com"
PROGRAM: Final = "dra-example-kubeletplugin"
CDI: Final = "/run/cdi"
"""The node's folder of CDI specifications, as its programs see it."""
GROUP: Final = "/apis/resource.k8s.io/v1"
SLICES: Final = f"{GROUP}/resourceslices"


class DraDriver:
    """The driver of one node; a context manager. While it is away, pods with its devices cannot end."""

    def __init__(self, node: RealNode, *, devices: int) -> None:
        self.node = node
        self._count = devices

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Start the program, and wait until its slices list the devices."""
        [program] = programs.ensure([PROGRAM]).values()
        options = (f"--node-name={self.node.name}", f"--num-devices={self._count}", f"--cdi-root={CDI}")
        command = [str(program), f"--kubeconfig={self.node.cluster.kubeconfig}", *options]
        self.node.start_program(PROGRAM, command, ready=self._is_ready, what=f"the devices of {NAME}")

    def stop(self) -> None:
        """End the program. Kubelet removes its slices after half a minute."""
        self.node.stop_program(PROGRAM)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.node.cluster.api.delete(SLICES, fieldSelector=f"spec.driver={NAME}")

    def devices(self) -> dict[str, Manifest]:
        """Return the devices that its slices list, by name."""
        slices = self.node.cluster.api.get(SLICES, fieldSelector=f"spec.driver={NAME}")["items"]
        return {device["name"]: device for each in slices for device in each["spec"]["devices"]}

    def _is_ready(self) -> bool:
        return len(self.devices()) == self._count


@contextmanager
def addressed(arena: Arena, addresses: Mapping[str, str]) -> Iterator[None]:
    """Add PCI addresses, by device, to each slice of the driver from now on; each slice has all of these devices.

    The driver keeps what the API server has made of its slices.
    """
    applied = arena.apply(_policy(arena.id, addresses))
    probe = resource_slice(*(listed(name, {"uuid": "none"}) for name in addresses), driver=NAME, name="probe")

    def is_in_force() -> bool:
        answer = arena.cluster.api.request("POST", SLICES, body=probe, query={"dryRun": "All"})
        return all(PCI in device["attributes"] for device in answer["spec"]["devices"])

    try:
        arena.wait(is_in_force, what="the policy for slices to be in force")
        yield
    finally:
        for document in applied:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))


def _policy(name: str, addresses: Mapping[str, str]) -> list[dict[str, Any]]:
    places = list(range(len(addresses)))
    # The driver lists its devices in random order.
    expression = f"""{places}.map(place, JSONPatch{{
        op: "add",
        path: "/spec/devices/" + string(place) + "/attributes/" + jsonpatch.escapeKey("{PCI}"),
        value: {{"string": {dict(addresses)}[object.spec.devices[place].name]}}
    }})"""
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["resourceslices"],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": f"slices-{name}"}}
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "driver", "expression": f'object.spec.driver == "{NAME}"'}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    }
    return [
        {**kind, "kind": "MutatingAdmissionPolicy", "spec": policy},
        {**kind, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": f"slices-{name}"}},
    ]


@contextmanager
def template(arena: Arena, name: str) -> Iterator[None]:
    """Make a DeviceClass of the driver, and a ResourceClaimTemplate for one device of it."""
    cluster, expression = arena.cluster, f'device.driver == "{NAME}"'
    device_class = f"{arena.id}.{NAME}"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    cluster.api.post(f"{GROUP}/deviceclasses", {"metadata": {"name": device_class}, "spec": spec})
    claim = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}}
    path = f"{GROUP}/namespaces/{arena.namespace}/resourceclaimtemplates"
    cluster.api.post(path, {"metadata": {"name": name}, "spec": {"spec": claim}})
    try:
        yield
    finally:
        cluster.api.delete(f"{GROUP}/deviceclasses/{device_class}")
