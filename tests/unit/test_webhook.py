"""The webhook's answers and verdicts, and when it renews a certificate."""

import asyncio
import base64
import re
import ssl
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from berth_api import names
from berth_api.admission import injection
from berth_api.request import Kind, Kinds
from berth_client.errors import ApiError, Unreachable
from berth_operator.apis.serving import certificates
from berth_operator.apis.webhook import bounds, review
from berth_operator.apis.webhook.bindings import BindingValidation
from berth_operator.apis.webhook.mutations import Isolation, Mutations, Routing, patch
from berth_operator.apis.webhook.validation import Admitted, Validation
from tests.objects.builders import GPU, Raw, container, pod

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NONE = Mutations()
TEXT = st.text(alphabet='a",[{\\:}]\n', max_size=8)
JSON = st.recursive(TEXT, lambda values: st.lists(values) | st.dictionaries(TEXT, values))


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


MUTATING = (
    "/inject",
    "/inject/late",
    "/isolate",
    "/isolate/mps",
    "/route",
    "/route-words",
    "/route-devices",
    "/rewrite",
)


def of_size(containers: int) -> Raw:
    """Return a pod of Berth with this many containers."""
    made = pod("a", {GPU: "50"}, schedulerName="berth-scheduler")
    one = {"image": "a", "resources": {"limits": {GPU: "50"}}}
    made["spec"]["containers"] = [{"name": f"c{number}", **one} for number in range(containers)]
    return made


def responses(manifest: Raw, **request: Any) -> dict[str, Raw]:
    body = orjson.dumps({"request": {"uid": "u", "kind": {"kind": "Pod"}, "object": manifest, **request}})
    made = review.responders(NONE, Routing(scheduler="berth-scheduler"), Validation(), Isolation(default="mps"))
    return {path: made[path](body)["response"] for path in (*MUTATING, "/validate")}


def test_a_pod_of_too_many_containers_is_denied_where_mutation_is_required_and_else_admitted() -> None:
    problem = "spec: 20000 containers; allowed are at most 1000"
    began = time.process_time()
    answered = responses(of_size(20_000))
    assert time.process_time() - began < 2
    assert {path: answered[path]["status"]["message"] for path in MUTATING} == dict.fromkeys(MUTATING, problem)
    assert answered["/validate"] == {"uid": "u", "allowed": True, "warnings": [problem]}
    within = responses(of_size(1000))
    assert all(within[path]["allowed"] for path in MUTATING)


def test_containers_before_an_update_and_of_a_template_count_too() -> None:
    problem = "spec: 1001 containers; allowed are at most 1000"
    before = responses(of_size(1), oldObject=of_size(1001))
    assert before["/inject"]["status"]["message"] == problem
    template = {"metadata": {"name": "a"}, "spec": {"template": of_size(1001)}}
    assert responses(template, kind={"kind": "Deployment"})["/validate"]["warnings"] == [problem]


def test_other_values_are_counted_too() -> None:
    many = of_size(1)
    many["metadata"]["annotations"] = {f"berth.dev/min-gpu-mem{number}": "x" for number in range(30_000)}
    problem = "the object has more than 30000 values, which is the most that Berth reads"
    assert responses(many)["/inject"]["status"]["message"] == problem


def test_a_body_of_too_many_values_is_not_parsed() -> None:
    with pytest.raises(review.ReviewError, match="the review has more than 400000 values"):
        review.answer(b"[" + b"[]," * 200_000 + b"[]]", NONE)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1," * 200_000, id="numbers"),
        pytest.param(orjson.dumps([[0] * 10] * 20_000).decode(), id="a matrix"),
        pytest.param(orjson.dumps([{"a": "b\\"}] * 150_000).decode(), id="JSON with quotes and backslashes"),
    ],
)
def test_values_in_texts_do_not_count(text: str) -> None:
    large = of_size(1)
    large["spec"]["containers"][0]["env"] = [{"name": "A", "value": text}]
    answered = responses(large, oldObject=large)
    assert all(answered[path]["allowed"] for path in answered)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\\" * 2**23, id="backslashes"),
        pytest.param(b'"' * 2**23, id="quotes"),
        pytest.param(b'"' + b"," * 2**23, id="an open text"),
        pytest.param(b'",' * 2**22, id="texts"),
        pytest.param(b'"' + b'\\"' * 2**22, id="an open text of quotes"),
        pytest.param(b'"\\' * 2**22, id="quotes and backslashes"),
        pytest.param(b'"a",' * 2**21, id="values"),
    ],
)
def test_counting_is_quick_for_any_bytes(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(review.ReviewError):
        review.answer(b"," * (bounds.MAX_SEPARATORS + 1) + body, NONE)
    assert time.process_time() - began < 0.5  # 0.1 s on a quiet machine


@given(JSON)
def test_separators_are_counted_as_a_parser_sees_them(value: Any) -> None:
    body = orjson.dumps(value)
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", body)
    assert bounds.separators(body) == sum(map(outside.count, b",[{"))


@dataclass(frozen=True)
class Pods:
    """An API server with one pod, or one that answers with an error."""

    answer: Raw | ApiError

    async def get_pod(self, namespace: str, name: str) -> Raw:
        assert (namespace, name) == ("ns", "a")
        if isinstance(self.answer, ApiError):
            raise self.answer
        return self.answer


BINDING = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n"}}
OF_BINDING = orjson.dumps({"request": {"uid": "u", "namespace": "ns", "object": BINDING}})


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [
        pytest.param(pod("a", {GPU: "50"}), False, id="a pod that would see no GPU"),
        pytest.param(pod("a", {"cpu": "1"}), True, id="a pod without GPUs"),
        pytest.param(pod("a", {"nvidia.com/gpu": "1"}), True, id="a pod with kubelet's"),
        pytest.param(ApiError(404, "NotFound", "no such pod"), True, id="a pod that is gone"),
    ],
)
async def test_a_binding_by_which_a_pod_would_see_no_gpu_is_denied(answer: Raw | ApiError, *, allowed: bool) -> None:
    response = await review.binding_validated(OF_BINDING, BindingValidation(pods=Pods(answer)))
    assert (response["response"]["uid"], response["response"]["allowed"]) == ("u", allowed)


@pytest.mark.looptime
async def test_a_pod_is_not_read_for_longer_than_the_api_server_waits() -> None:
    class Silent(Pods):
        async def get_pod(self, namespace: str, name: str) -> Raw:
            await asyncio.sleep(600)
            return await super().get_pod(namespace, name)

    began = asyncio.get_running_loop().time()
    with pytest.raises(Unreachable, match="not read within 2 s"):
        await review.binding_validated(OF_BINDING, BindingValidation(pods=Silent({})))
    assert asyncio.get_running_loop().time() - began == pytest.approx(2.0)


async def test_what_waits_for_the_pod_of_a_binding_holds_only_names() -> None:
    for request in ({"uid": "u" * 254}, {"namespace": "n" * 254}, {"object": {"metadata": {"name": "a" * 254}}}):
        body = orjson.dumps({"request": {"uid": "u", "namespace": "ns", "object": BINDING, **request}})
        with pytest.raises(review.ReviewError, match="more than 253 characters"):
            await review.binding_validated(body, BindingValidation(pods=Pods({})))


async def test_a_binding_is_not_judged_without_its_pod() -> None:
    with pytest.raises(ApiError, match="busy"):
        await review.binding_validated(OF_BINDING, BindingValidation(pods=Pods(ApiError(503, "", "busy"))))
    with pytest.raises(review.ReviewError, match="not an AdmissionReview of a Binding"):
        await review.binding_validated(b"{}", BindingValidation(pods=Pods({})))


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
