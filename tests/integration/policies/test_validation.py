"""Answers of the real API server to pods and templates: by the policy, by the webhook, and what the scheduler shows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import metadata, names
from berth_operator.core.decision.messages import invalid_request
from berth_operator.state.objects import pods
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.operator.world import free_ports
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.objects.builders import CORE, GPU, MEMORY, NVIDIA, RATIO, RDMA, SHARED
from tests.programs import policies
from tests.programs.processes import Process, Processes

COMPONENT = Path(__file__).parents[3] / "manifests/components/validation/webhook.yaml"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
POLICY, WEBHOOK, EXTENDER = "policy", "webhook", "extender"
BY = "validated-by"
"""Label of objects: who validates them. In a cluster it is the policy or the webhook, perhaps with the extender."""
KOORDINATOR = "koordinator.sh/"
GANG = "gang.scheduling.koordinator.sh/"
HINT = names.ALLOCATE_HINT
TOPOLOGY, TOPOLOGY_POLICY = names.GPU_TOPOLOGY, names.GPU_TOPOLOGY_POLICY
OF_PODS = metadata.of(metadata.POD, metadata.ANNOTATION)
READ_BY_BERTH = [name for name, key in OF_PODS.items() if not key.by_berth]
MEANT = "did you mean the annotation of this name?"
AS_LABELS = "; ".join(f"label {name} has no effect: {MEANT}" for name in READ_BY_BERTH)
WRITTEN_BY_BERTH = [names.EPOCH, names.ORIGINAL_RESOURCES, names.WORKLOAD, names.POD_SET]
DRY: dict[str, str] = {"dryRun": "All"}
OTHERS_OF_KOORDINATOR = (
    "gpu-partitions",
    "gpu-minors",
    "reservation-allocated",
    "resource-spec",
    "gpu-partition-policy",
)
HUNDREDTHS = "allowed are whole hundredths of a card"
BYTES = "allowed are whole bytes, from 1Mi"


@pytest.fixture(scope="module")
def webhook(arena: Arena, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Serve the webhook with its configuration as shipped, but for the objects of this module only."""
    processes, name = Processes(arena=arena, folder=tmp_path_factory.mktemp("webhook")), f"berth-validation-{arena.id}"
    [port] = free_ports(1)
    shipped = yaml.safe_load(COMPONENT.read_text().replace('"berth-scheduler"', f'"{arena.scheduler_name}"'))
    [hook] = shipped["webhooks"]
    hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}/validate"}
    hook["objectSelector"] = {"matchLabels": {BY: WEBHOOK}}
    hook["timeoutSeconds"] = 10  # this machine may be busy
    arena.cluster.api.post(CONFIGURATIONS, {**shipped, "metadata": {"name": name}})
    yield processes.webhook(
        host="127.0.0.1",
        address="127.0.0.1",
        port=port,
        period=0.2,
        namespace=arena.namespace,
        configuration=f"none-{arena.id}",
        validating_configuration=name,
        scheduler_names=f"{names.SCHEDULER},{arena.scheduler_name}",
    )
    processes.close()
    arena.cluster.api.delete(f"{CONFIGURATIONS}/{name}")
    arena.delete("secrets", "berth-webhook")


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena, webhook: Process) -> Iterator[None]:  # noqa: ARG001 - it is started
    shipped = [*bound_to(POLICY, policies.policies("validation.yaml", arena)), *warnings(arena, POLICY)]
    shipped += [*warnings(arena, WEBHOOK), *warnings(arena, EXTENDER)]
    arena.apply(shipped)
    waiting.until(lambda: all(answers(arena)), deadline=ACTIVE_SECONDS, what="the policy and the webhook")
    yield
    for document in shipped:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def bound_to(by: str, shipped: list[Manifest]) -> list[Manifest]:
    """Return policies whose bindings take the objects of this label only."""
    for document in shipped:
        if "policyName" in document["spec"]:
            document["spec"]["matchResources"]["objectSelector"] = {"matchLabels": {BY: by}}
    return shipped


def warnings(arena: Arena, by: str) -> list[Manifest]:
    """Return the policy that warns, with the settings of a cluster that is validated by one of the two."""
    settings = {
        "schedulers": f'["{names.SCHEDULER}", "{arena.scheduler_name}"]',
        "trusted": '["default-scheduler"]' if by == EXTENDER else '["koord-scheduler"]',
        "webhook": json.dumps(by == WEBHOOK),
        **({"routed": "false"} if by == POLICY else {}),
    }
    shipped = policies.policies("warnings.yaml", arena, settings)
    for document in shipped:
        document["metadata"]["name"] += f"-{by}"
    shipped[1]["spec"]["policyName"] = shipped[0]["metadata"]["name"]
    return bound_to(by, shipped)


def answers(arena: Arena) -> Iterator[object]:
    """Yield what each of the two answers about a pod and a template with a mistake; empty before it is in force."""
    for by in (POLICY, WEBHOOK):
        yield refusal(arena, by, {GPU: "1"})
        yield warned(arena, template(arena, by, {GPU: "1"}))
        yield warned(arena, pod(arena, by, {GPU: "0"}))


def pod(arena: Arena, by: str, requests: dict[str, str], **fields: Any) -> Manifest:
    container = {"name": "main", "image": "none", "resources": {"requests": {}, "limits": requests}}
    labels = {BY: by, **fields.pop("labels", {})}
    return arena.pod(labels=labels, **{"containers": [container], **fields})


def refusal(arena: Arena, by: str, requests: dict[str, str], **fields: Any) -> str:
    """Return why the API server refuses a pod; empty if it does not."""
    try:
        create(arena, pod(arena, by, requests, **fields))
    except ApiError as error:
        return f"{error.status} {error.body['message']}"
    return ""


def create(arena: Arena, manifest: Manifest) -> Manifest:
    path = arena.cluster.api.path_of(manifest).rpartition("/")[0]
    return arena.cluster.api.request("POST", path, body=manifest, query=DRY)


def warned(arena: Arena, manifest: Manifest) -> list[str]:
    """Return the warnings when an object is created, in a dry run."""
    path = arena.cluster.api.path_of(manifest).rpartition("/")[0]
    return arena.cluster.api.warnings("POST", path, body=manifest, query=DRY)


def template(arena: Arena, by: str, requests: dict[str, str], kind: str = "Deployment", **fields: Any) -> Manifest:
    """Return an object with the template of such a pod."""
    made = pod(arena, by, requests, **fields)
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations")}
    spec: Manifest = {"template": {"metadata": metadata, "spec": made["spec"]}}
    if kind in ("Deployment", "StatefulSet", "DaemonSet"):
        spec["selector"] = {"matchLabels": {BY: by}}
    else:
        made["spec"]["restartPolicy"] = "Never"
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    group = "apps/v1" if "selector" in spec else "batch/v1"
    head = {"name": "a", "namespace": arena.namespace, "labels": {BY: by}}
    return {"apiVersion": group, "kind": kind, "metadata": head, "spec": spec}


def by_both(id_: str, requests: dict[str, str], message: str, **fields: Any) -> list[Any]:
    """Return a row for each of the two that know a rule."""
    return [pytest.param(by, requests, fields, message, id=f"{id_}, {by}") for by in (POLICY, WEBHOOK)]


def by_webhook(id_: str, requests: dict[str, str], message: str, **fields: Any) -> list[Any]:
    """Return a row of a rule that CEL cannot state simply."""
    return by_both(id_, requests, message, **fields)[1:]


def annotated(**annotations: str) -> dict[str, Any]:
    return {"annotations": annotations}


GROUPED = {
    "labels": {names.POD_GROUP_LABEL: "g"},
    "annotations": {names.POD_GROUP: "g", names.POD_GROUP_MIN_MEMBER: "2"},
}
ROWS = [
    *by_both("half a GPU", {GPU: "0.5"}, f"{GPU}: 0.5; {HUNDREDTHS}; did you mean 50?"),
    *by_both("a third", {GPU: "0.333"}, f"{GPU}: 0.333; {HUNDREDTHS}"),
    *by_both("half a NIC", {NVIDIA: "1", RDMA: "500m"}, f"{RDMA}: 0.5; {HUNDREDTHS}; did you mean 50?"),
    *by_both("one and a half", {RATIO: "1.5"}, f"{RATIO}: 1.5; {HUNDREDTHS}"),
    *by_both(
        "one GPU", {GPU: "1"}, f"{GPU}: 1; allowed are hundredths of a card, from 2; did you mean 100 (one whole GPU)?"
    ),
    *by_both("memory without a unit", {MEMORY: "20"}, f"{MEMORY}: 20; {BYTES}; did you mean 20Gi?"),
    *by_both("memory in MiB", {MEMORY: "20000"}, f"{MEMORY}: 20000; {BYTES}; did you mean 20000Mi?"),
    *by_both("half of a GiB", {MEMORY: "0.5"}, f"{MEMORY}: 0.5; {BYTES}; did you mean 0.5Gi?"),
    *by_both("512Ki", {MEMORY: "512Ki"}, f"{MEMORY}: 512Ki; allowed are bytes, from 1Mi"),
    *by_both(
        "koordinator's prefix",
        {KOORDINATOR + "gpu-memory": "20", KOORDINATOR + "gpu-core": "50"},
        f"{KOORDINATOR}gpu-memory: 20; {BYTES}; did you mean 20Gi?",
    ),
    *by_both("150", {GPU: "150"}, f"{GPU}: 150; allowed are 1 to 100 (part of a card) or multiples of 100"),
    *by_both(
        "labels and resources",
        {GPU: "50"},
        f"label genius/gpu-number and resource {GPU}; request devices by one of the two",
        labels={"genius/gpu-number": "1"},
    ),
    *by_both(
        "topology",
        {NVIDIA: "2"},
        f'annotation {TOPOLOGY}: "far"; allowed are nvlink, xgmi, hccs, xelink, metaxlink, mlulink, pcie, numa',
        **annotated(**{TOPOLOGY: "far"}),
    ),
    *by_both(
        "policy of the topology",
        {NVIDIA: "2"},
        f'annotation {TOPOLOGY_POLICY}: "maybe"; allowed are required, preferred',
        **annotated(**{TOPOLOGY: "pcie", TOPOLOGY_POLICY: "maybe"}),
    ),
    *by_both(
        "policy without topology",
        {NVIDIA: "2"},
        f"annotation {TOPOLOGY_POLICY}: required; it needs {TOPOLOGY}, too",
        **annotated(**{TOPOLOGY_POLICY: "required"}),
    ),
    *by_both(
        "two groups",
        {NVIDIA: "1"},
        f"label {names.POD_GROUP_LABEL} and annotation {names.POD_GROUP} both name a group; allowed is one",
        **GROUPED,
    ),
    *by_both(
        "a group without its size",
        {NVIDIA: "1"},
        f"annotation {names.POD_GROUP}: annotation {names.POD_GROUP_MIN_MEMBER} must be set, too",
        **annotated(**{names.POD_GROUP: "g"}),
    ),
    *by_webhook(
        "core alone", {CORE: "50"}, f"{CORE}: 50 is not a request for GPUs; add gpu-memory or gpu-memory-ratio"
    ),
    *by_webhook(
        "an unknown resource", {"kubernetes.io/gpu-mem": "2Gi"}, "kubernetes.io/gpu-mem: did you mean gpu-memory?"
    ),
    *by_webhook(
        "a misspelt annotation",
        {NVIDIA: "1"},
        "annotation berth.dev/gpu-modle: did you mean gpu-model?",
        **annotated(**{"berth.dev/gpu-modle": "*A100*"}),
    ),
    *by_webhook(
        "no JSON",
        {NVIDIA: "1"},
        f"annotation {HINT}: not JSON: unexpected end of data: line 1 column 2 (char 1); "
        "allowed is an object with the fields gpu, rdma, fpga",
        **annotated(**{HINT: "{"}),
    ),
    *by_webhook(
        "uneven shares",
        {SHARED: "3", RATIO: "100"},
        f"{RATIO}: 100, {SHARED}: 3; allowed are multiples of 3, up to 100 on each card",
    ),
]


@pytest.mark.parametrize(("by", "requests", "fields", "message"), ROWS)
def test_pods_are_refused_and_templates_warned_about_in_the_schedulers_words(
    arena: Arena, by: str, requests: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    admitted = create(arena, pod(arena, "nothing", requests, **fields))
    text = invalid_request(pods.pending(pods.transform(admitted)).error)
    # The policy does not say where an amount is written.
    words = f"invalid request: {message}" if by == POLICY else text
    assert text in (f"invalid request: {message}", f"invalid request: {message} (container main)")
    refused = refusal(arena, by, requests, **fields)
    assert refused.startswith("422 ")
    assert refused.endswith(f": {words}")
    [warning] = warned(arena, template(arena, by, requests, **fields))
    assert warning.endswith(words)


SPLIT = [
    {"name": "a", "image": "none", "resources": {"limits": {GPU: "150"}}},
    {"name": "b", "image": "none", "resources": {"limits": {GPU: "50"}}},
]


@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
@pytest.mark.parametrize(
    ("requests", "fields"),
    [
        pytest.param({"cpu": "1"}, {}, id="no device"),
        pytest.param({GPU: "20"}, {}, id="a fifth"),
        pytest.param({GPU: "50", NVIDIA: "0", RDMA: "0"}, {}, id="one device, and none of others"),
        pytest.param({NVIDIA: "0", "nvidia.com/mig-1g.10gb": "1"}, {}, id="an instance, and no card"),
        pytest.param({GPU: "0"}, {"labels": {"genius/gpu-number": "1"}}, id="by label, and no resource"),
        pytest.param({GPU: "800", RDMA: "1"}, {}, id="eight cards and any NIC"),
        pytest.param({CORE: "50", MEMORY: "1Mi"}, {}, id="the least memory"),
        pytest.param({SHARED: "2", RATIO: "150"}, {}, id="spread"),
        pytest.param({}, {"containers": SPLIT}, id="two containers that make two cards"),
        pytest.param({}, {"labels": {"genius/gpu-number": "1"}}, id="by label"),
        pytest.param({NVIDIA: "2"}, {"annotations": {TOPOLOGY: "pcie", TOPOLOGY_POLICY: "preferred"}}, id="topology"),
        pytest.param({NVIDIA: "1"}, {"annotations": {"scheduling.koordinator.sh/other": "{"}}, id="Koordinator's own"),
        pytest.param(
            {KOORDINATOR + "gpu": "1", NVIDIA: "0"},
            {"schedulerName": "volcano", "annotations": {KOORDINATOR + "gpu-model": "*A100*"}},
            id="another scheduler's",
        ),
        pytest.param({NVIDIA: "1"}, {"schedulerName": "north-scheduler"}, id="another scheduler with a similar name"),
        pytest.param(
            {NVIDIA: "1"},
            annotated(**{f"scheduling.koordinator.sh/{name}": "" for name in OTHERS_OF_KOORDINATOR}),
            id="Koordinator's other names",
        ),
        pytest.param({GPU: "1", MEMORY: "20"}, {"schedulerName": "koord-scheduler"}, id="a trusted scheduler's"),
        pytest.param(
            {},
            {"schedulerName": "default-scheduler", "nodeName": "n", **annotated(**{names.POD_GROUP: "a"})},
            id="a gang's member that names its node",
        ),
        pytest.param(
            {NVIDIA: "1"},
            {"schedulerName": "volcano", **annotated(**dict.fromkeys(WRITTEN_BY_BERTH, "a"))},
            id="annotations that programs write",
        ),
    ],
)
def test_what_is_valid_passes_without_a_word(
    arena: Arena, by: str, requests: dict[str, str], fields: dict[str, Any]
) -> None:
    assert refusal(arena, by, requests, **fields) == ""
    assert warned(arena, pod(arena, by, requests, **fields)) == []
    assert warned(arena, template(arena, by, requests, **fields)) == []


@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_templates_of_all_workloads_are_read(arena: Arena, by: str, kind: str) -> None:
    [warning] = warned(arena, template(arena, by, {MEMORY: "20"}, kind))
    assert "; did you mean 20Gi?" in warning
    [warning] = warned(arena, template(arena, by, {}, kind, containers=[overcommitted("a", gpu=("100", "800"))]))
    assert warning.endswith("did you mean 800 in both?")


@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
def test_an_update_is_warned_about_if_the_template_changed(arena: Arena, by: str) -> None:
    api, first = arena.cluster.api, template(arena, by, {MEMORY: "20"})
    first["metadata"]["name"] = by
    path = api.path_of(first)
    assert api.warnings("POST", path.rpartition("/")[0], body=first) != []
    scaled = {**first, "spec": {**first["spec"], "replicas": 3}}
    assert api.warnings("PUT", path, body=scaled, query=DRY) == []
    changed = template(arena, by, {MEMORY: "30"})
    changed["metadata"]["name"] = by
    [warning] = api.warnings("PUT", path, body=changed, query=DRY)
    assert "; did you mean 30Gi?" in warning
    api.delete(path)


@pytest.mark.parametrize(
    ("requests", "fields", "warning"),
    [
        pytest.param(
            {GPU: "50"},
            {"schedulerName": "berth-schedular"},
            'spec.schedulerName: "berth-schedular"; did you mean berth-scheduler?',
            id="a scheduler name",
        ),
        pytest.param(
            {NVIDIA: "1"},
            {"schedulerName": "berth"},
            'spec.schedulerName: "berth"; did you mean berth-scheduler?',
            id="the beginning of one",
        ),
        pytest.param(
            {GPU: "50"},
            {"annotations": {"scheduling.koordinator.sh/device-alocate-hint": "{}"}},
            f"scheduling.koordinator.sh/device-alocate-hint: did you mean the annotation {HINT}?",
            id="a misspelt name of another system",
        ),
        pytest.param(
            {GPU: "2"}, {}, f"{GPU}: 2; did you mean kubernetes.io/gpu: 200?", id="hundredths that may be cards"
        ),
    ],
)
def test_doubts_are_warnings_on_pods_and_templates(
    arena: Arena, requests: dict[str, str], fields: dict[str, Any], warning: str
) -> None:
    for manifest in (pod(arena, WEBHOOK, requests, **fields), template(arena, WEBHOOK, requests, **fields)):
        [text] = warned(arena, manifest)
        assert text.startswith(warning)


def overcommitted(name: str, **amounts: tuple[str, str]) -> Manifest:
    """Return a container with (requests, limits) of each `kubernetes.io/` resource."""
    of = [{f"kubernetes.io/{key.replace('_', '-')}": both[index] for key, both in amounts.items()} for index in (0, 1)]
    return {"name": name, "image": "none", "resources": {"requests": of[0], "limits": of[1]}}


def seeing(cards: str, name: str = "CUDA_VISIBLE_DEVICES", **limits: str) -> dict[str, list[Manifest]]:
    """Return the containers of a pod that chooses cards by a variable."""
    variables = [{"name": name, "value": cards}, {"name": "OTHER"}]
    return {"containers": [{"name": "main", "image": "none", "env": variables, "resources": {"limits": limits}}]}


WARNED_BY_POLICY = [
    *(
        pytest.param(
            {},
            seeing(cards, **limits),
            f"container main has CUDA_VISIBLE_DEVICES={cards}, which requests no card and numbers the container's own "
            "cards from 0; did you mean to leave it out?",
            id=f"cards {cards} of {limits}",
        )
        for cards, limits in (("3", {}), ("3", {GPU: "300"}), ("0, 1", {MEMORY: "20Gi"}), ("GPU-1", {NVIDIA: "1"}))
    ),
    pytest.param(
        {},
        seeing("3", "HIP_VISIBLE_DEVICES", **{"amd.com/gpu": "1"}),
        "container main has HIP_VISIBLE_DEVICES=3, which requests no card and numbers the container's own ",
        id="cards by the variable of ROCm",
    ),
    pytest.param(
        {},
        annotated(**{"slurm.schedmd.com/gpu": "2", "a/gpu-name": "b"}),
        "annotation slurm.schedmd.com/gpu: did you mean the resource kubernetes.io/gpu: 200, in hundredths of a card?",
        id="an annotation like a resource",
    ),
    pytest.param(
        {},
        annotated(**{"example.com/gpus": "h100"}),
        "annotation example.com/gpus: did you mean the resource kubernetes.io/gpu, in hundredths of a card?",
        id="an annotation like a resource without a number",
    ),
    pytest.param(
        {},
        {"containers": [overcommitted("main", gpu=("100", "800"))]},
        "container main: kubernetes.io/gpu: 100 in requests and 800 in limits; "
        "Berth allocates what is requested; did you mean 800 in both?",
        id="limits above requests",
    ),
    pytest.param(
        {},
        {
            "containers": [overcommitted("a", gpu_core=("50", "50"), gpu_memory=("512Mi", "20Gi"))],
            "initContainers": [overcommitted("b", rdma=("1", "100"))],
        },
        "container b: kubernetes.io/rdma: 1 in requests and 100 in limits; "
        "Berth allocates what is requested; did you mean 100 in both?; "
        "container a: kubernetes.io/gpu-memory: 512Mi in requests and 20Gi in limits; "
        "Berth allocates what is requested; did you mean 20Gi in both?",
        id="limits above requests, in two containers",
    ),
    pytest.param(
        {},
        {"containers": [{**overcommitted("main", gpu=("50", "50")), "securityContext": {"privileged": True}}]},
        "container main: with securityContext.privileged: true, it sees all cards of the node, whatever it "
        "requests; remove this field",
        id="privileged",
    ),
    pytest.param(
        {GPU: "0", NVIDIA: "0"},
        {},
        "kubernetes.io/gpu: 0, nvidia.com/gpu: 0 in all containers requests no device",
        id="an amount of zero in all containers",
    ),
    pytest.param(
        {GPU: "50"},
        annotated(**{KOORDINATOR + "gpu-model": "*A100*"}),
        "koordinator.sh/gpu-model: did you mean the annotation berth.dev/gpu-model?",
        id="a key of Berth under a foreign prefix",
    ),
    pytest.param(
        {GPU: "200"},
        annotated(**{"berth.io/gpu-topology-policy": "required", "node.koordinator.sh/device-allocate-hint": "{}"}),
        "berth.io/gpu-topology-policy: did you mean the annotation berth.dev/gpu-topology-policy? "
        f"node.koordinator.sh/device-allocate-hint: did you mean the annotation {HINT}?",
        id="two keys under foreign prefixes",
    ),
    pytest.param(
        {GPU: "50"},
        annotated(**{HINT.replace("device-allocate-hint", "gpu-model"): "*A100*"}),
        "scheduling.koordinator.sh/gpu-model: did you mean the annotation berth.dev/gpu-model?",
        id="a key of Berth under the prefix of Koordinator's hints",
    ),
    pytest.param(
        {GPU: "50"},
        annotated(**{"gpu-model": "*A100*", "device-allocate-hint": "{}"}),
        "gpu-model: did you mean the annotation berth.dev/gpu-model? "
        f"device-allocate-hint: did you mean the annotation {HINT}?",
        id="keys without a prefix",
    ),
    pytest.param(
        {"nvidia.com/mig-1g.10gb": "0"},
        {},
        "nvidia.com/mig-1g.10gb: 0 in all containers requests no device",
        id="no MIG instance in all containers",
    ),
    pytest.param(
        {"amd.com/cpx_nps4": "0"},
        {},
        "amd.com/cpx_nps4: 0 in all containers requests no device",
        id="no partition in all containers",
    ),
    pytest.param(
        {GPU: "50"},
        {"schedulerName": "volcano"},
        'spec.schedulerName: "volcano" is not Berth\'s, so no device would be allocated for kubernetes.io/gpu; '
        f"write spec.schedulerName: {names.SCHEDULER} or ",
        id="a scheduler that is not Berth's",
    ),
    pytest.param(
        {NVIDIA: "1"},
        {"schedulerName": "default-scheduler", **annotated(**dict.fromkeys(READ_BY_BERTH, "2"))},
        'spec.schedulerName: "default-scheduler" (also if it is not set) does not read '
        f"{', '.join(f'annotation {name}' for name in READ_BY_BERTH)}; write spec.schedulerName: {names.SCHEDULER} or ",
        id="all annotations of Berth on a pod of kube-scheduler",
    ),
    pytest.param(
        {NVIDIA: "1"},
        {"schedulerName": "default-scheduler", "labels": {names.ROUTING: "devices"}},
        f"{names.ROUTING} has no effect on a pod: it is a label of Namespaces",
        id="the label of a namespace on a pod",
    ),
    pytest.param(
        {},
        {"schedulerName": "default-scheduler", **annotated(**{names.CARDS_KEY: "claims"})},
        f"{names.CARDS_KEY} has no effect on a pod: it is a label of Nodes",
        id="the label of a Node as an annotation of a pod",
    ),
    *(
        pytest.param(
            {},
            {"schedulerName": scheduler, "labels": dict.fromkeys(READ_BY_BERTH, "2")},
            AS_LABELS,
            id=f"all annotations of Berth as labels of a pod of {scheduler}",
        )
        for scheduler in ("default-scheduler", "volcano")
    ),
    pytest.param(
        {},
        {"schedulerName": "default-scheduler", "labels": {names.POD_GROUP_LABEL: "a"}},
        f"does not read label {names.POD_GROUP_LABEL}; write ",
        id="a gang's member without devices",
    ),
    pytest.param(
        {},
        {"schedulerName": "volcano", "labels": {names.POD_GROUP_LABEL: "a"}, **annotated(**{names.POD_GROUP: "a"})},
        f'spec.schedulerName: "volcano" does not read annotation {names.POD_GROUP}; write ',
        id="a gang's member at another scheduler, which may read the label",
    ),
]
WARNED_BY_BOTH = [
    pytest.param(
        {NVIDIA: "1"},
        annotated(**{GANG + "min-availble": "2"}),
        f"{GANG}min-availble: did you mean the annotation {GANG}min-available?",
        id="a misspelt name of Koordinator's gangs",
    ),
    pytest.param(
        {NVIDIA: "1"},
        annotated(**{"scheduling.koordinator.sh/device-joint-allocat": "{}"}),
        "scheduling.koordinator.sh/device-joint-allocat: did you mean the annotation "
        "scheduling.koordinator.sh/device-joint-allocate?",
        id="the nearest of several names",
    ),
    pytest.param(
        {NVIDIA: "1"},
        annotated(**{"scheduling.koordinator.sh/device-alocate-hint": "{}"}),
        f"scheduling.koordinator.sh/device-alocate-hint: did you mean the annotation {HINT}?",
        id="a misspelt name of another system",
    ),
    pytest.param(
        {GPU: "50"},
        {"schedulerName": "berth-schedular"},
        'spec.schedulerName: "berth-schedular"; did you mean berth-scheduler?',
        id="a misspelt scheduler",
    ),
    pytest.param(
        {NVIDIA: "1"},
        {"schedulerName": "berht-scheduler"},
        'spec.schedulerName: "berht-scheduler"; did you mean berth-scheduler?',
        id="swapped letters of a scheduler",
    ),
    pytest.param(
        {NVIDIA: "1"},
        {"schedulerName": "berth"},
        'spec.schedulerName: "berth"; did you mean berth-scheduler?',
        id="the beginning of a scheduler",
    ),
]


@pytest.mark.parametrize(("requests", "fields", "warning"), [*WARNED_BY_POLICY, *WARNED_BY_BOTH])
@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
def test_what_has_no_effect_is_accepted_with_a_warning(
    arena: Arena, by: str, requests: dict[str, str], fields: dict[str, Any], warning: str
) -> None:
    assert refusal(arena, by, requests, **fields) == ""
    for manifest in (pod(arena, by, requests, **fields), template(arena, by, requests, **fields)):
        [text] = warned(arena, manifest)
        assert warning in text


def test_annotations_as_labels_of_berths_pods_are_warned_about_without_the_webhook(arena: Arena) -> None:
    [text] = warned(arena, pod(arena, POLICY, {GPU: "50"}, labels=dict.fromkeys(READ_BY_BERTH, "2")))
    assert AS_LABELS in text


@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
def test_a_name_is_asked_about_once_though_kubectl_keeps_what_was_applied(arena: Arena, by: str) -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": '{"annotations":{"koordinator.sh/gpu-model":""}}'}
    annotations = {"koordinator.sh/gpu-model": "*A100*", **applied}
    [text] = warned(arena, pod(arena, by, {GPU: "50"}, annotations=annotations))
    assert text.count("did you mean") == 1


@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
def test_other_names_instances_and_partitions_are_not_warned_about(arena: Arena, by: str) -> None:
    annotations = {GANG + "name": "a", GANG + "min-available": "2", GANG + "timeout": "1s", "model": "a"}
    containers = [
        {"name": name, "image": "none", "resources": {"limits": {"nvidia.com/mig-1g.10gb": amount}}}
        for name, amount in (("a", "0"), ("b", "1"))
    ]
    assert warned(arena, pod(arena, by, {}, containers=containers, annotations=annotations)) == []
    for cards, limits in (
        ("0", {}),
        ("-1", {GPU: "100"}),
        ("0,1,2", {GPU: "300"}),
        ("1", {MEMORY: "20Gi", SHARED: "2"}),
        ("1", {NVIDIA: "2"}),
        ("5", {"nvidia.com/mig-1g.10gb": "1"}),
        ("5", {"amd.com/cpx_nps4": "1"}),
    ):
        fields = {**seeing(cards, **limits), **annotated(**({"a.b/gpu": "1"} if limits else {}))}
        assert warned(arena, pod(arena, by, {}, **fields)) == []


def test_a_gang_is_warned_about_unless_the_pod_may_become_berths(arena: Arena) -> None:
    fields = {"schedulerName": "default-scheduler", **annotated(**{names.POD_GROUP: "a"})}
    assert warned(arena, pod(arena, EXTENDER, {NVIDIA: "1"}, **fields)) == []
    assert warned(arena, pod(arena, EXTENDER, {}, **fields)) != []
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": "devices"}}})
    try:
        waiting.until(
            lambda: warned(arena, template(arena, WEBHOOK, {NVIDIA: "1"}, **fields)) == [],
            deadline=ACTIVE_SECONDS,
            what="the namespace's label",
        )
        assert warned(arena, template(arena, WEBHOOK, {}, **fields)) != []
        assert warned(arena, pod(arena, WEBHOOK, {NVIDIA: "1"}, **fields)) != []
        assert warned(arena, template(arena, POLICY, {NVIDIA: "1"}, **fields)) != []  # routing is off
    finally:
        arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": None}}})


def test_a_pod_that_only_its_claims_keep_from_berth_is_warned_about(arena: Arena) -> None:
    fields: Manifest = {
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}],
        "schedulerName": "default-scheduler",
    }
    deployment = template(arena, WEBHOOK, {NVIDIA: "2"}, **fields)
    assert warned(arena, deployment) == []
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": "devices"}}})
    try:
        [warning] = waiting.until(lambda: warned(arena, deployment), what="the label to be seen")
        assert (
            "the label berth.dev/routing routes no pod with spec.resourceClaims, so it stays with kube-sch" in warning
        )
        assert f"write spec.schedulerName: {names.SCHEDULER} or {arena.scheduler_name}" in warning
        assert warned(arena, template(arena, WEBHOOK, {"cpu": "1"}, **fields)) == []
        assert warned(arena, template(arena, WEBHOOK, {NVIDIA: "2"}, schedulerName="default-scheduler")) == []
    finally:
        arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {"berth.dev/routing": None}}})


def test_where_pods_are_not_routed_a_template_that_names_no_scheduler_is_warned_about(arena: Arena) -> None:
    manifest = template(arena, POLICY, {GPU: "50"}, schedulerName="default-scheduler")
    [text] = warned(arena, manifest)
    assert (
        'spec.schedulerName: "default-scheduler" (also if it is not set) allocates no device for kubernetes.io/gpu; '
        in text
    )
    manifest["metadata"]["labels"][BY] = WEBHOOK
    assert warned(arena, manifest) == []


@pytest.mark.parametrize("by", [POLICY, WEBHOOK])
def test_many_containers_are_within_the_budget(arena: Arena, by: str) -> None:
    amounts = {GPU: "50", RDMA: "50", "koordinator.sh/fpga": "50", "cpu": "1"}
    limited = {"image": "none", "resources": {"limits": amounts}}
    containers: list[Manifest] = [{"name": f"c{number}", **limited} for number in range(100)]
    assert refusal(arena, by, {}, containers=containers) == ""
    containers[-1] = {**containers[-1], "resources": {"limits": {**amounts, RDMA: "0.5"}}}
    assert "; did you mean 50?" in refusal(arena, by, {}, containers=containers)
    containers = [overcommitted(f"c{number}", gpu=("2", "2" if number else "100")) for number in range(100)]
    annotations = {f"a.b/gpu-modle-{number}": "" for number in range(1000)} | {"koordinator.sh/movable": "true"}
    variables = [*({"name": f"V{number}"} for number in range(99)), {"name": "CUDA_VISIBLE_DEVICES", "value": "0,777"}]
    containers = [dict[str, Any](each, env=variables) for each in containers]
    excess, visible, misspelt = warned(arena, pod(arena, by, {}, containers=containers, annotations=annotations))
    assert "container c0 has CUDA_VISIBLE_DEVICES=0,777, " in visible
    assert excess.endswith("did you mean 100 in both?")
    assert misspelt.endswith("did you mean the annotation berth.dev/movable?")
    annotations = {f"{GANG}network-topolgy-sp{number}": "" for number in range(1000)}
    questions = warned(arena, pod(arena, by, {GPU: "50"}, annotations=annotations))
    assert f"did you mean the annotation {GANG}network-topology-spec?" in questions[0]
    resources = {"limits": {f"nvidia.com/mig-{number}g.{number}gb": "0" for number in range(20)}}
    containers = [{"name": f"c{number}", "image": "none", "resources": resources} for number in range(40)]
    [nothing] = warned(arena, pod(arena, by, {}, containers=containers))
    assert nothing.endswith("nvidia.com/mig-9g.9gb: 0 in all containers requests no device")


def test_a_template_that_will_be_routed_to_berth_is_read(arena: Arena) -> None:
    fields = {"schedulerName": "default-scheduler"}
    assert warned(arena, pod(arena, WEBHOOK, {MEMORY: "20"}, **fields)) == []
    [warning] = warned(arena, template(arena, WEBHOOK, {MEMORY: "20"}, **fields))
    assert "; did you mean 20Gi?" in warning


def test_a_webhook_that_does_not_answer_stops_nothing(arena: Arena, webhook: Process) -> None:
    assert refusal(arena, WEBHOOK, {GPU: "1"}) != ""
    webhook.stop()
    assert refusal(arena, WEBHOOK, {GPU: "1"}) == ""
