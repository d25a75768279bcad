"""Each way to request devices in `manifests/examples/claims` is accepted by the API server, and read by Berth."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth_operator.core.claims.objects import requests
from berth_operator.core.claims.selectors import compile_selector
from devcluster import Arena
from devcluster.control_plane.api import Manifest

FILES: Final = sorted((Path(__file__).parents[3] / "manifests/examples/claims").glob("*.yaml"))
STRICT: Final = "?dryRun=All&fieldValidation=Strict"
ADMIN: Final = {"resource.kubernetes.io/admin-access": "true"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_an_example_is_accepted_and_read(file: Path, arena: Arena) -> None:
    api, namespace = arena.cluster.api, f"/api/v1/namespaces/{arena.namespace}"
    api.merge(namespace, {"metadata": {"labels": ADMIN}})
    documents: list[Manifest] = list(yaml.safe_load_all(file.read_text()))
    for document in documents:
        if document["kind"] != "Namespace":
            document["metadata"]["namespace"] = arena.namespace
            accepted = api.post(api.path_of(document).rpartition("/")[0] + STRICT, document)
            # The API server drops the fields of a feature that is disabled.
            assert _contains(accepted["spec"], document["spec"])
    [claim] = list(_claims(documents))
    read = requests.read_claim(claim)
    assert read.requests
    for choice in (choice for request in read.requests for choice in request.choices):
        for selector in filter(None, choice.selectors):
            compile_selector(selector)


def _claims(documents: list[Manifest]) -> Iterator[Manifest]:
    for document in documents:
        if document["kind"] == "ResourceClaim":
            yield document
        elif document["kind"] == "ResourceClaimTemplate":
            yield {"metadata": document["metadata"], "spec": document["spec"]["spec"]}


def _contains(accepted: Any, sent: Any) -> bool:
    """Return whether an object has all that was sent; the API server adds defaults."""
    if isinstance(sent, dict):
        return all(_contains(accepted.get(key), value) for key, value in sent.items())
    if isinstance(sent, list):
        return len(accepted) == len(sent) and all(map(_contains, accepted, sent))
    return bool(accepted == sent)
