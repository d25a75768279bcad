"""The webhook on the real API server: how it changes pods, and its certificate."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth_api import names
from berth_api.admission import injection
from berth_operator.apis.serving import certificates
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.operator.world import free_ports
from tests.integration.policies.test_isolation import RESTRICTED
from tests.objects.builders import GPU
from tests.programs.processes import Process, Processes

COMPONENT = Path(__file__).parents[3] / "manifests/components/webhook/webhook.yaml"
HALF = {GPU: "50"}
SHORT = 6.0
"""Lifetime in seconds of a certificate in these tests; it is renewed after a third of it."""


class Hook:
    """A webhook configuration of one arena, and the processes behind it."""

    def __init__(self, arena: Arena, folder: Path) -> None:
        self.arena, self.api = arena, arena.cluster.api
        self.processes = Processes(arena=arena, folder=folder)
        self.name = f"berth-injection-{arena.id}"
        [self.port] = free_ports(1)

    def configure(self, *more: Manifest) -> None:
        shipped = next(yaml.safe_load_all(COMPONENT.read_text()))
        shipped["webhooks"] += more
        for hook in shipped["webhooks"]:
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{self.port}{hook['clientConfig']['service']['path']}"}
            hook["namespaceSelector"]["matchLabels"] = {"kubernetes.io/metadata.name": self.arena.namespace}
            condition = hook["matchConditions"][0]
            condition["expression"] = condition["expression"].replace("berth-scheduler", self.arena.scheduler_name)
        self.api.post(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            {**shipped, "metadata": {"name": self.name}},
        )

    def start(self, **flags: Any) -> Process:
        own = {"host": "127.0.0.1", "address": "127.0.0.1", "port": self.port, "period": 0.2}
        own["scheduler_names"] = self.arena.scheduler_name
        return self.processes.webhook(**{**own, "namespace": self.arena.namespace, "configuration": self.name, **flags})

    def admitted(self, **fields: Any) -> Manifest:
        pod = self.arena.pod(requests=HALF, **fields)
        path = f"/api/v1/namespaces/{self.arena.namespace}/pods"
        return self.api.request("POST", path, body=pod, query={"dryRun": "All"})

    def injects(self) -> bool:
        try:
            pod = self.admitted()
        except ApiError:
            return False
        return injection.lacking(pod["spec"], {}) == ()

    def until_injecting(self) -> None:
        waiting.until(self.injects, what="the webhook to inject")

    def secret(self) -> Manifest:
        data: Manifest = self.arena.get("secrets", "berth-webhook")["data"]
        return data

    def trusted(self) -> str:
        path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.name}"
        bundle: str = self.api.get(path)["webhooks"][0]["clientConfig"].get("caBundle", "")
        return base64.b64decode(bundle).decode()

    def delete(self) -> None:
        self.api.delete(f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.name}")

    def close(self) -> None:
        self.processes.close()
        self.delete()


@pytest.fixture
def hook(arena: Arena, tmp_path: Path) -> Iterator[Hook]:
    hook = Hook(arena, tmp_path)
    hook.configure()
    yield hook
    hook.close()
    arena.delete("secrets", "berth-webhook")
    # Tests share the namespace.
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": dict.fromkeys((*LABELS, "berth.dev/routing"))}})


def test_it_injects_and_leaves_others_alone(hook: Hook) -> None:
    with pytest.raises(ApiError, match="failed calling webhook"):
        hook.admitted()
    assert "env" not in hook.admitted(scheduler_name="volcano")["spec"]["containers"][0]
    hook.start()
    hook.until_injecting()
    pod = hook.admitted(containers=[{"name": "a", "image": "none", "resources": {"limits": HALF}}, SIDE])
    path = "metadata.annotations['a.devices.berth.dev/visible']"
    a, side = pod["spec"]["containers"]
    assert a["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] == path
    assert side["env"] == [{"name": injection.VARIABLE, "value": "void"}, PLAIN]


def test_it_routes_pods_that_name_no_scheduler_and_injects_them(hook: Hook) -> None:
    hook.start()
    hook.until_injecting()
    pod = hook.admitted(scheduler_name="default-scheduler")
    assert pod["spec"]["schedulerName"] == hook.arena.scheduler_name
    assert injection.lacking(pod["spec"], {}) == ()
    hook.arena.merge("namespaces", hook.arena.namespace, {"metadata": {"labels": {"berth.dev/routing": "disabled"}}})

    def opted_out() -> bool:
        return bool(hook.admitted(scheduler_name="default-scheduler")["spec"]["schedulerName"] == "default-scheduler")

    waiting.until(opted_out, what="the namespace to have opted out")
    assert hook.injects()


def test_it_injects_into_ephemeral_containers(hook: Hook) -> None:
    hook.start()
    hook.until_injecting()
    hook.arena.create([hook.arena.pod("a", requests=HALF, limits=HALF)])
    hook.arena.merge("pods", "a", {"spec": {"ephemeralContainers": [DEBUGGER]}}, subresource="ephemeralcontainers")
    [main] = hook.arena.get("pods", "a")["spec"]["containers"]
    [container] = hook.arena.get("pods", "a")["spec"]["ephemeralContainers"]
    assert container["env"] == main["env"]


def test_it_sets_a_runtime_and_tolerations_where_configured(hook: Hook) -> None:
    runtime = hook.arena.id
    hook.api.post(RUNTIMES, {"metadata": {"name": runtime}, "handler": "nvidia"})
    hook.start(runtime_class=runtime, tolerations="nvidia.com/gpu,amd.com/gpu")
    hook.until_injecting()
    spec = hook.admitted(limits=HALF)["spec"]
    hook.api.delete(f"{RUNTIMES}/{runtime}")
    assert spec["runtimeClassName"] == runtime
    added = [each for each in spec["tolerations"] if each.get("effect") == "NoSchedule"]
    assert added == [
        {"key": f"{vendor}.com/gpu", "operator": "Exists", "effect": "NoSchedule"} for vendor in ("nvidia", "amd")
    ]


def test_it_limits_shares_in_a_restricted_namespace_by_the_pod_or_the_label(hook: Hook) -> None:
    component = yaml.safe_load((COMPONENT.parents[1] / "webhook-isolation/kustomization.yaml").read_text())
    added = [each["value"] for each in yaml.safe_load(component["patches"][-1]["patch"])]
    hook.delete()
    hook.configure(*added)
    hook.start()
    hook.until_injecting()
    hardened = {"securityContext": RESTRICTED, "resources": {"limits": HALF}}
    pod = {"containers": [{"name": "main", "image": "none", **hardened}], "automountServiceAccountToken": False}

    def given(isolation: str | None, **annotations: str) -> tuple[str, ...]:
        labels = dict(zip(LABELS, ("restricted", isolation), strict=True))
        hook.arena.merge("namespaces", hook.arena.namespace, {"metadata": {"labels": labels}})
        [main] = hook.admitted(**pod, annotations=annotations)["spec"]["containers"]
        variables = {each["name"] for each in main["env"]} - {injection.VARIABLE}
        return *sorted(variables), *(name for name in main["resources"]["limits"] if name.startswith("berth.dev/"))

    by_mps = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", names.MPS_RESOURCE
    by_hami_core = "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT", names.HAMI_CORE_RESOURCE

    def until_given(isolation: str | None, expected: tuple[str, ...]) -> None:
        waiting.until(lambda: given(isolation) == expected, what=f"the effect of the label {isolation}")

    until_given(None, ())
    assert given(None, **{names.ISOLATION_KEY: "mps"}) == by_mps
    for label, expected in (("hami-core", by_hami_core), ("required", by_mps), ("none", ())):
        until_given(label, expected)


LABELS = "pod-security.kubernetes.io/enforce", names.ISOLATION_KEY
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
DEBUGGER = {"name": "d", "image": "none", "targetContainerName": "main"}
PLAIN = {"name": "PLAIN", "value": "1"}
SIDE = {"name": "side", "image": "none", "env": [{"name": injection.VARIABLE, "value": "all"}, PLAIN]}


def test_its_own_certificate_is_renewed_and_no_pod_is_refused_meanwhile(hook: Hook) -> None:
    hook.start(lifetime=SHORT)
    hook.until_injecting()
    first = hook.secret()["tls.crt"]
    while hook.secret()["tls.crt"] == first:
        assert hook.injects()
    renewed = hook.secret()
    waiting.until(lambda: renewed["tls.crt"] in encoded(hook.trusted()), what="the new one to be trusted")
    assert base64.b64decode(first).decode() in hook.trusted()
    for _ in range(20):
        assert hook.injects()


def encoded(bundle: str) -> list[str]:
    """Return the certificates of a bundle, each encoded as in a Secret."""
    end = "-----END CERTIFICATE-----\n"
    return [base64.b64encode((each + end).encode()).decode() for each in bundle.split(end) if each]


def test_replicas_share_a_certificate(hook: Hook) -> None:
    replicas = [hook.start(port=port) for port in free_ports(2)]
    for replica in replicas:
        replica.logged("webhook served")
    shared = hook.secret()
    assert encoded(hook.trusted()) == [shared["tls.crt"]]


def test_a_certificate_comes_from_files_and_is_read_again(hook: Hook, tmp_path: Path) -> None:
    def write() -> None:
        pair = certificates.issue("127.0.0.1", datetime.now(UTC), timedelta(days=1))
        tmp_path.joinpath("tls.crt").write_bytes(pair.certificate)
        tmp_path.joinpath("tls.key").write_bytes(pair.key)
        bundle = base64.b64encode(pair.certificate).decode()
        webhooks = ("routing.berth.dev", "injection.berth.dev")
        body = {"webhooks": [{"name": each, "clientConfig": {"caBundle": bundle}} for each in webhooks]}
        path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{hook.name}"
        strategic = "application/strategic-merge-patch+json"
        hook.api.request("PATCH", path, body=body, content_type=strategic)

    write()
    process = hook.start(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    hook.until_injecting()
    write()
    waiting.until(lambda: process.text().count("certificate in use") > 1, what="the new one to be served")
    hook.until_injecting()


def test_a_process_without_a_certificate_says_why(hook: Hook, tmp_path: Path) -> None:
    process = hook.start(certificate=tmp_path / "none.crt", key=tmp_path / "none.key")
    process.logged("No such file or directory")
