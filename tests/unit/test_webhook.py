"""The webhook's answers and verdicts, and when it renews a certificate."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography import x509

from berth_api import names
from berth_api.admission import injection
from berth_api.request import Kind, Kinds
from berth_operator.apis.serving import certificates
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.mutations import Isolation, Mutations, Routing, patch
from berth_operator.apis.webhook.validation import Admitted, Validation
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


def test_the_devices_of_pods_of_kube_scheduler_are_renamed() -> None:
    bare = pod("a", schedulerName="default-scheduler")
    bare["spec"]["containers"] = [{"name": "main", "resources": {"requests": {GPU: "50"}, "limits": {GPU: "100"}}}]
    rewrite = review.responders(NONE, Routing(scheduler="berth-scheduler"), Validation(), Isolation())["/rewrite"]
    resources = {"requests": {"koordinator.sh/gpu": "50"}, "limits": {"koordinator.sh/gpu": "50"}}
    assert orjson.loads(base64.b64decode(rewrite(admission_review(bare))["response"]["patch"])) == [
        {"op": "add", "path": "/spec/containers/0/resources", "value": resources}
    ]
    for other in ({**bare["spec"], "schedulerName": "volcano"}, {**bare["spec"], "nodeName": "n"}):
        assert "patch" not in rewrite(admission_review({**bare, "spec": other}))["response"]


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
    ("body", "message"),
    [
        pytest.param(b"{", "not JSON", id="no JSON"),
        pytest.param(b"{}", "not an AdmissionReview of a pod or template: KeyError", id="empty"),
        pytest.param(b'{"request": {"uid": "u", "kind": {"kind": "Secret"}, "object": {}}}', "KeyError", id="a Secret"),
    ],
)
def test_what_is_no_review_is_not_validated(body: bytes, message: str) -> None:
    with pytest.raises(review.ReviewError, match=message):
        review.validated(body, Validation())


def judged(manifest: Raw, **validation: Any) -> Admitted:
    return Validation(**validation).judge({"kind": {"kind": "Pod"}, "namespace": "ns", "object": manifest})


def test_a_denial_is_an_answer_of_the_review() -> None:
    wrong = pod("a", {GPU: "1"}, schedulerName="berth-scheduler")
    body = orjson.dumps({"request": {"uid": "u", "kind": {"kind": "Pod"}, "namespace": "ns", "object": wrong}})
    response = review.validated(body, Validation())["response"]
    assert (response["uid"], response["allowed"], response["status"]["code"]) == ("u", False, 422)
    assert response["status"]["message"] == judged(wrong).denial


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("berth-schedular", "berth-scheduler"),
        ("Berth-Scheduler", "berth-scheduler"),
        ("brth-scheduler", "berth-scheduler"),
        ("berth_scheduler", "berth-scheduler"),
        ("berthscheduler", "berth-scheduler"),
        ("berth", "berth-scheduler"),
        ("berth-training-2", "berth-training"),
        ("batch-scheduler", ""),
        ("koord-scheduler", ""),
        ("default-scheduler", ""),
        ("volcano", ""),
        ("scheduler", ""),
    ],
)
def test_a_scheduler_name_that_is_nearly_ours_is_a_question(name: str, meant: str) -> None:
    verdict = judged(pod("a", {GPU: "50"}, schedulerName=name), schedulers=("berth-scheduler", "berth-training"))
    question = (f'spec.schedulerName: "{name}"; did you mean {meant}?',) if meant else ()
    assert verdict == Admitted(warnings=question)


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        pytest.param(
            {"schedulingGroup": {"x": 1}},
            "pod uses spec.schedulingGroup without podGroupName, which Berth does not support",
            id="group",
        ),
        pytest.param(
            {"requests": {"nvidia.com/gpu": "100"}},
            "nvidia.com/gpu: 100; did you mean kubernetes.io/gpu: 100? (container main)",
            id="a hundred cards",
        ),
    ],
)
def test_what_may_fit_later_is_a_warning(fields: Raw, warning: str) -> None:
    assert judged(pod("a", **fields, schedulerName="berth-scheduler")) == Admitted(warnings=(warning,))


def test_a_pod_that_has_a_node_is_read_by_no_scheduler() -> None:
    assert judged(pod("a", {GPU: "1"}, schedulerName="berth-scheduler", on="node")) == Admitted()


def test_devices_of_plug_ins_are_known() -> None:
    kinds = Kinds((Kind(name="npu", resources={"example.com/npu": 1}),))
    fields = {"annotations": {names.ALLOCATE_HINT: '{"npu": {}}'}, "schedulerName": "berth-scheduler"}
    manifest = pod("a", {"example.com/npu": "1"}, **fields)
    assert judged(manifest, kinds=kinds) == Admitted()
    assert 'device-allocate-hint: "npu"; allowed are' in judged(manifest).denial


@pytest.mark.parametrize(
    ("days", "due"), [(0, False), (59, False), (61, True), (90, True)], ids=["new", "a third left", "less", "over"]
)
def test_a_certificate_is_due_when_a_third_is_left(days: int, *, due: bool) -> None:
    assert certificates.issue("host", NOW, 90 * DAY).is_due(NOW + days * DAY) is due


def test_what_is_no_certificate_is_due() -> None:
    assert certificates.Pair(certificate=b"", key=b"").is_due(NOW)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.b.svc", "<DNSName(value='a.b.svc')>"),
        ("127.0.0.1", "<IPAddress(value=127.0.0.1)>"),
        ("fd00::1", "<IPAddress(value=fd00::1)>"),
    ],
    ids=["name", "address", "IPv6"],
)
def test_a_certificate_names_its_host(host: str, expected: str, tmp_path: Path) -> None:
    pair = certificates.issue(host, NOW, DAY)
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(map(repr, names)) == [expected]
    (tmp_path / "tls.pem").write_bytes(pair.certificate + pair.key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.pem")
