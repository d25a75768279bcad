"""The visibility API in the cluster of a benchmark, behind the API server's real aggregator."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from tests.bench.cluster.contestants import STOPPED
from tests.bench.cluster.track import Track
from tests.integration.operator.world import free_ports

MANIFEST: Final = Path(__file__).parents[3] / "manifests/base/visibility.yaml"
PATH: Final = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.visibility.berth.dev"


@contextlib.contextmanager
def registered(track: Track) -> Iterator[dict[str, object]]:
    """Register the API for the context; return the flags of an operator that serves it and is never replaced."""
    api, place = track.arena.cluster.api, track.arena.namespace
    [port] = free_ports(1)
    service = {"metadata": {"name": "berth-visibility"}, "spec": {"type": "ExternalName", "externalName": "127.0.0.1"}}
    api.post(f"/api/v1/namespaces/{place}/services", service)
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        if document["kind"] == "ClusterRole":  # one of them is the owner of the APIService
            api.apply(document)
    flags = {"visibility_port": port, "visibility_service_port": port}
    try:
        yield {**STOPPED, **flags, "visibility_address": "127.0.0.1", "pod_ip": "127.0.0.1"}
    finally:  # an APIService without a server would keep every namespace of the cluster
        api.delete(PATH)
        api.delete(f"/api/v1/namespaces/{place}/services/berth-visibility")
