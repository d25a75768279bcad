"""Another system's webhook next to Berth's: it takes pods that name no scheduler, and adds its own resource.

Policies run before all webhooks. Webhooks run in the order of their names.
"""

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from berth_api import names
from berth_operator.apis.serving import certificates
from devcluster import Arena, waiting
from devcluster.control_plane.api import ApiError, Manifest
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.integration.policies.test_webhook import Hook
from tests.programs import policies

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
THEIRS = "hami-scheduler"
COUNT, MEMORY = "nvidia.com/gpu", "nvidia.com/gpumem"
WRITTEN = {COUNT: "2", MEMORY: "1k"}
LABEL = "berth.dev/routing"
ADDS = "adds"
"""Label of pods to which the webhook adds its resource whatever their scheduler is."""


def patch(pod: Manifest) -> list[dict[str, Any]]:
    """Return what such a webhook does: pods of other schedulers are left alone, but those with the label."""
    spec, operations = pod["spec"], []
    scheduler = spec.get("schedulerName")
    if scheduler == "default-scheduler":
        operations.append({"op": "replace", "path": "/spec/schedulerName", "value": THEIRS})
    if scheduler in ("default-scheduler", THEIRS) or ADDS in pod["metadata"].get("labels", {}):
        for number, container in enumerate(spec["containers"]):
            limits = container["resources"]["limits"]
            if MEMORY in limits and COUNT not in limits:
                path = f"/spec/containers/{number}/resources/limits/nvidia.com~1gpu"
                operations.append({"op": "add", "path": path, "value": "1"})
    return operations


Patch = Callable[[Manifest], list[dict[str, Any]]]
Respond = Callable[[Manifest], Manifest]
"""Returns the response to a request, without its UID."""


def patching(patch: Patch) -> Respond:
    """Return what allows a request with a patch."""

    def respond(request: Manifest) -> Manifest:
        encoded = base64.b64encode(json.dumps(patch(request["object"])).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

    return respond


def denying(code: int, message: str) -> Respond:
    """Return what refuses each request with a status."""
    return lambda _request: {"allowed": False, "status": {"code": code, "message": message}}


def answers(respond: Respond) -> type[http.server.BaseHTTPRequestHandler]:
    """Return what answers AdmissionReviews."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            response = {"uid": request["uid"], **respond(request)}
            body = json.dumps(
                {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    return Answers


@contextmanager
def their_webhook(
    arena: Arena,
    folder: Path,
    *,
    first: bool,
    patch: Patch = patch,
    respond: Respond | None = None,
    resource: str = "pods",
    reinvocation: str = "Never",
) -> Iterator[None]:
    """Serve it; the API server calls webhooks in the order of their configurations' names."""
    pair = certificates.issue("127.0.0.1", datetime.now(UTC), timedelta(days=1))
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers(respond or patching(patch)))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"{'a' if first else 'z'}-{arena.id}"
    hook = {
        "name": "others.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "reinvocationPolicy": reinvocation,
        "clientConfig": {
            "url": f"https://127.0.0.1:{server.server_port}/",
            "caBundle": base64.b64encode(pair.certificate).decode(),
        },
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": arena.namespace}},
    }
    arena.cluster.api.post(CONFIGURATIONS, {"metadata": {"name": name}, "webhooks": [hook]})
    try:
        yield
    finally:
        arena.cluster.api.delete(f"{CONFIGURATIONS}/{name}")
        server.shutdown()
        server.server_close()


@contextmanager
def our_policies(arena: Arena) -> Iterator[None]:
    shipped = [each for file in ("injection.yaml", "words.yaml") for each in policies.policies(file, arena)]
    applied = arena.apply(shipped)
    try:
        yield
    finally:
        for document in applied:
            arena.cluster.api.delete(arena.cluster.api.path_of(document))


@contextmanager
def our_webhook(arena: Arena, folder: Path) -> Iterator[None]:
    hook = Hook(arena, folder)
    hook.configure()
    try:
        hook.start()
        hook.until_injecting()
        yield
    finally:
        hook.close()
        arena.delete("secrets", "berth-webhook")


def admitted(arena: Arena, scheduler: str, limits: dict[str, str], **labels: str) -> Manifest:
    containers = [{"name": "main", "image": "none", "resources": {"limits": limits}}]
    pod = arena.pod(scheduler_name=scheduler, containers=containers, labels=labels)
    return arena.admitted(pod)


def seen(made: Manifest) -> tuple[str, dict[str, str], bool, str]:
    """Return scheduler, requests, whether the variable was injected, and what was kept of the original."""
    [container] = made["spec"]["containers"]
    kept = made["metadata"].get("annotations", {}).get(names.ORIGINAL_RESOURCES, "")
    return made["spec"]["schedulerName"], container["resources"]["requests"], "env" in container, kept


@pytest.mark.parametrize("case", ["policies", "webhook, theirs first", "webhook, ours first"])
def test_each_pod_stays_with_the_scheduler_that_it_means(arena: Arena, tmp_path: Path, case: str) -> None:
    first = case == "webhook, theirs first"
    ours = our_policies(arena) if case == "policies" else our_webhook(arena, tmp_path)
    with ours, their_webhook(arena, tmp_path, first=first):
        in_force(arena)
        name = arena.scheduler_name
        renamed = {"kubernetes.io/gpu.shared": "2", MEMORY: "1k"}
        own = (name, renamed, True, '{"main":{"nvidia.com/gpu":"2"}}')
        theirs = (THEIRS, WRITTEN, False, "")
        assert seen(admitted(arena, name, WRITTEN)) == own
        assert seen(admitted(arena, THEIRS, WRITTEN)) == theirs
        assert seen(admitted(arena, "default-scheduler", WRITTEN)) == theirs
        # A count that it adds to our pod is renamed, too; one that was renamed before stays.
        alone = {"kubernetes.io/gpu.shared": "1", MEMORY: "1k"}
        assert seen(admitted(arena, name, {MEMORY: "1k"}, **{ADDS: ""}))[:3] == (name, alone, True)
        assert seen(admitted(arena, name, WRITTEN, **{ADDS: ""})) == own
        arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {LABEL: "words"}}})
        try:
            expected = theirs if first else own
            waiting.until(
                lambda: seen(admitted(arena, "default-scheduler", WRITTEN)) == expected,
                what="the namespace to have opted in",
            )
            assert seen(admitted(arena, THEIRS, WRITTEN)) == theirs
        finally:
            arena.merge("namespaces", arena.namespace, {"metadata": {"labels": {LABEL: None}}})


def in_force(arena: Arena) -> None:
    """Wait until both have seen a pod."""

    def are_both() -> bool:
        try:
            ours = seen(admitted(arena, arena.scheduler_name, WRITTEN))
            theirs = seen(admitted(arena, "default-scheduler", WRITTEN))
        except ApiError:
            return False
        return ours[2] and ours[3] != "" and theirs[0] == THEIRS

    waiting.until(are_both, deadline=ACTIVE_SECONDS, what="both to be in force")
