"""The webhook's answers, and when it renews a certificate."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from cryptography import x509

from berth_api import injection
from berth_operator.webhook import certificates, review
from berth_operator.webhook.mutations import Mutations, patch
from tests.builders import GPU, Raw, container, pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NONE = Mutations()


def admission_review(manifest: Raw) -> bytes:
    return orjson.dumps({"request": {"uid": "u", "object": manifest}})


def test_a_pod_that_lacks_the_variable_is_patched() -> None:
    bare = pod("a", containers=[container("main", {GPU: "50"})])
    bare["spec"]["containers"] = [container("main", {GPU: "50"})]
    response = review.answer(admission_review(bare), NONE)["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u", True, "JSONPatch")
    assert orjson.loads(base64.b64decode(response["patch"])) == patch(bare, injection.injected(bare))


def test_others_pass_as_they_are() -> None:
    assert review.answer(admission_review(pod("a", {"cpu": "1"})), NONE)["response"] == {"uid": "u", "allowed": True}
    assert review.answer(admission_review(pod("a", {GPU: "50"})), NONE)["response"] == {"uid": "u", "allowed": True}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"{", "not JSON", id="no JSON"),
        pytest.param(b"[]", "not an AdmissionReview of a pod", id="a list"),
        pytest.param(b"{}", "not an AdmissionReview of a pod: KeyError", id="empty"),
        pytest.param(admission_review({}), "not an AdmissionReview of a pod: KeyError", id="no pod"),
    ],
)
def test_what_is_no_review_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(review.ReviewError, match=message):
        review.answer(body, NONE)


@pytest.mark.parametrize(
    ("days", "due"), [(0, False), (59, False), (61, True), (90, True)], ids=["new", "a third left", "less", "over"]
)
def test_a_certificate_is_due_when_a_third_is_left(days: int, *, due: bool) -> None:
    assert certificates.issue("host", NOW, 90 * DAY).is_due(NOW + days * DAY) is due


def test_what_is_no_certificate_is_due() -> None:
    assert certificates.Pair(certificate=b"", key=b"").is_due(NOW)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("a.b.svc", "<DNSName(value='a.b.svc')>"), ("127.0.0.1", "<IPAddress(value=127.0.0.1)>")],
    ids=["name", "address"],
)
def test_a_certificate_names_its_host(host: str, expected: str, tmp_path: Path) -> None:
    pair = certificates.issue(host, NOW, DAY)
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(map(repr, names)) == [expected]
    (tmp_path / "tls.pem").write_bytes(pair.certificate + pair.key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.pem")
