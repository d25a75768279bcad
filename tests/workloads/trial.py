"""A cluster with Berth as it is installed, a namespace with one label, and what becomes of the workloads there."""

import contextlib
import dataclasses
import fnmatch
import json
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

import yaml

from devcluster import Cluster, waiting
from devcluster.additions import controllers, fleet, installation, kueue, training
from devcluster.additions.controllers import Controller
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.documents.site import Site
from tests.workloads import played
from tests.workloads.rows import BERTH, FOLDER, KUBERNETES, VOLCANO, WORKLOADS, YUNIKORN, Workload

NAMESPACE: Final = "ml"
LABEL: Final = {"berth.dev/routing": "devices"}
PROFILES: Final = (BERTH, VOLCANO, YUNIKORN)
"""The scheduler names of Berth's profiles."""
FLEET: Final = Path(__file__).with_name("fleet.yaml")
RUNNING: Final = Path(__file__).with_name("running.yaml")
CLASSES: Final = Path(__file__).with_name("claims.yaml")
DRIVERS: Final = ("dra.net", "compute-domain.nvidia.com")
"""Drivers of claims that are not Berth's."""
QUEUES: Final = Path(__file__).with_name("queues.yaml")
VENDORS: Final = {"amd-0": "amd.com/gpu", "intel-0": "gpu.intel.com/xe", "gaudi-0": "habana.ai/gaudi"}
"""Nodes of other vendors' device plugins, without an agent of Berth."""
COMPONENTS: Final = installation.ROOT / "manifests/components"
GANGS_OF: Final = ("grove", "jobset", "kubeflow", "ray")
"""Components by which the operator reads these controllers' objects, and so their gangs."""
RDMA: Final = "rdma/rdma_shared_device_a"
"""The resource of NVIDIA's shared RDMA device plugin, which the operator knows as a whole NIC."""
NARROW: Final = "h100-0"
"""The node that is left while a gang does not fit."""
CARDS: Final = 8
"""GPUs of this node."""
PATIENCE: Final = 60.0
OWNED: Final = ("workloads", "rayclusters", "jobsets", "jobs", "deployments", "statefulsets", "replicasets")
"""What controllers create besides pods. The garbage collector learns of new kinds only after half a minute, and Kueue
keeps the pods of a group until their Workload is deleted."""


def real_controllers() -> list[Controller]:
    """Return the controllers that run as programs, each as it is installed by default."""
    lws = kueue.LEADER_WORKER_SET
    assert lws.configuration is not None
    own = {key: value for key, value in lws.configuration.items() if key != "gangSchedulingManagement"}
    name = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE]}
    selector = {"matchExpressions": [name]}
    return [
        kueue.JOB_SET,
        dataclasses.replace(lws, configuration=own, addition=None),
        kueue.TRAINER,
        *training.CONTROLLERS,
        kueue.controller(manageJobsWithoutQueueName=False, managedJobsNamespaceSelector=selector, resources={}),
    ]


@contextlib.contextmanager
def opened(folder: Path, chosen: Sequence[Controller] = ()) -> Iterator["Trial"]:
    """Start a cluster with some controllers, and Berth with profiles for Volcano's and YuniKorn's jobs, too."""
    with Cluster(folder=folder) as cluster:
        installation.apply(cluster)
        for policy in _policies():
            cluster.api.apply(policy)
        configuration = folder / "berth.yaml"
        names = [{"schedulerName": name} for name in PROFILES]
        head = {"apiVersion": "config.berth.dev/v1alpha1", "kind": "BerthSchedulerConfiguration"}
        configuration.write_text(yaml.safe_dump({**head, "profiles": names}))
        for name in GANGS_OF:
            for document in installation.documents(COMPONENTS / f"gangs-{name}" / "rbac.yaml"):
                cluster.api.apply(document)
        flags = (f"--config={configuration}", f"--nic-resources={RDMA}=1", *(f"--{name}-gangs" for name in GANGS_OF))
        operator = installation.start(cluster, *flags)
        nodes = fleet.start(cluster, FLEET)
        for node, resource in VENDORS.items():
            cluster.create_nodes([node], capacity={resource: "8"})
        for node in (name for name in nodes if name.startswith("h100")):
            cluster.api.merge(f"/api/v1/nodes/{node}/status", {"status": {"capacity": {RDMA: "64"}}})
            cluster.api.merge(f"/api/v1/nodes/{node}/status", {"status": {"allocatable": {RDMA: "64"}}})
        for document in (*installation.documents(CLASSES), *_slices(nodes)):
            cluster.api.apply(document)
        definitions = folder / "definitions"
        definitions.mkdir()
        (definitions / "played.yaml").write_text(yaml.safe_dump_all(_definitions()))
        cluster.install_crds(definitions)
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": LABEL}}
        for document in (namespace, *installation.documents(RUNNING)):
            cluster.api.apply(document)
        controllers.start(cluster, chosen)
        if any(controller.program == "kueue" for controller in chosen):
            for document in installation.documents(QUEUES):
                cluster.api.apply(document)
        installation.wait(cluster, operator, nodes=nodes)
        yield Trial(cluster)


def _policies() -> Iterator[Manifest]:
    """Yield the policies that name Berth's schedulers, with all names, as the chart's value `profiles` has it."""
    files = yaml.safe_load((installation.BASE / "kustomization.yaml").read_text())["resources"]
    for text in ((installation.BASE / name).read_text() for name in files if not name.startswith("..")):
        named = text.replace(f'["{BERTH}"]', json.dumps(PROFILES))
        if named != text:
            yield from (each for each in yaml.safe_load_all(named) if each["kind"].endswith("AdmissionPolicy"))


def _slices(nodes: Sequence[str]) -> Iterator[Manifest]:
    """Yield what drivers that are not Berth's offer on the nodes with H100."""
    for node in (name for name in nodes if name.startswith("h100")):
        for driver in DRIVERS:
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            devices = [{"name": f"device-{number}"} for number in range(CARDS)]
            spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
            metadata = {"name": f"{node}-{driver}"}
            yield {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _definitions() -> Iterator[Manifest]:
    for api_version, kind in (*played.PLAYED, *played.WRITTEN):
        yield played.definition(api_version, kind)


class Trial:
    """The namespace with the label, and the judgement of what runs there."""

    def __init__(self, cluster: Cluster) -> None:
        self._site = Site(cluster, namespace=NAMESPACE)
        self._cluster, self._api = cluster, cluster.api

    def faults(self, name: str) -> list[str]:
        """Run a workload, remove it, and return what was not as meant."""
        workload = WORKLOADS[name]
        narrow = self._narrow(workload) if workload.is_gang else contextlib.nullcontext()
        applied: list[Manifest] = []
        try:
            with narrow:
                self._apply(name, applied)
                early = self._started_partly(workload) if workload.is_gang else []
            waiting.within(lambda: self._all_bound(workload), seconds=PATIENCE, poll=0.2)
            return [*early, *self._wrong(workload)]
        finally:
            self._clear(applied)

    def _apply(self, name: str, applied: list[Manifest]) -> None:
        for document in installation.documents(FOLDER / f"{name}.yaml"):
            applied.append(self._api.apply(document, namespace=NAMESPACE))
            for manifest in played.created(applied[-1]):
                # What is created later refers to it by its uid.
                manifest.update(self._create(manifest))

    def _create(self, manifest: Manifest) -> Manifest:
        """Create what an operator would create; again while Kueue's webhook does not know its owner yet."""

        def accepted() -> Manifest | None:
            try:
                return self._api.apply(manifest, namespace=NAMESPACE)
            except ApiError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
                return None

        created = waiting.until(accepted, what=f"{manifest['metadata']['name']} to be created")
        assert created
        return created

    @contextlib.contextmanager
    def _narrow(self, workload: Workload) -> Iterator[None]:
        """Leave cards for one pod of a gang or more, but not for all."""
        left = min(CARDS, workload.devices - 1)
        others = [node["metadata"]["name"] for node in self._api.get("/api/v1/nodes")["items"]]
        others.remove(NARROW)
        self._cordon(others, unschedulable=True)
        pods = "/api/v1/namespaces/default/pods"
        if left < CARDS:
            container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": CARDS - left}}}
            spec = {"schedulerName": BERTH, "containers": [container]}
            self._api.post(pods, {"metadata": {"name": "holds-cards"}, "spec": spec})
            waiting.until(
                lambda: self._api.get(f"{pods}/holds-cards")["spec"].get("nodeName"), what="the cards to be held"
            )
        try:
            yield
        finally:
            self._api.delete(pods, grace_seconds=0)
            self._cordon(others, unschedulable=False)

    def _cordon(self, nodes: Sequence[str], *, unschedulable: bool) -> None:
        for node in nodes:
            self._api.merge(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})

    def _started_partly(self, workload: Workload) -> list[str]:
        """Return a fault for each pod of a gang that got a node although not all fit."""
        waiting.within(lambda: self._all_decided(workload), seconds=PATIENCE, poll=0.2)
        chosen = [pod for pattern, (_, cards) in workload.cards.items() if cards for pod in self._matching(pattern)]
        if not chosen:
            return ["no pod was created"]
        names = [pod["metadata"]["name"] for pod in chosen if pod["spec"].get("nodeName")]
        return [f"{name} started without the others" for name in names]

    def _all_decided(self, workload: Workload) -> bool:
        """Return whether each pod with devices is there and has a node, or a reason why it waits."""
        messages = self._site.messages()
        for pattern, (count, cards) in workload.cards.items():
            pods = self._matching(pattern)
            if cards and len(pods) < count:
                return False
            if cards and not all(pod["spec"].get("nodeName") or pod["metadata"]["name"] in messages for pod in pods):
                return False
        return True

    def _all_bound(self, workload: Workload) -> bool:
        return all(len(self._bound(pattern)) == count for pattern, (count, _) in workload.cards.items())

    def _matching(self, pattern: str) -> list[Manifest]:
        return [pod for pod in self._site.pods() if fnmatch.fnmatchcase(pod["metadata"]["name"], pattern)]

    def _bound(self, pattern: str) -> list[Manifest]:
        return [pod for pod in self._matching(pattern) if pod["spec"].get("nodeName")]

    def _wrong(self, workload: Workload) -> Iterator[str]:
        """Yield what of a workload is not as meant."""
        for pattern, (count, cards) in workload.cards.items():
            pods = self._bound(pattern)
            if len(pods) != count:
                reasons = {name: message for name, message in self._site.messages().items() if message}
                yield f"{pattern}: {len(pods)} of {count} pods are bound: {reasons}"
            for pod in pods if cards else ():
                yield from self._wrong_of(workload, pod, cards)

    def _wrong_of(self, workload: Workload, pod: Manifest, cards: int) -> Iterator[str]:
        name, spec = pod["metadata"]["name"], pod["spec"]
        if spec["schedulerName"] != workload.scheduler:
            yield f"{name}: its scheduler is {spec['schedulerName']}"
        if workload.resource == "nvidia.com/gpu" and workload.scheduler == KUBERNETES:
            return
        if workload.resource != "nvidia.com/gpu":
            if VENDORS.get(spec["nodeName"]) != workload.resource:
                yield f"{name}: {spec['nodeName']} has no {workload.resource}"
            return
        held = self._site.devices_of(pod)
        distinct = {card.card["id"] for card in held}
        if len(distinct) != cards or len(held) != cards:
            yield f"{name}: {len(held)} devices of {len(distinct)} cards"
        nics = self._site.devices_of(pod, "rdma")
        if len(nics) != workload.nics or not {nic.switch for nic in nics} <= {card.switch for card in held}:
            switches = [nic.switch for nic in nics], [card.switch for card in held]
            yield "{}: NICs at {}, GPUs at {}".format(name, *switches)

    def _clear(self, applied: Sequence[Manifest]) -> None:
        background = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        for manifest in applied:
            self._api.request("DELETE", self._api.path_of(manifest), body=background)
        waiting.until(self._is_empty, what="the pods to go", poll=0.2)

    def _is_empty(self) -> bool:
        if not self._site.pods() and not self._api.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]:
            return True
        for plural in (*OWNED, "pods"):
            with contextlib.suppress(LookupError):  # a cluster without this controller
                self._api.delete(self._api.resource(plural).path(namespace=NAMESPACE), grace_seconds=0)
        return False


def changed_lines(name: str) -> int:
    """Return how many lines of a workload's file are there for Berth; comments do not count."""
    lines = (FOLDER / f"{name}.yaml").read_text().splitlines()
    return sum("berth" in line.lower() for line in lines if not line.lstrip().startswith("#"))
