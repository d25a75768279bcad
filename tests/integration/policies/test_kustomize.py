"""Base and components as kubectl combines them, and as the API server accepts them."""

import copy
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api.request.isolation import ALLOWED
from berth_base import start
from berth_operator.apis.extender import endpoints
from berth_operator.settings.flags import Settings
from devcluster import Arena, Cluster
from devcluster.building import programs
from devcluster.control_plane.api import Manifest
from tests.programs import kube_scheduler, policies

ROOT = Path(__file__).parents[3]
ALONE = "MutatingAdmissionPolicy/berth-injection"
ROUTING = "MutatingAdmissionPolicy/berth-routing"
ROUTING_BINDING = "MutatingAdmissionPolicyBinding/berth-routing"
OPT_IN = {"words": "berth-words-routing", "devices": "berth-routing-devices"}
"""Value of the namespace's label -> what routes pods by further names there."""
BY_LABEL = {f"MutatingAdmissionPolicy{kind}/{name}" for kind in ("", "Binding") for name in OPT_IN.values()}
REFUSING = "ValidatingAdmissionPolicy/berth-injection"
OURS = 'object.spec.schedulerName in ["berth-scheduler"]'
RENAMING = "MutatingAdmissionPolicy/berth-words-renaming"
REFUSAL = "ValidatingAdmissionPolicy/berth-unscheduled"
WARNINGS = "ValidatingAdmissionPolicy/berth-warnings"
WORDS = "ValidatingAdmissionPolicy/berth-words"
HOOKS = "MutatingWebhookConfiguration/berth-injection"

Build = Callable[..., dict[str, Manifest]]


@pytest.fixture(scope="module")
def build(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Build:  # noqa: ARG001 - so that its programs are built
    """Return what builds base and components once for all tests."""
    folder, known = tmp_path_factory.mktemp("kustomize"), dict[str, list[Manifest]]()

    def put_together(*components: str, patches: Sequence[Any] = ()) -> dict[str, Manifest]:
        key = json.dumps([components, patches])
        if key not in known:
            known[key] = policies.built(folder, *components, patches=patches)
        return {f"{each['kind']}/{each['metadata']['name']}": each for each in copy.deepcopy(known[key])}

    return put_together


def test_the_base_injects_and_routes_by_policies(build: Build) -> None:
    built = build()
    assert {ALONE, ROUTING, REFUSAL} <= built.keys()
    assert "MutatingWebhookConfiguration/berth-injection" not in built


def test_the_webhook_stands_in_the_place_of_the_policy(build: Build) -> None:
    built = build("webhook")
    assert [name for name in built if name.startswith("MutatingAdmission")] == []
    assert {"MutatingWebhookConfiguration/berth-injection", "Deployment/berth-webhook"} <= built.keys()


def test_validation_comes_without_injection_by_the_webhook(build: Build) -> None:
    built = build("validation")
    assert {"ValidatingWebhookConfiguration/berth-validation", "Deployment/berth-webhook", ALONE} <= built.keys()
    assert "MutatingWebhookConfiguration/berth-injection" not in built
    assert [name for name in built if name.startswith("ValidatingAdmission") and "validation" in name] == []
    [hook] = built["ValidatingWebhookConfiguration/berth-validation"]["webhooks"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"]) == ("Ignore", 2)
    allowed = built["ClusterRole/berth-webhook"]["rules"]
    assert {name for rule in allowed for name in rule["resourceNames"]} == {"berth-injection", "berth-validation"}


def test_the_webhook_that_injects_validates_too(build: Build) -> None:
    assert build("validation").keys() - build("webhook").keys() == {
        *(ALONE, ALONE.replace("Policy", "PolicyBinding"), ROUTING, ROUTING_BINDING),
        *(RENAMING, RENAMING.replace("Policy", "PolicyBinding"), *BY_LABEL),
    }


def test_webhook_and_policy_validate_the_same_objects(build: Build) -> None:
    [hook] = build("validation")["ValidatingWebhookConfiguration/berth-validation"]["webhooks"]
    built = build()
    policy = built["ValidatingAdmissionPolicy/berth-validation"]["spec"]
    assert [{**each, "scope": "Namespaced"} for each in policy["matchConstraints"]["resourceRules"]] == hook["rules"]
    assert policy["failurePolicy"] == "Ignore"
    bindings = {
        name: built[f"ValidatingAdmissionPolicyBinding/berth-validation-{name}"] for name in ("pods", "templates")
    }
    assert [each["spec"]["validationActions"] for each in bindings.values()] == [["Deny"], ["Warn"]]
    covered = [rule for each in bindings.values() for rule in each["spec"]["matchResources"]["resourceRules"]]
    assert {name for rule in covered for name in rule["resources"]} == {
        name for rule in hook["rules"] for name in rule["resources"]
    }


@pytest.mark.parametrize(
    ("components", "changed"),
    [
        (("validation",), {"webhook": "true"}),
        (("webhook", "no-routing"), {"webhook": "true", "routed": "false"}),
        (("extender",), {"routed": "true", "trusted": '["default-scheduler"]'}),
    ],
)
def test_warnings_know_who_validates_and_routes(
    build: Build, components: tuple[str, ...], changed: dict[str, str]
) -> None:
    shipped, patched = [
        {each["name"]: each["expression"] for each in built[WARNINGS]["spec"]["variables"]}
        for built in (build(), build(*components))
    ]
    assert patched == shipped | changed


@pytest.mark.parametrize(
    ("components", "changed"),
    [
        (("validation",), {"webhook": "true"}),
        (("webhook", "no-routing"), {"webhook": "true", "routed": "false"}),
        (("extender",), {"routed": "false"}),
    ],
)
def test_warnings_of_words_know_who_validates_and_routes(
    build: Build, components: tuple[str, ...], changed: dict[str, str]
) -> None:
    shipped, patched = [
        {each["name"]: each["expression"] for each in built[WORDS]["spec"]["variables"]}
        for built in (build(), build(*components))
    ]
    assert patched == shipped | changed


@pytest.mark.parametrize("components", [(), ("webhook",)], ids=["policies", "webhook"])
def test_routing_is_switched_off_and_such_pods_are_still_refused(build: Build, components: tuple[str, ...]) -> None:
    before, after = build(*components), build(*components, "no-routing")
    assert before.keys() - after.keys() == (set() if components else {ROUTING, ROUTING_BINDING, *BY_LABEL})
    assert REFUSAL in after
    hooks = [each["name"] for each in after.get(HOOKS, {}).get("webhooks", ())]
    assert hooks == (["injection.berth.dev", "late-injection.berth.dev"] if components else [])


def test_without_routing_no_policy_takes_pods_of_the_default_scheduler(build: Build) -> None:
    built = build("isolation", "runtime-class", "no-routing")
    mutating = [each["spec"] for name, each in built.items() if name.startswith("MutatingAdmissionPolicy/")]
    assert [policy["variables"][0] for policy in mutating] == [{"name": "ours", "expression": OURS}] * 4


def test_cert_manager_gives_the_webhook_its_files(build: Build) -> None:
    built = build("webhook", "webhook-cert-manager")
    for name in ("MutatingWebhookConfiguration/berth-injection", "ValidatingWebhookConfiguration/berth-validation"):
        annotations = built[name]["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "berth-system/berth-webhook"}
    [container] = built["Deployment/berth-webhook"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        "webhook",
        "--certificate=/etc/berth-webhook/tls.crt",
        "--key=/etc/berth-webhook/tls.key",
    ]


@pytest.mark.parametrize(
    ("components", "name"),
    [
        (("webhook", "webhook-cert-manager"), "berth-webhook"),
        (("extender", "extender-cert-manager"), "berth-extender"),
    ],
)
def test_a_renewed_certificate_is_of_the_same_ca(build: Build, components: tuple[str, ...], name: str) -> None:
    built = build(*components)
    certificate = built[f"Certificate/{name}"]["spec"]
    authority = built[f"Issuer/{certificate['issuerRef']['name']}"]["spec"]["ca"]["secretName"]
    [ca] = [
        each["spec"]
        for key, each in built.items()
        if key.startswith("Certificate/") and each["spec"]["secretName"] == authority
    ]
    assert (ca["isCA"], ca["duration"]) == (True, "87600h")


def test_the_webhook_gets_the_options_of_the_policies(build: Build) -> None:
    built = build("webhook", "webhook-isolation", "webhook-runtime-class")
    hooks = {each["name"]: each for each in built[HOOKS]["webhooks"]}
    assert {name: each["clientConfig"]["service"]["path"] for name, each in hooks.items() if "isolation" in name} == {
        "isolation.berth.dev": "/isolate",
        **{f"isolation-{mode}.berth.dev": f"/isolate/{mode}" for mode in ALLOWED},
    }
    assert not any(name.startswith("Mutating") and "isolation" in name for name in built)
    assert "ValidatingAdmissionPolicy/berth-isolation" in built
    [container] = built["Deployment/berth-webhook"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["webhook", "--runtime-class=nvidia"]


@pytest.mark.parametrize(
    "components",
    [
        ("webhook",),
        ("validation", "validation-bindings"),
        ("isolation", "runtime-class", "debug-api", "monitoring"),
        ("webhook", "no-routing"),
        ("isolation", "runtime-class", "extender"),
        ("webhook", "extender", "webhook-extender"),
        ("list-watch-api",),
        ("no-visibility",),
        ("debug-api", "no-visibility"),
        ("evictions", "defragmentation"),
    ],
)
def test_the_api_server_takes_all_of_it(arena: Arena, build: Build, components: tuple[str, ...]) -> None:
    api, built = arena.cluster.api, build(*components)
    for name in ("berth-system", "berth-agent-system", "berth-node-lease"):
        api.apply(built[f"Namespace/{name}"])
    query = {"fieldManager": "test", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
    for document in built.values():
        api.request(
            "PATCH", api.path_of(document), body=document, query=query, content_type="application/apply-patch+yaml"
        )


def test_grafana_finds_the_dashboard_and_prometheus_the_ports_and_rules(build: Build) -> None:
    built = build("monitoring", "monitoring-prometheus-operator")
    shown = built["ConfigMap/berth-dashboard"]
    assert shown["metadata"]["labels"] == {"grafana_dashboard": "1"}
    assert json.loads(shown["data"]["berth.json"])["title"] == "Berth"
    rules = yaml.safe_load(built["ConfigMap/berth-rules"]["data"]["berth.rules.yaml"])
    assert built["PrometheusRule/berth"]["spec"] == rules
    template = built["Deployment/berth-operator"]["spec"]["template"]
    monitor = built["PodMonitor/berth-operator"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    ports = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports


def test_the_webhook_asks_for_the_pods_that_the_policy_takes(build: Build) -> None:
    base = build()
    built = build("webhook")
    routing, *opt_in, injection, late = built[HOOKS]["webhooks"]
    for hook, name in ((routing, ROUTING), (injection, ALONE), (late, REFUSING)):
        rules = base[name]["spec"]["matchConstraints"]["resourceRules"]
        assert [{**each, "scope": "Namespaced"} for each in rules] == hook["rules"]
    assert routing["matchConditions"] == base[ROUTING]["spec"]["matchConditions"]
    [opt_out] = base[ROUTING_BINDING]["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert opt_out in routing["namespaceSelector"]["matchExpressions"]
    for hook, (label, name) in zip(opt_in, OPT_IN.items(), strict=True):
        # It knows the names itself.
        assert hook["matchConditions"] == base[f"MutatingAdmissionPolicy/{name}"]["spec"]["matchConditions"][:2]
        assert hook["clientConfig"]["service"]["path"] == f"/route-{label}"
        binding = base[f"MutatingAdmissionPolicyBinding/{name}"]["spec"]
        [selected] = binding["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert selected in hook["namespaceSelector"]["matchExpressions"]
        assert label in selected["values"]
    # Webhooks are called in order, so this one need not take pods that are yet to be routed.
    [of_berth] = injection["matchConditions"]
    assert of_berth["expression"] == OURS == base[ALONE]["spec"]["variables"][0]["expression"]
    # What is left to the last one is what the policy would refuse; only the policy knows renamed resources.
    refusing = built[REFUSING]["spec"]
    assert refusing["paramKind"]["kind"] == "MutatingWebhookConfiguration"
    assert late["namespaceSelector"] == refusing["matchConstraints"]["namespaceSelector"]
    [devices, sees_others] = late["matchConditions"]
    assert [devices] == refusing["matchConditions"]
    lacking = refusing["variables"][2]["expression"].replace(".filter(", ".exists(", 1).rpartition(".map(")[0]
    lacking = lacking.replace("|| name in variables.renamed", "")
    assert re.sub(r"[()\s]", "", sees_others["expression"]) == re.sub(r"[()\s]", "", lacking)


def test_no_mutating_policy_leaves_out_pods_that_may_become_berths(build: Build) -> None:
    """One whose conditions were false is not called again, and they run in no fixed order."""
    built = build("isolation", "runtime-class")
    mutating = {name: each["spec"] for name, each in built.items() if name.startswith("MutatingAdmissionPolicy/")}
    routing = {ROUTING, *BY_LABEL} & mutating.keys()
    assert len(mutating.keys() - routing) == 4
    for name in mutating.keys() - routing:
        assert mutating[name]["reinvocationPolicy"] == "IfNeeded"
        assert all("schedulerName ==" not in each["expression"] for each in mutating[name]["matchConditions"])
        assert mutating[name]["variables"][0]["name"] == "ours"


def test_with_the_extender_the_webhook_asks_for_the_pods_that_the_policies_take(build: Build) -> None:
    by_policy = build("extender")
    rewriting, injection, _ = build("webhook", "extender", "webhook-extender")[HOOKS]["webhooks"]
    assert ROUTING not in by_policy
    assert "MutatingAdmissionPolicy/berth-rewriting" not in build("webhook", "extender", "webhook-extender")
    policy = by_policy["MutatingAdmissionPolicy/berth-rewriting"]["spec"]
    assert rewriting["clientConfig"]["service"]["path"] == "/rewrite"
    injecting = by_policy[ALONE]["spec"]
    for hook, spec, conditions in (
        (rewriting, policy, policy["matchConditions"]),
        (injection, injecting, injecting["variables"][:1]),
    ):
        assert [{**each, "scope": "Namespaced"} for each in spec["matchConstraints"]["resourceRules"]] == hook["rules"]
        expressions = [[each["expression"].split() for each in one] for one in (conditions, hook["matchConditions"])]
        assert expressions[0] == expressions[1]
        assert len(hook["namespaceSelector"]["matchExpressions"]) == 1


def test_other_scheduler_names_are_set_as_the_documentation_says(build: Build) -> None:
    text = (ROOT / "docs/admission.md").read_text()
    [example] = re.findall(r"```yaml\n(patches:.*?)```", text, re.DOTALL)
    built = build(patches=yaml.safe_load(example)["patches"])
    for name, field in (
        (ALONE, "variables"),
        (REFUSING, "variables"),
        ("ValidatingAdmissionPolicy/berth-validation", "matchConditions"),
    ):
        [shipped, patched] = [each[name]["spec"][field][0]["expression"] for each in (build(), built)]
        assert patched == shipped.replace('"berth-scheduler"', '"berth-scheduler", "berth-training"')
    [schedulers, *_] = built[WARNINGS]["spec"]["variables"]
    assert schedulers == {"name": "schedulers", "expression": '["berth-scheduler", "berth-training"]'}


def test_another_scheduler_is_trusted_as_the_documentation_says(build: Build) -> None:
    text = (ROOT / "docs/koordinator.md").read_text()
    [example] = re.findall(r"```yaml\n( *patches:.*?)```", text, re.DOTALL)
    patched = build(patches=yaml.safe_load(example)["patches"])
    assert patched[WARNINGS]["spec"]["variables"][1] == {"name": "trusted", "expression": '["koord-scheduler"]'}
    policy = patched["ValidatingAdmissionPolicy/berth-allocations"]["spec"]
    [trusted] = [each["expression"] for each in policy["variables"] if each["name"] == "trusted"]
    assert trusted == '["system:serviceaccount:koordinator-system:koord-scheduler"]'
    shipped = build()["ValidatingAdmissionPolicy/berth-allocations"]["spec"]["variables"][0]
    assert shipped == {"name": "trusted", "expression": "[]"}


def test_the_operator_reads_the_secret_of_the_documentation(arena: Arena, build: Build, tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    folder.mkdir()
    kube_scheduler.certificates(folder)
    [command] = re.findall(r"```bash\n( *kubectl create secret .*?)```", kube_scheduler.PAGE.read_text(), re.DOTALL)
    kubectl = programs.ensure(["kubectl"])["kubectl"].parent
    environment = {"PATH": f"{kubectl}:{os.environ['PATH']}", "KUBECONFIG": str(arena.cluster.kubeconfig)}
    script = command.replace("berth-system", arena.namespace)
    subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, check=True, capture_output=True)
    pod = build("extender")["Deployment/berth-operator"]["spec"]["template"]["spec"]
    [volume] = [each for each in pod["volumes"] if each.get("secret")]
    [container] = pod["containers"]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    read = {each.partition("=")[2] for each in container["args"] if each.startswith("--extender-c") or "-key=" in each}
    files = arena.get("secrets", volume["secret"]["secretName"])["data"]
    assert read == {f"{mount['mountPath']}/{name}" for name in files}


def test_cert_manager_issues_the_certificates_of_the_extender(build: Build) -> None:
    built = build("extender", "extender-cert-manager")
    certificates = [each["spec"] for name, each in built.items() if name.startswith("Certificate/")]
    names = {each["secretName"]: (each.get("dnsNames"), each.get("commonName")) for each in certificates}
    [volume] = [
        each for each in built["Deployment/berth-operator"]["spec"]["template"]["spec"]["volumes"] if each.get("secret")
    ]
    [extender] = yaml.safe_load(kube_scheduler.SHIPPED.read_text())["extenders"]
    assert names[volume["secret"]["secretName"]] == ([extender["tlsConfig"]["serverName"]], None)
    assert names["berth-extender-client"] == (None, "system:kube-scheduler")


def test_the_operator_takes_the_flags_of_the_component(build: Build) -> None:
    deployment = build("extender")["Deployment/berth-operator"]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]
    settings = start.read(Settings, [each.replace("$(POD_IP)", "10.1.2.3") for each in container["args"]])
    assert {"name": "extender", "containerPort": settings.extender_port} in container["ports"]
    [port] = build("extender")["Service/berth-extender"]["spec"]["ports"]
    assert (settings.extender_service, port["name"]) == ("berth-system/berth-extender", endpoints.PORT_NAME)
    assert settings.extended == {"default-scheduler"}
