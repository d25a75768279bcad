"""The chart renders what kustomize builds from manifests/, for values with the same meaning."""

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_api import words
from berth_operator.settings import configuration
from berth_operator.settings.flags import Settings
from charts import generate
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.manifests import documents
from tests.programs import chart, policies
from tests.programs.chart import RenderError

pytestmark = pytest.mark.usefixtures("helm")

ON: Final = {"enabled": True}
WEBHOOK: Final = {"by": "webhook"}
INJECTION: Final = {"runtimeClass": "nvidia"}
ISOLATION: Final = {"hamiCore": {**ON, "image": "berth.dev/hami-core:1", "version": "1"}}
SAME: Final[dict[str, tuple[tuple[str, ...], dict[str, Any]]]] = {
    "base": ((), {}),
    "policies": (
        ("isolation", "runtime-class", "device-plugin", "hami-core-library", "nics", "dra"),
        {"injection": INJECTION, "isolation": ISOLATION, "agent": {"devicePlugin": True}, "nics": ON, "dra": ON},
    ),
    "servers": (
        ("debug-api", "list-watch-api", "validation", "monitoring", "monitoring-prometheus-operator"),
        {
            "debugApi": ON,
            "listWatchApi": ON,
            "validation": WEBHOOK,
            "metrics": dict.fromkeys(("podMonitors", "prometheusRule", "dashboard", "rules"), ON),
        },
    ),
    "bindings": (("validation", "validation-bindings"), {"validation": {**WEBHOOK, "bindings": True}}),
    "without the visibility API": (("no-visibility",), {"visibility": {"enabled": False}}),
    "webhook": (
        ("webhook", "webhook-isolation", "webhook-runtime-class", "webhook-cert-manager", "mps", "nics"),
        {
            "admission": WEBHOOK,
            "injection": INJECTION,
            "isolation": {"mps": ON},
            "nics": ON,
            "webhook": {"certManager": True},
        },
    ),
    "unrouted": (
        ("isolation", "hami-core-library", "no-routing"),
        {"isolation": ISOLATION, "routing": {"enabled": False}},
    ),
    "webhook-unrouted": (("webhook", "no-routing"), {"admission": WEBHOOK, "routing": {"enabled": False}}),
    "extender": (
        ("isolation", "hami-core-library", "runtime-class", "extender", "extender-cert-manager"),
        {"injection": INJECTION, "isolation": ISOLATION, "extender": {"enabled": True, "certManager": True}},
    ),
    "mps": (("isolation", "mps", "dra"), {"isolation": {"mps": ON}, "dra": ON}),
    "isolation": (
        ("isolation", "device-plugin", "mps", "hami-core-library"),
        {
            "agent": {"devicePlugin": True},
            "isolation": {"mps": ON, **ISOLATION},
        },
    ),
    "evictions": (
        ("evictions", "defragmentation", "claims", "kueue"),
        {
            "kueue": ON,
            "evictions": {"perMinute": 2},
            "defragmentation": {"atOnce": 1},
            "claims": {"drivers": ["gpu.berth.dev"]},
        },
    ),
    "gangs": (
        ("gangs-grove", "gangs-jobset", "gangs-kubeflow", "gangs-lws", "gangs-ray"),
        {"gangs": {"grove": True, "jobset": True, "kubeflow": True, "lws": True, "ray": True}},
    ),
    "webhook-extender": (("webhook", "extender", "webhook-extender"), {"admission": WEBHOOK, "extender": ON}),
}
"""Name -> components of kustomize, and values of the chart."""


def profile(strategy: str) -> dict[str, Any]:
    """Return a profile with this strategy for nodes."""
    return {"schedulerName": strategy.lower(), "strategy": {"nodes": strategy}}


ONLY_IN_KUSTOMIZE: Final = {"Namespace/berth-system"}
"""Helm creates the release's namespace itself."""
ADDED_LABELS: Final = r"app\.kubernetes\.io/(instance|version|managed-by)|helm\.sh/.*"


def test_nics_of_other_plugins_and_the_variable_of_nccl_are_flags() -> None:
    nics = {"enabled": True, "ncclIbHca": True, "resources": {"nvidia.com/hostdev": 100, "rdma/a": 1}}
    rendered = chart.rendered({"nics": nics, "validation": WEBHOOK})
    for kind, flag in (
        ("Deployment/berth-operator", "--nic-resources=nvidia.com/hostdev=100,rdma/a=1"),
        ("Deployment/berth-webhook", "--nic-resources=nvidia.com/hostdev=100,rdma/a=1"),
        ("Deployment/berth-webhook", "--nics"),
        ("DaemonSet/berth-agent", "--nics"),
        ("DaemonSet/berth-agent", "--nccl-ib-hca"),
    ):
        assert flag in rendered[kind]["spec"]["template"]["spec"]["containers"][0]["args"]


def test_a_device_class_provides_an_extended_resource_only_on_request() -> None:
    named = chart.rendered({"dra": {**ON, "extendedResourceName": "nvidia.com/gpu"}})
    assert named["DeviceClass/gpu.berth.dev"]["spec"]["extendedResourceName"] == "nvidia.com/gpu"
    assert "extendedResourceName" not in chart.rendered({"dra": ON})["DeviceClass/gpu.berth.dev"]["spec"]
    assert "DeviceClass/gpu.berth.dev" not in chart.rendered({})


def test_a_device_class_of_a_profile_provides_the_resource_of_nvidias_plugin_only_on_request() -> None:
    rendered = chart.rendered({"dra": {**ON, "migProfiles": ["3g.40gb", "1g.10gb+me"]}})
    media = rendered["DeviceClass/mig-1g.10gb.me.gpu.berth.dev"]["spec"]
    attributes = 'device.attributes["gpu.berth.dev"]'
    expression = (
        f'device.driver == "gpu.berth.dev" && {attributes}.?type.orValue("") == "mig" '
        f'&& {attributes}.?profile.orValue("") == "1g.10gb+me"'
    )
    assert media == {
        "extendedResourceName": "nvidia.com/mig-1g.10gb.me",
        "selectors": [{"cel": {"expression": expression}}],
    }
    assert "DeviceClass/mig-3g.40gb.gpu.berth.dev" in rendered
    assert not any("DeviceClass/mig-" in name for name in chart.rendered({"dra": ON}))
    with pytest.raises(RenderError, match="dra\\.enabled"):
        chart.rendered({"dra": {"migProfiles": ["3g.40gb"]}})
    with pytest.raises(RenderError, match="migProfiles"):
        chart.rendered({"dra": {**ON, "migProfiles": ['3g.40gb" || true']}})


def test_only_the_container_that_makes_mig_instances_has_a_capability() -> None:
    values = {"dra": ON, "agent": {"devicePlugin": True}}
    closed = chart.rendered(values)["DaemonSet/berth-agent"]["spec"]["template"]["spec"]
    with_partitions = chart.rendered({**values, "dra": {**ON, "partitions": ON}})
    opened = with_partitions["DaemonSet/berth-agent"]["spec"]["template"]["spec"]
    [agent], [maker] = opened["containers"], opened["initContainers"]
    assert maker["restartPolicy"] == "Always", "a sidecar, which kubelet starts before the agent and ends after it"

    # The agent keeps its rights.
    assert agent["args"] == [*closed["containers"][0]["args"], "--dra-partitions=/run/berth/partitions"]
    assert agent["securityContext"] == closed["containers"][0]["securityContext"]
    [socket] = [mount for mount in agent["volumeMounts"] if mount not in closed["containers"][0]["volumeMounts"]]
    assert maker["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    assert maker["securityContext"]["readOnlyRootFilesystem"]
    assert not maker["securityContext"]["allowPrivilegeEscalation"]
    assert "privileged" not in maker["securityContext"]
    assert {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"} in maker["env"]

    # It has the socket and its record, and nothing of kubelet or the API server.
    record = {"name": "partitions-record", "mountPath": "/var/lib/berth-partitions"}
    token = {"name": "no-token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    assert maker["volumeMounts"] == [socket, record, token]
    assert maker["args"] == [f"--state={record['mountPath']}", f"--socket={socket['mountPath']}"]
    added = {volume["name"]: volume for volume in opened["volumes"] if volume not in closed["volumes"]}
    assert added.keys() == {"partitions", "partitions-record", "no-token"}
    assert "emptyDir" in added["partitions"]
    assert "emptyDir" in added["no-token"]
    assert added["partitions-record"]["hostPath"]["path"] == record["mountPath"]


@pytest.mark.parametrize(("drivers", "is_own"), [(["gpu.berth.dev"], True), (["*"], True), (["dra.net"], False)])
def test_the_agents_know_whether_their_pools_are_berths(drivers: list[str], *, is_own: bool) -> None:
    agent = chart.rendered({"dra": ON, "claims": {"drivers": drivers}})["DaemonSet/berth-agent"]
    assert ("--dra-own-pools" in agent["spec"]["template"]["spec"]["containers"][0]["args"]) == is_own


@pytest.mark.parametrize(
    ("values", "is_kept_out"), [({"pools": ["dra.net/a"]}, True), ({}, False), ({"taint": False}, False)]
)
def test_other_schedulers_are_kept_out_of_given_pools(values: dict[str, Any], *, is_kept_out: bool) -> None:
    given = {} if values == {} else {"drivers": ["dra.net"]}
    objects = chart.rendered({"claims": {**given, **values}})
    [operator] = objects["Deployment/berth-operator"]["spec"]["template"]["spec"]["containers"]
    assert ("--taint-own-pools" in operator["args"]) == is_kept_out
    policy = objects.get("ValidatingAdmissionPolicy/berth-claims-pools")
    assert (policy is not None) == is_kept_out
    if policy is not None:
        own = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
        assert json.loads(own["drivers"]) == ["dra.net"]
        assert json.loads(own["pools"]) == ["dra.net/a"]


@pytest.mark.parametrize(
    ("agent", "dra", "expected"),
    [
        ({}, {}, {"rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}}),
        ({}, {"maxSurge": 3}, {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 0}}),
        (
            {"updateStrategy": {"type": "RollingUpdate"}},
            {},
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "10%", "maxUnavailable": 0}},
        ),
        ({"updateStrategy": {"rollingUpdate": None}}, {}, {"maxSurge": "10%", "maxUnavailable": 0}),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}, {"maxSurge": ""}, {"maxUnavailable": 1}),
        ({"hostNetwork": True}, {}, {"maxUnavailable": "10%"}),
        ({"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}, {}, {"type": "OnDelete"}),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 1}}}, {}, "maxUnavailable 1 and dra.maxSurge 10%"),
        ({"updateStrategy": {"rollingUpdate": {"maxSurge": 2}}}, {}, "maxSurge 2 differs from dra.maxSurge 10%"),
    ],
)
def test_upgrades_of_the_agent_with_the_driver(
    agent: Mapping[str, Any], dra: Mapping[str, Any], expected: Mapping[str, Any] | str
) -> None:
    values = {"agent": agent, "dra": {**ON, **dra}}
    if isinstance(expected, str):
        with pytest.raises(RenderError, match=expected):
            chart.rendered(values)
        return
    spec = chart.rendered(values)["DaemonSet/berth-agent"]["spec"]
    strategy = spec["updateStrategy"]
    assert expected in (strategy, strategy.get("rollingUpdate"))


@pytest.mark.parametrize(
    ("folder", "flags"),
    [("/var/lib/kubelet", []), ("/var/lib/k0s/kubelet/", ["--kubelet-folder=/var/lib/k0s/kubelet"])],
)
def test_the_driver_of_claims_finds_kubelet_in_its_folder(folder: str, flags: list[str]) -> None:
    agent = chart.rendered({"dra": ON, "agent": {"kubeletDir": folder}})["DaemonSet/berth-agent"]
    spec, root = agent["spec"]["template"]["spec"], folder.rstrip("/")
    assert [flag for flag in container(agent)["args"] if flag.startswith("--kubelet-folder")] == flags
    of_node = {volume["name"]: volume["hostPath"] for volume in spec["volumes"]}
    assert of_node["pod-resources"]["path"] == f"{root}/pod-resources"
    # Kubelet calls the sockets by the path that the agent knows.
    mounts = {mount["name"]: mount["mountPath"] for mount in container(agent)["volumeMounts"]}
    for name, path in (("dra", "plugins/gpu.berth.dev"), ("plugins-registry", "plugins_registry")):
        assert of_node[name]["path"] == mounts[name] == f"{root}/{path}"
    # A folder that does not exist shows that the value is wrong.
    assert of_node["plugins-registry"]["type"] == "Directory"


@pytest.mark.parametrize("dra", [{}, ON])
def test_an_agent_that_fails_at_its_start_stops_the_rollout(dra: Mapping[str, Any]) -> None:
    assert chart.rendered({"dra": dra})["DaemonSet/berth-agent"]["spec"]["minReadySeconds"] == 10


def test_helm_finds_no_fault() -> None:
    assert "0 chart(s) failed" in chart.helm("lint", chart.CHART, "--strict")


def test_the_generated_files_are_current() -> None:
    stale = [path.name for path, text in generate.files().items() if path.read_text() != text]
    assert stale == [], "run `make generate`"
    assert generate.SCHEMA.read_text() == generate.schema(), "run `make generate`"


@pytest.mark.parametrize("name", SAME)
def test_chart_and_kustomize_install_the_same(tmp_path: Path, name: str) -> None:
    components, values = SAME[name]
    built = policies.built(tmp_path, *components)
    by_kustomize = {f"{each['kind']}/{each['metadata']['name']}": each for each in built}
    rendered = chart.rendered(values)
    by_chart = {key: each for key, each in rendered.items() if not is_hook(each)}
    assert by_chart.keys() == by_kustomize.keys() - ONLY_IN_KUSTOMIZE
    for key, document in by_chart.items():
        assert comparable(document) == comparable(by_kustomize[key]), key


def is_hook(document: Manifest) -> bool:
    return "helm.sh/hook" in document["metadata"].get("annotations", {})


def comparable(document: Manifest) -> Manifest:
    """Return an object without what Helm adds, and with lists whose order means nothing in one order."""
    labels = document["metadata"].get("labels", {})
    kept = {key: value for key, value in labels.items() if not re.fullmatch(ADDED_LABELS, key) and value != "berth"}
    metadata = {**document["metadata"], "labels": kept}
    out = {**document, "metadata": metadata}
    if "berth.yaml" in document.get("data", {}):
        fields = yaml.safe_load(document["data"]["berth.yaml"])
        # With kustomize, users write the pools that are Berth's into the ConfigMap.
        out["data"] = {"berth.yaml": {key: value for key, value in fields.items() if key != "claims"}}
    if "template" in document.get("spec", {}):
        out["spec"] = {**document["spec"], "template": comparable_template(document["spec"]["template"])}
    return out


def comparable_template(template: Mapping[str, Any]) -> dict[str, Any]:
    spec = template["spec"]
    [container] = spec["containers"]
    if "initContainers" in spec:
        spec = {**spec, "initContainers": [{**each, "imagePullPolicy": None} for each in spec["initContainers"]]}
    container = {
        **container,
        "imagePullPolicy": None,
        "args": sorted(arguments(container["args"])),
        **{key: by_name(container.get(key, ())) for key in ("env", "ports", "volumeMounts")},
    }
    return {**template, "spec": {**spec, "containers": [container], "volumes": by_name(spec["volumes"])}}


def arguments(args: Iterable[str]) -> list[str]:
    """Return the arguments; a server's are without those by which the chart repeats its defaults."""
    args = list(args)
    if args[0] not in {"webhook", "api"}:
        return args
    return [each for each in args if not each.startswith(("--namespace=", "--host=", "--scheduler-names="))]


def by_name(items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(items, key=lambda item: str(item["name"]))


# --- namespace and scheduler names ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAME)
def test_namespace_and_scheduler_names_reach_every_object(name: str) -> None:
    profiles = [{"schedulerName": "team-a"}, {"schedulerName": "team-b"}]
    objects = chart.rendered({**SAME[name][1], "profiles": profiles}, namespace="devices")
    text = json.dumps([each for key, each in objects.items() if not key.startswith("ConfigMap/berth-dashboard")])
    assert "berth-system" not in text
    assert "berth-scheduler" not in text
    assert text.count("devices") > 10
    for key, each in objects.items():
        for condition in conditions(each):
            if condition["name"] in {"of-berth", "with-names-of-berth"}:
                assert 'in ["team-a", "team-b"' in condition["expression"], key


def conditions(document: Manifest) -> list[dict[str, str]]:
    """Return the conditions of a policy, or of all webhooks of a configuration."""
    parts = [document.get("spec", {}), *document.get("webhooks", ())]
    return [condition for part in parts for condition in part.get("matchConditions", ())]


def test_routed_pods_get_the_first_scheduler_name() -> None:
    objects = chart.rendered({"profiles": [{"schedulerName": "team-a"}, {"schedulerName": "team-b"}]})
    [mutation] = objects["MutatingAdmissionPolicy/berth-routing"]["spec"]["mutations"]
    assert '"/spec/schedulerName", value: "team-a"' in mutation["jsonPatch"]["expression"]
    args = container(
        chart.rendered({"admission": WEBHOOK, "profiles": [{"schedulerName": "team-a"}, {"schedulerName": "team-b"}]})[
            "Deployment/berth-webhook"
        ]
    )["args"]
    assert "--scheduler-names=team-a,team-b" in args


def container(document: Manifest) -> Manifest:
    [only] = document["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


@pytest.mark.parametrize(("enabled", "namespace"), [(True, "berth-agent-system"), (False, chart.NAMESPACE)])
def test_the_cleanup_deletes_agents_only_where_it_has_the_right(*, enabled: bool, namespace: str) -> None:
    objects = chart.rendered({"agent": {"enabled": enabled}})
    assert f"--agent-namespace={namespace}" in container(objects["Job/berth-cleanup"])["args"]
    roles = [each["metadata"]["namespace"] for key, each in objects.items() if key.startswith("Role/berth-cleanup")]
    assert namespace in roles


@pytest.mark.parametrize("namespace", ["berth-agent-system", "gpus", chart.NAMESPACE])
def test_the_operator_knows_the_namespace_of_the_agents_without_a_flag(namespace: str) -> None:
    """Helm installs a version before, which has agents elsewhere and does not know the flag, to go back to it."""
    operator = container(chart.rendered({"agent": {"namespace": namespace}})["Deployment/berth-operator"])
    assert not any("agent-pods-namespace" in each for each in operator["args"])
    given = {each["name"]: each.get("value") for each in operator["env"]}
    assert given.get("BERTH_AGENT_PODS_NAMESPACE", "berth-agent-system") == namespace


@pytest.mark.parametrize("file", chart.RECOMMENDED, ids=lambda file: str(file.stem))
def test_the_operator_accepts_recommended_values(file: Path) -> None:
    """The chart passes flags and the configuration on unread."""
    objects = chart.rendered(yaml.safe_load(file.read_text()))
    configuration.parse(objects["ConfigMap/berth-operator"]["data"]["berth.yaml"].encode(), file)
    Settings(_cli_parse_args=[*container(objects["Deployment/berth-operator"])["args"], "--pod-ip=10.0.0.1"])


@pytest.mark.parametrize("name", ["berth-webhook", "berth-api"])
def test_a_server_that_the_api_server_calls_outlasts_its_endpoint(name: str) -> None:
    objects = chart.rendered({"admission": WEBHOOK, "listWatchApi": ON})
    assert container(objects[f"Deployment/{name}"])["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}


@pytest.mark.parametrize("name", ["berth-operator", "berth-webhook", "berth-api"])
def test_with_the_nodes_network_an_old_pod_ends_before_its_successor(name: str) -> None:
    """The new one needs the ports that the old one has on its node."""
    network = {"hostNetwork": True}
    values = {"operator": network, "webhook": network, "listWatchApi": {**ON, **network}, "admission": WEBHOOK}
    objects = chart.rendered(values)
    rolling = objects[f"Deployment/{name}"]["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}
    assert objects[f"PodDisruptionBudget/{name}"]["spec"]["maxUnavailable"] == 1


def test_the_daemon_of_mps_has_an_account_without_a_token() -> None:
    objects = chart.rendered({"isolation": {"mps": ON}})
    pod = objects["DaemonSet/berth-mps"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("berth-mps", False)
    bound = [each for each in objects.values() if each["kind"].endswith("RoleBinding")]
    assert not any(subject["name"] == "berth-mps" for binding in bound for subject in binding["subjects"])


def test_the_job_of_the_definitions_has_time_for_a_node_that_starts() -> None:
    assert chart.rendered()["Job/berth-crds"]["spec"]["activeDeadlineSeconds"] == 600


# --- versions of Kubernetes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", [30, 35, 36, 37])
def test_each_version_gets_what_its_api_server_serves(minor: int) -> None:
    objects = chart.rendered(kube_version=f"1.{minor}.0")
    by_policies = [key for key in objects if key.startswith("MutatingAdmission")]
    by_webhook = {"MutatingWebhookConfiguration/berth-injection", "Deployment/berth-webhook"} & objects.keys()
    assert (len(by_policies), len(by_webhook)) == ((10, 0) if minor >= 36 else (0, 2))


IN_DEVICES: Final = ("In", ["devices"])


@pytest.mark.parametrize("version", ["1.35.0", "1.36.0"])
@pytest.mark.parametrize(
    ("default", "words", "devices"),
    [
        ("own", ("In", ["words", "devices"]), IN_DEVICES),
        ("words", ("NotIn", ["disabled", "own"]), IN_DEVICES),
        ("devices", ("NotIn", ["disabled", "own"]), ("NotIn", ["disabled", "own", "words"])),
    ],
)
def test_the_default_route_takes_the_namespaces_without_the_label(
    version: str, default: str, words: tuple[str, list[str]], devices: tuple[str, list[str]]
) -> None:
    objects = chart.rendered({"routing": {"default": default, "resources": ["example.com/npu"]}}, kube_version=version)
    if version < "1.36":
        hooks = {hook["name"]: hook for hook in objects["MutatingWebhookConfiguration/berth-injection"]["webhooks"]}
        selectors = [hooks[f"{name}.berth.dev"]["namespaceSelector"] for name in ("words", "devices")]
        assert "--routed-resources=example.com/npu" in container(objects["Deployment/berth-webhook"])["args"]
    else:
        of_policies = [
            objects[f"MutatingAdmissionPolicyBinding/berth-{name}"] for name in ("words-routing", "routing-devices")
        ]
        selectors = [binding["spec"]["matchResources"]["namespaceSelector"] for binding in of_policies]
        [served] = objects["MutatingAdmissionPolicy/berth-routing-devices"]["spec"]["variables"]
        assert served["expression"] == '["example.com/npu"]'
    for selector, expected in zip(selectors, (words, devices), strict=True):
        [found] = [each for each in selector["matchExpressions"] if each["key"] == "berth.dev/routing"]
        assert (found["operator"], found["values"]) == expected
    variables = objects["ValidatingAdmissionPolicy/berth-words"]["spec"]["variables"]
    [routed] = [variable["expression"] for variable in variables if variable["name"] == "routed"]
    assert f'.orValue("{"" if default == "own" else default}")' in routed
    arguments = container(objects["Deployment/berth-operator"])["args"]
    assert ("--routing=" + default in arguments) == (default != "own")


@pytest.mark.parametrize(
    ("values", "version", "message"),
    [
        ({}, "1.29.4", "requires kubeVersion: >=1.30.0-0"),
        ({"admission": {"by": "policies"}}, "1.35.0", "admission.by: policies need Kubernetes 1.36, this is v1.35.0"),
    ],
)
def test_what_a_version_lacks_is_said(values: dict[str, Any], version: str, message: str) -> None:
    with pytest.raises(RenderError, match=re.escape(message)):
        chart.rendered(values, kube_version=version)


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"agent": {"mig": "single"}}, "at '/agent': additional properties 'mig' not allowed"),
        ({"operator": {"replicas": "two"}}, "at '/operator/replicas': got string, want integer"),
        ({"migStrategy": "all"}, "at '/migStrategy': value must be one of <nil>, 'none', 'single', 'mixed'"),
        ({"deviceListStrategy": "cdi"}, "at '/deviceListStrategy': 'cdi' does not match pattern"),
        ({"admission": {"by": "magic"}}, "at '/admission/by': value must be one of 'auto', 'policies', 'webhook'"),
        (
            {"admission": {"addedKeys": {"pod": ["example.com/team"]}}},
            "at '/admission/addedKeys': additional properties 'pod' not allowed",
        ),
        ({"admission": {"addedKeys": {"pods": ["a b"]}}}, "at '/admission/addedKeys/pods/0': 'a b' does not match"),
        *(
            (
                {"admission": {"addedKeys": {"bindings": ["example.com/a", key]}}},
                f"admission.addedKeys.bindings: {key}; allowed",
            )
            for key in (
                "berth.dev/epoch",
                "model.berth.dev/A100",
                "main.devices.berth.dev/visible",
                "scheduling.koordinator.sh/device-allocated",
                "node.koordinator.sh/gpu-model",
            )
        ),
        ({"webhook": {"port": 70000}}, "at '/webhook/port': maximum: got 70,000, want 65,535"),
        ({"profiles": []}, "at '/profiles': minItems: got 0, want 1"),
        ({"profiles": [{"schedulerName": "a" * 64}]}, "at '/profiles/0/schedulerName': maxLength: got 64, want 63"),
        ({"memoryUnits": {"nvidia.com/gpumem": "1ki"}}, "'1ki' does not match pattern"),
        ({"memoryUnits": {"nvidia.com/gpumem": "0"}}, "'0' does not match pattern"),
        ({"trustedSchedulers": [{"name": "koord"}]}, "at '/trustedSchedulers/0': missing property 'account'"),
        ({"crds": {"keep": False}, "cleanup": {"enabled": False}}, "crds.keep: false needs cleanup.enabled: true"),
        ({"dra": {"migProfiles": ["1g.10gb"]}}, "dra.migProfiles needs dra.enabled: true"),
        (
            {"dra": {"partitions": ON}, "agent": {"devicePlugin": True}},
            "dra.partitions.enabled needs dra.enabled: true",
        ),
        (
            {"agent": {"devicePlugin": True}, "dra": {**ON, "partitions": {**ON, "securityContext": None}}},
            "dra.partitions has no securityContext",
        ),
        ({"dra": {**ON, "partitions": ON}}, "dra.partitions.enabled needs dra.enabled: true and agent.devicePlugin"),
        ({"amdProcesses": "kfd", "agent": {"hostPID": False}}, "amdProcesses: kfd needs agent.hostPID: true"),
        # Protections that would not be there.
        ({"isolation": {"default": "required"}}, "isolation.default: required needs isolation.mps.enabled: true or"),
        ({"isolation": {"default": "mps", **ISOLATION}}, "isolation.default: mps needs isolation.mps.enabled: true"),
        ({"isolation": {"default": "hami-core", "mps": ON}}, "hami-core needs isolation.hamiCore.enabled: true"),
        ({"isolation": {"default": "required", **ISOLATION}}, "first of isolation.order, mps, which needs"),
        ({"isolation": {"unlimitedShares": "deny"}}, "isolation.unlimitedShares: deny needs isolation.mps.enabled"),
        ({"isolation": {"unlimitedShares": "warn"}}, "isolation.unlimitedShares: warn needs isolation.mps.enabled"),
        ({"networkPolicy": {"metricsFrom": [{}]}}, "networkPolicy.metricsFrom needs networkPolicy.enabled: true"),
        # Values without an effect, or with another one.
        ({"profiles": [{"schedulerName": "default-scheduler"}]}, "profiles[0].schedulerName: default-scheduler is"),
        ({"profiles": [profile("None"), profile("Binpack")]}, "at '/profiles/1/strategy/nodes': value must be one of"),
        ({"profiles": [{"schedulerName": "a", "strategy": "Binpack"}]}, "at '/profiles/0/strategy': got string"),
        ({"profiles": [{"schedulerName": "a", "strategies": {}}]}, "additional properties 'strategies' not allowed"),
        ({"namespaceLimits": {"a": {"gpus": 8}}}, "at '/namespaceLimits/a': additional properties 'gpus' not allowed"),
        ({"namespaceLimits": {"a": {"gpu": "8 cards"}}}, "at '/namespaceLimits/a/gpu': '8 cards' does not match"),
        ({"modelAliases": {"big": []}}, "at '/modelAliases/big': minItems: got 0, want 1"),
        ({"claims": {"drivers": ["GPU"]}}, "at '/claims/drivers/0': 'GPU' does not match pattern"),
        ({"claims": {"taint": True}}, "claims.taint: true needs claims.drivers or claims.pools"),
        ({"dra": {"extendedResourceName": "nvidia.com/gpu"}}, "dra.extendedResourceName needs dra.enabled: true"),
        ({"kueue": {"flavors": {"a": "H100"}}}, "kueue.flavors needs kueue.enabled: true"),
        ({"nics": {"ncclIbHca": True}}, "nics.ncclIbHca: true needs nics.enabled: true"),
        ({"devicePluginConfig": {"version": "v1", "sharing": {"mps": {}}}}, "sharing needs agent.devicePlugin: true"),
        ({"routing": {"enabled": False, "default": "devices"}}, "routing.default: devices needs routing.enabled: true"),
        ({"routing": {"default": "words"}, "extender": ON}, "routing.default: words needs routing.enabled: true"),
    ],
)
def test_a_wrong_value_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RenderError) as refused:
        chart.rendered(values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("amount", "question"),
    [(8, "at most 8 % of one card.\n  Did you mean 800 (8 cards)?"), ("1", "mean 100 (1 card)?"), (100, ""), (0, "")],
)
def test_a_limit_of_less_than_one_card_is_asked_about(tmp_path: Path, amount: int | str, question: str) -> None:
    shutil.copytree(chart.CHART, tmp_path / "berth")
    text = '{{ include "berth.warnings" . | toJson }}'
    shown = f"{{kind: ConfigMap, apiVersion: v1, metadata: {{name: notes}}, data: {{text: {text}}}}}"
    (tmp_path / "berth/templates/shown.yaml").write_text(shown)
    values = {"namespaceLimits": {"team-a": {"gpu": amount}}}
    [notes] = [
        document["data"]["text"]
        for document in documents(chart.helm("template", "berth", tmp_path / "berth", values=values))
        if document["metadata"]["name"] == "notes"
    ]
    assert question in notes
    assert ("namespaceLimits.team-a.gpu" in notes) == bool(question)


def test_added_keys_reach_the_first_variable_of_each_policy_that_compares_labels_and_annotations() -> None:
    """With kustomize, a documented patch sets this variable in all of them."""
    added = {"bindings": ["example.com/team"], "nodes": ["other-berth.dev/a"]}
    objects = chart.rendered({"admission": {"addedKeys": added}, "claims": {"drivers": ["*"], "taint": True}})
    first = {
        key.partition("/")[2]: each["spec"].get("variables", [{"name": ""}])[0]
        for key, each in objects.items()
        if key.startswith("ValidatingAdmissionPolicy/")
    }
    assert {
        name: json.loads(each["expression"]) for name, each in first.items() if each["name"] == "added"
    } == dict.fromkeys(
        ("berth-agents", "berth-certificates", "berth-claims", "berth-claims-taints", "berth-operator-writes"), added
    )


def test_renamed_resources_and_tolerations_reach_the_policy_and_the_webhook() -> None:
    injection = {"nvidiaResources": ["nvidia.com/a100", "nvidia.com/h100"], "tolerations": ["nvidia.com/gpu"]}
    values = {"injection": injection}

    by_policies = chart.rendered({**values, "admission": {"by": "policies"}})
    policy = by_policies["MutatingAdmissionPolicy/berth-injection"]["spec"]
    assert {"name": "renamed", "expression": '["nvidia.com/a100","nvidia.com/h100"]'} in policy["variables"]
    assert {"name": "tolerated", "expression": '["nvidia.com/gpu"]'} in policy["variables"]

    by_webhook = chart.rendered({**values, "admission": {"by": "webhook"}})
    [webhook] = by_webhook["Deployment/berth-webhook"]["spec"]["template"]["spec"]["containers"]
    assert "--nvidia-resources=nvidia.com/a100,nvidia.com/h100" in webhook["args"]
    assert "--tolerations=nvidia.com/gpu" in webhook["args"]


def test_cert_manager_writes_the_secret_that_the_extender_mounts() -> None:
    extender = {"enabled": True, "certManager": True, "certificateSecret": "own"}
    objects = chart.rendered({"extender": extender})
    secrets = {
        volume["secret"]["secretName"]
        for volume in objects["Deployment/berth-operator"]["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "extender"
    }
    assert secrets == {objects["Certificate/berth-extender"]["spec"]["secretName"]} == {"own"}
    assert objects["Certificate/berth-extender-ca"]["spec"]["secretName"] == "berth-extender-ca"


@pytest.mark.parametrize(("port", "known"), [(9405, None), (0, None), (9500, "9500")])
def test_the_operator_knows_where_agents_serve_metrics(port: int, known: str | None) -> None:
    operator = container(chart.rendered({"agent": {"metricsPort": port}})["Deployment/berth-operator"])
    assert {each["name"]: each.get("value") for each in operator["env"]}.get("BERTH_AGENT_METRICS_PORT") == known


def test_the_operator_may_read_the_agents_metrics_whoever_else_may() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    objects = chart.rendered({"networkPolicy": {"enabled": True, "metricsFrom": [prometheus]}}, namespace="gpus")
    [of_agents] = objects["NetworkPolicy/berth-agent"]["spec"]["ingress"]
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gpus"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "berth-operator"}},
    }
    assert of_agents == {"ports": [{"port": "metrics"}], "from": [prometheus, operator]}
    *_, of_operator = objects["NetworkPolicy/berth-operator"]["spec"]["ingress"]
    assert of_operator == {"ports": [{"port": "metrics"}], "from": [prometheus]}


@pytest.mark.parametrize("size", ["16", "1k", "2M", "1G", "1Ki", "10Mi", "1Gi"])
def test_a_unit_that_the_chart_accepts_is_one_for_the_operator(size: str) -> None:
    name = next(iter(words.TABLE.units()))
    operator = container(chart.rendered({"memoryUnits": {name: size}})["Deployment/berth-operator"])
    [units] = [each.partition("=")[2] for each in operator["args"] if each.startswith("--memory-units=")]
    assert words.read_units(units)


def test_units_reach_the_policy_the_operator_and_the_webhook() -> None:
    [name] = (name for name, unit in words.TABLE.units().items() if unit == words.table.GIB)
    rendered = chart.rendered({"memoryUnits": {name: "1Mi"}, "validation": WEBHOOK})
    variables = rendered["ValidatingAdmissionPolicy/berth-words"]["spec"]["variables"]
    assert {"name": "units", "expression": json.dumps({name: "1Mi"}, separators=(",", ":"))} in variables
    for deployment in ("berth-operator", "berth-webhook"):
        [container] = rendered[f"Deployment/{deployment}"]["spec"]["template"]["spec"]["containers"]
        assert f"--memory-units={name}=1Mi" in container["args"]


def test_warnings_know_the_profiles_and_the_trusted_schedulers() -> None:
    account = "system:serviceaccount:koordinator-system:koord-scheduler"
    values = {
        "profiles": [{"schedulerName": "team-a"}, {"schedulerName": "team-b"}],
        "trustedSchedulers": [{"name": "koord-scheduler", "account": account}],
    }
    policy = chart.rendered(values)["ValidatingAdmissionPolicy/berth-warnings"]["spec"]
    assert policy["variables"][:2] == [
        {"name": "schedulers", "expression": '["team-a","team-b"]'},
        {"name": "trusted", "expression": '["koord-scheduler"]'},
    ]
