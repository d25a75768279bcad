"""A stand-in for the visibility API: it serves fixed objects behind the API server's real aggregator."""

import json
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from devcluster import waiting
from devcluster.control_plane.api import Api, ApiError
from tests.stand_ins.certificates import Authority

GROUP: Final = "visibility.berth.dev"
BASE: Final = f"/apis/{GROUP}/v1alpha1"
NAMESPACE: Final = "berth-system"


class StandIn:
    """A server with an answer for each path; a context manager."""

    def __init__(self, folder: Path, answers: Mapping[str, Any]) -> None:
        """Create the server; `answers` has JSON by the path below BASE."""
        handler = type("Handler", (_Handler,), {"answers": answers})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(Authority(folder).issue("visibility"))
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        """Start it."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()

    def register(self, api: Api) -> None:
        """Have the API server pass requests on, and wait until it does."""
        spec = {"type": "ExternalName", "externalName": "127.0.0.1"}
        api.post(f"/api/v1/namespaces/{NAMESPACE}/services", {"metadata": {"name": "visibility"}, "spec": spec})
        service = {"namespace": NAMESPACE, "name": "visibility", "port": self._server.server_address[1]}
        registered = {
            "metadata": {"name": f"v1alpha1.{GROUP}"},
            "spec": {
                "group": GROUP,
                "version": "v1alpha1",
                "groupPriorityMinimum": 1000,
                "versionPriority": 10,
                "insecureSkipTLSVerify": True,
                "service": service,
            },
        }
        api.post("/apis/apiregistration.k8s.io/v1/apiservices", registered)
        waiting.until(lambda: _answers(api), what="the stand-in to be served", poll=0.1)


def unregister(api: Api) -> None:
    """Remove what `register` created."""
    api.delete(f"/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.{GROUP}")
    api.delete(f"/api/v1/namespaces/{NAMESPACE}/services/visibility")


def _answers(api: Api) -> bool:
    try:
        api.get(f"{BASE}/fleet")
    except ApiError:
        return False
    return True


class _Handler(BaseHTTPRequestHandler):
    answers: Mapping[str, Any] = {}

    def do_GET(self) -> None:
        """Answer a request."""
        path = self.path.partition("?")[0]
        answer = self.answers.get(path.removeprefix(BASE).lstrip("/"))
        discovery = {"kind": "APIResourceList", "groupVersion": f"{GROUP}/v1alpha1", "resources": []}
        missing = {"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "not found"}
        body = json.dumps(discovery if path == BASE else answer if answer is not None else missing).encode()
        self.send_response(200 if answer is not None or path == BASE else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Log nothing."""
