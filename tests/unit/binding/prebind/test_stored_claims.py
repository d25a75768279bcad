"""Claims as stored in etcd: only labels, finalizers, the resourceVersion and reservations are changed."""

import base64
from typing import Any

import pytest

from berth_client import wire
from berth_operator.binding.prebind import stored_claims
from berth_operator.binding.prebind.stored_claims import StoredConfig

STORED = base64.b64decode(
    "azhzAAojChJyZXNvdXJjZS5rOHMuaW8vdjESDVJlc291cmNlQ2xhaW0SggcKggYKAWMSABoHZGVmYXVsdCIAKiQxOTU3MjU5YS05MmE0LTQ5Zj"
    "YtYWU0Zi01Y2IyYTA4OWRiMDkyAzM1NDgAQggI1r+k2AYQAFoFCgFhEgBaBgoBYhIBY2IGCgF4EgF5cg1leGFtcGxlLmNvbS9migGBAgoHa3Vi"
    "ZWN0bBIGVXBkYXRlGhJyZXNvdXJjZS5rOHMuaW8vdjEiCAjWv6TYBhAAMghGaWVsZHNWMTrDAQrAAXsiZjptZXRhZGF0YSI6eyJmOmFubm90YX"
    "Rpb25zIjp7Ii4iOnt9LCJmOngiOnt9fSwiZjpmaW5hbGl6ZXJzIjp7Ii4iOnt9LCJ2OlwiZXhhbXBsZS5jb20vZlwiIjp7fX0sImY6bGFiZWxz"
    "Ijp7Ii4iOnt9LCJmOmEiOnt9LCJmOmIiOnt9fX0sImY6c3BlYyI6eyJmOmRldmljZXMiOnsiZjpjb25maWciOnt9LCJmOnJlcXVlc3RzIjp7fX"
    "19fUIAigGMAwoHa3ViZWN0bBIGVXBkYXRlGhJyZXNvdXJjZS5rOHMuaW8vdjEiCAjWv6TYBhAAMghGaWVsZHNWMTrIAgrFAnsiZjpzdGF0dXMi"
    "OnsiZjphbGxvY2F0aW9uIjp7Ii4iOnt9LCJmOmRldmljZXMiOnsiLiI6e30sImY6cmVzdWx0cyI6e319fSwiZjpkZXZpY2VzIjp7Ii4iOnt9LC"
    "JrOntcImRldmljZVwiOlwiZFwiLFwiZHJpdmVyXCI6XCJ4LmlvXCIsXCJwb29sXCI6XCJwXCJ9Ijp7Ii4iOnt9LCJmOmNvbmRpdGlvbnMiOnt9"
    "LCJmOmRhdGEiOnt9LCJmOmRldmljZSI6e30sImY6ZHJpdmVyIjp7fSwiZjpwb29sIjp7fX19LCJmOnJlc2VydmVkRm9yIjp7Ii4iOnt9LCJrOn"
    "tcInVpZFwiOlwidVwifSI6eyIuIjp7fSwiZjpuYW1lIjp7fSwiZjpyZXNvdXJjZSI6e30sImY6dWlkIjp7fX19fX1CBnN0YXR1cxI3CjUKGAoD"
    "Z3B1EhEKAXgaCkV4YWN0Q291bnQgARoZEhcKFQoEeC5pbxINCgt7InYiOiAxLjUwfRpCChUKEwoRCgNncHUSBHguaW8aAXAiAWQSDgoAGgRwb2"
    "RzIgFwKgF1IhkKBHguaW8SAXAaAWQqCwoJeyJuIjoxLjB9GgAiAA=="
)
"""A claim as Kubernetes 1.36 sent it, with the parameters `{"v": 1.50}`, which is allocated and reserved for a pod."""
METADATA = {"name": "c", "resourceVersion": "355", "labels": {"a": "", "x": "y"}, "finalizers": ["f", "g"]}
PODS = [
    {"resource": "pods", "name": "p", "uid": "u"},
    {"apiGroup": "g.io", "resource": "jobs", "name": "j", "uid": "v"},
]


def parts(stored: bytes) -> tuple[bytes, bytes, bytes]:
    """Return metadata, spec and status."""
    metadata, spec, status = (wire.values(wire.opened(stored), number) for number in (1, 2, 3))
    return metadata[0], spec[0], status[0]


def merged(**status: Any) -> tuple[bytes, bytes, bytes]:
    return parts(stored_claims.merged(STORED, {"metadata": METADATA, "status": status}))


def test_metadata_is_changed_and_all_other_bytes_stay() -> None:
    metadata, spec, _ = merged()
    before, spec_before, _ = parts(STORED)
    assert spec == spec_before
    assert b'{"v": 1.50}' in spec
    assert wire.values(metadata, 6) == [b"355"]
    assert wire.values(metadata, 14) == [b"f", b"g"]
    labels = {wire.values(each, 1)[0]: wire.values(each, 2)[0] for each in wire.values(metadata, 11)}
    assert labels == {b"a": b"", b"x": b"y"}
    ours = {6, 11, 14}
    assert wire.without(metadata, ours) == wire.without(before, ours)
    assert len(wire.values(metadata, 17)) == 2


def test_a_claim_is_reserved_and_its_allocation_stays() -> None:
    *_, status = merged(allocation={"devices": {}}, reservedFor=PODS, devices=[{"driver": "x.io"}])
    *_, before = parts(STORED)
    assert wire.without(status, {2}) == wire.without(before, {2})
    assert [wire.values(each, 5) for each in wire.values(status, 2)] == [[b"u"], [b"v"]]
    assert wire.values(status, 2, 1) == [b"g.io"]


def test_a_claim_is_released_with_all_that_was_allocated() -> None:
    *_, status = merged()
    assert status == b""


def test_parameters_are_read_as_they_are_stored() -> None:
    assert stored_claims.configs_of_claim(STORED) == [StoredConfig("x.io", b'{"v": 1.50}')]
    device_configuration = wire.values(wire.opened(STORED), 2, 1, 3, 2)[0]
    spec = wire.encoded(2, wire.encoded(1, device_configuration)) + wire.encoded(2, b"")
    classes = wire.MAGIC + wire.encoded(2, wire.encoded(2, wire.encoded(2, spec)))
    assert stored_claims.configs_of_class(classes) == [StoredConfig("x.io", b'{"v": 1.50}'), StoredConfig("", b"")]


@pytest.mark.parametrize("damaged", [STORED[4:], STORED[:-1], b"", b'{"kind": "ResourceClaim"}'])
def test_what_is_no_claim_is_an_error(damaged: bytes) -> None:
    with pytest.raises(wire.WireError):
        stored_claims.merged(damaged, {"metadata": METADATA})
