"""Limits of shares on the real API server: what policies and the webhook add to pods, and which pods are refused.

The namespace enforces Pod Security `restricted`.
"""

import base64
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import jsonpatch
import orjson
import pytest

from berth_api import names, request
from berth_api.admission.injection import VARIABLE
from berth_api.request.isolation import ALLOWED
from berth_operator.apis.webhook import review
from berth_operator.apis.webhook.mutations import Isolation, Mutations, Routing
from berth_operator.apis.webhook.validation import Validation
from berth_operator.state.objects import pods
from devcluster import Arena, waiting
from devcluster.control_plane.api import Manifest
from tests import manifests_of_others
from tests.integration.policies.conftest import ACTIVE_SECONDS
from tests.objects.builders import CORE, GPU, MEMORY, NVIDIA, RATIO, SHARED
from tests.programs import policies

KEY: Final = names.ISOLATION_KEY
MPS = {KEY: "mps"}
HAMI = {names.ISOLATION: "HAMi-core"}
OF_MPS = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
RESPONDERS = review.responders(Mutations(), Routing(scheduler="none"), Validation(), Isolation())
Admit = Callable[[Arena, Manifest], Manifest]


@pytest.fixture(scope="module", autouse=True)
def _in_force(arena: Arena) -> Iterator[None]:
    label(arena, **{"pod-security.kubernetes.io/enforce": "restricted"})
    applied = [
        document
        for file in ("injection", "../components/isolation/policy", "../components/isolation/validation")
        for document in arena.apply(policies.policies(f"{file}.yaml", arena))
    ]
    forged = pod(arena, {GPU: "50"}, annotations=MPS, env=[{"name": "CUDA_MPS_X", "value": "1"}])
    waiting.until(lambda: "CUDA_MPS_X" in arena.refusal(forged), deadline=ACTIVE_SECONDS, what="the policies")
    limited = pod(arena, {GPU: "50"}, annotations=MPS)
    waiting.until(lambda: is_limited(arena, limited), deadline=ACTIVE_SECONDS, what="the policies that change pods")
    unlimited = pod(arena, {GPU: "50"})
    label(arena, **{names.UNLIMITED_SHARES: "warn"})
    waiting.until(lambda: warnings(arena, unlimited), deadline=ACTIVE_SECONDS, what="the warnings")
    label(arena, **{names.UNLIMITED_SHARES: None})
    waiting.until(lambda: not warnings(arena, unlimited), deadline=ACTIVE_SECONDS, what="no warnings")
    yield
    for document in applied:
        arena.cluster.api.delete(arena.cluster.api.path_of(document))


def is_limited(arena: Arena, probe: Manifest) -> bool:
    # What refuses may be in force before what changes.
    made = arena.admitted_or_none(probe)
    return made is not None and all(name in str(made) for name in OF_MPS)


def label(arena: Arena, **labels: str | None) -> None:
    arena.merge("namespaces", arena.namespace, {"metadata": {"labels": labels}})


def pod(arena: Arena, requests: dict[str, str], **fields: Any) -> Manifest:
    """Return a pod whose only container has these requests and `env`."""
    container = {"name": "main", "image": "none", "resources": {"limits": requests}, "env": fields.pop("env", [])}
    annotations = fields.pop("annotations", {})
    made = arena.pod(
        containers=[{**container, "securityContext": RESTRICTED}], automountServiceAccountToken=False, **fields
    )
    made["metadata"] |= {"annotations": annotations} if annotations else {}
    return made


def warnings(arena: Arena, manifest: Manifest) -> str:
    """Return what `kubectl apply` shows of a pod."""
    path = f"/api/v1/namespaces/{arena.namespace}/pods"
    return "; ".join(arena.cluster.api.warnings("POST", path, body=manifest, query={"dryRun": "All"}))


def by_policy(arena: Arena, manifest: Manifest) -> Manifest:
    return arena.admitted(manifest)


def by_webhook(arena: Arena, manifest: Manifest) -> Manifest:
    """Return the pod from the webhook, which gets what the API server sends: a pod with defaults."""
    sent = arena.admitted(manifest | {"spec": manifest["spec"] | {"schedulerName": "volcano"}})
    namespace = arena.get("namespaces", arena.namespace)["metadata"]["labels"].get(KEY)
    for path in ("/inject", f"/isolate/{namespace}" if namespace in ALLOWED else "/isolate"):
        response = RESPONDERS[path](orjson.dumps({"request": {"uid": "u", "object": sent}}))["response"]
        sent = jsonpatch.apply_patch(sent, base64.b64decode(response.get("patch", b"W10=")).decode())
    return sent


@pytest.fixture(params=[by_policy, by_webhook], ids=["policy", "webhook"])
def admit(request: pytest.FixtureRequest) -> Admit:
    """Admit a pod in one of the two ways."""
    way: Admit = request.param
    return way


def given(made: Manifest) -> tuple[str, ...]:
    """Return what the first container requests of Berth's."""
    [main, *_] = made["spec"]["containers"]
    amounts = main["resources"]
    own = tuple(name for name in amounts.get("requests", {}) if name.startswith("berth.dev/"))
    assert all(amounts[kind][name] == "1" for kind in ("requests", "limits") for name in own)
    return own


def read(made: Manifest) -> dict[str, str]:
    [main, *_] = made["spec"]["containers"]
    paths = {each["name"]: each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "") for each in main["env"]}
    return {name: path.removeprefix("metadata.annotations['main.devices.berth.dev/") for name, path in paths.items()}


def test_a_share_by_mps_gets_a_resource_and_two_variables(arena: Arena, admit: Admit) -> None:
    made = admit(arena, pod(arena, {GPU: "50"}, annotations=MPS, env=[{"name": "PLAIN", "value": "1"}]))
    assert given(made) == (names.MPS_RESOURCE,)
    assert read(made) == {
        VARIABLE: "visible']",
        "PLAIN": "",
        OF_MPS[0]: "mps-memory-limit']",
        OF_MPS[1]: "mps-threads']",
    }
    assert made["spec"].keys().isdisjoint({"volumes", "nodeSelector"})
    parsed = pods.pending(pods.transform(made))
    assert (parsed.error, parsed.request.isolation, parsed.request.unlimited) == ("", "mps", ())


def test_a_share_by_hami_core_gets_a_limit_for_each_card(arena: Arena, admit: Admit) -> None:
    made = admit(arena, pod(arena, {SHARED: "2", MEMORY: "24Gi"}, labels=HAMI))
    assert given(made) == (names.HAMI_CORE_RESOURCE,)
    assert read(made) == {
        VARIABLE: "visible']",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "memory-limit-0']",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "memory-limit-1']",
        "CUDA_DEVICE_SM_LIMIT": "sm-limit-0']",
    }
    assert made["spec"].keys().isdisjoint({"volumes", "nodeSelector"})


@pytest.mark.parametrize(
    ("fields", "namespace", "expected"),
    [
        pytest.param({}, None, (), id="nothing"),
        pytest.param({"annotations": {KEY: "required"}}, None, (names.MPS_RESOURCE,), id="required"),
        pytest.param({}, "hami-core", (names.HAMI_CORE_RESOURCE,), id="of the namespace"),
        pytest.param({}, "required", (names.MPS_RESOURCE,), id="required by the namespace"),
        pytest.param({}, "none", (), id="none in the namespace"),
        pytest.param({}, "other", (), id="a value that does not exist"),
        pytest.param({"annotations": {KEY: "none"}, "labels": HAMI}, "mps", (), id="the pod's own none"),
        pytest.param(
            {"annotations": MPS, "labels": HAMI},
            "hami-core",
            (names.MPS_RESOURCE,),
            id="the annotation before the label",
        ),
        pytest.param({"labels": HAMI}, "mps", (names.HAMI_CORE_RESOURCE,), id="the label before the namespace"),
    ],
)
def test_the_pod_decides_then_its_namespace(
    arena: Arena, admit: Admit, fields: dict[str, Any], namespace: str | None, expected: tuple[str, ...]
) -> None:
    label(arena, **{KEY: namespace, names.UNLIMITED_SHARES: "warn"})
    try:
        policies_read_labels(arena, labelled=True)
        assert given(admit(arena, pod(arena, {GPU: "50"}, **fields))) == expected
    finally:
        label(arena, **{KEY: None, names.UNLIMITED_SHARES: None})
        policies_read_labels(arena, labelled=False)


def policies_read_labels(arena: Arena, *, labelled: bool) -> None:
    """Wait until all policies see the namespace's labels; before, one may see them and the next one not yet."""
    free = pod(arena, {GPU: "50"}, annotations={KEY: "none"})
    waiting.until(lambda: bool(warnings(arena, free)) == labelled, deadline=ACTIVE_SECONDS, what="the label")


EACH = {"genius/gpu-memory-each": "8192"}


@pytest.mark.parametrize(
    ("requests", "labels", "is_share"),
    [
        pytest.param({GPU: "50"}, {}, True, id="half a card"),
        pytest.param({GPU: "100"}, {}, False, id="a card"),
        pytest.param({GPU: "200"}, {}, False, id="two cards"),
        pytest.param({"koordinator.sh/gpu": "20"}, {}, True, id="koordinator"),
        pytest.param({MEMORY: "8Gi"}, {}, True, id="memory"),
        pytest.param({CORE: "50", RATIO: "20"}, {}, True, id="cores and memory"),
        pytest.param({CORE: "50", RATIO: "100"}, {}, False, id="all memory"),
        pytest.param({SHARED: "2", RATIO: "100"}, {}, True, id="half of two"),
        pytest.param({SHARED: "2", RATIO: "200"}, {}, False, id="all of two"),
        pytest.param({NVIDIA: "1"}, {}, False, id="kubelet's"),
        pytest.param({"nvidia.com/mig-1g.10gb": "1"}, {}, False, id="an instance"),
        pytest.param({"cpu": "1"}, {}, False, id="no GPUs"),
        pytest.param({"cpu": "1"}, {"genius/gpu-number": "2"}, False, id="cards by label"),
        pytest.param({"cpu": "1"}, {"genius/gpu-number": "2", **EACH}, True, id="memory by label"),
        pytest.param({}, EACH, True, id="memory by label, and no resources"),
        pytest.param({"nvidia.com/gpumem": "4096"}, {}, True, id="by a word"),
    ],
)
@pytest.mark.parametrize("mode", ["mps", "hami-core"])
def test_only_shares_are_limited_and_both_ways_agree(
    arena: Arena, requests: dict[str, str], labels: dict[str, str], is_share: bool, mode: str
) -> None:
    manifest = pod(arena, requests, annotations={KEY: mode}, labels=labels)
    made = by_policy(arena, manifest)
    assert given(made) == ((f"berth.dev/{mode}",) if is_share else ())
    assert by_webhook(arena, manifest)["spec"] | {"schedulerName": arena.scheduler_name} == made["spec"]
    assert pods.pending(pods.transform(made)).request.unlimited == ()


@pytest.mark.parametrize(
    ("requests", "annotations"),
    [
        ({NVIDIA: "2", "nvidia.com/gpumem": "4000"}, {}),
        ({"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "4000"}, {}),
        ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
    ],
    ids=["HAMi", "Volcano", "KAI"],
)
def test_each_card_of_a_word_has_a_limit(
    arena: Arena, admit: Admit, requests: dict[str, str], annotations: dict[str, str]
) -> None:
    made = admit(arena, pod(arena, requests, annotations={KEY: "hami-core", **annotations}))
    assert {"CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_1"} <= read(made).keys()


@pytest.mark.parametrize("file", ["hami/mode-hami-core.yaml", "volcano/mode-hami-core.yaml"])
def test_words_of_other_systems_ask_for_it(arena: Arena, admit: Admit, file: str) -> None:
    theirs = manifests_of_others.pod(manifests_of_others.FOLDER / file)
    annotations = theirs["metadata"]["annotations"]
    limits = theirs["spec"]["containers"][0]["resources"]["limits"]
    assert given(admit(arena, pod(arena, limits, annotations=annotations))) == (names.HAMI_CORE_RESOURCE,)


def forged(name: str) -> dict[str, Any]:
    return {"annotations": MPS, "env": [{"name": name, "value": "0=80G"}]}


def of_another(name: str) -> dict[str, Any]:
    path = "metadata.annotations['other.devices.berth.dev/mps-memory-limit']"
    return {"annotations": MPS, "env": [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}]}


def preloading(name: str) -> dict[str, Any]:
    return {"labels": HAMI, "env": [{"name": name, "value": "x"}]}


HALF_BY_MPS = {GPU: "50", names.MPS_RESOURCE: "1"}


@pytest.mark.parametrize(
    ("requests", "fields", "message"),
    [
        pytest.param({GPU: "50"}, {"annotations": {KEY: "yes"}}, "allowed are mps, hami-core, required", id="a value"),
        *(
            pytest.param({GPU: "50"}, make(name), f"container main: variable {name} may replace the limit", id=name)
            for make, name in (
                (forged, OF_MPS[0]),
                (forged, OF_MPS[1]),
                (forged, "CUDA_MPS_PIPE_DIRECTORY"),
                (of_another, OF_MPS[0]),
                (preloading, "LD_PRELOAD"),
                (preloading, "CUDA_DEVICE_MEMORY_LIMIT"),
                (preloading, "CUDA_DEVICE_MEMORY_LIMIT_0"),
                (preloading, "CUDA_DEVICE_MEMORY_SHARED_CACHE"),
                (preloading, "CUDA_DISABLE_CONTROL"),
            )
        ),
        pytest.param(
            {GPU: "100", names.MPS_RESOURCE: "1"}, {}, "requests berth.dev/mps without a share", id="a whole card"
        ),
        pytest.param(
            {"cpu": "1", names.HAMI_CORE_RESOURCE: "1"}, {}, "berth.dev/hami-core without a share", id="no GPUs"
        ),
        pytest.param(HALF_BY_MPS, {}, "without the variables of its limits", id="the resource alone"),
        pytest.param(HALF_BY_MPS, {"labels": HAMI}, "allowed is 1 of one of them", id="both"),
        pytest.param({GPU: "50", names.MPS_RESOURCE: "2"}, {}, "allowed is 1 of one of them", id="two"),
    ],
)
def test_what_contradicts_isolation_is_refused(
    arena: Arena, requests: dict[str, str], fields: dict[str, Any], message: str
) -> None:
    assert message in arena.refusal(pod(arena, requests, **fields))


@pytest.mark.parametrize(
    ("scheduler", "fields"),
    [("volcano", {}), ("default-scheduler", {}), ("volcano", {"nodeName": "node"}), ("", {"nodeName": "node"})],
    ids=["another", "kube-scheduler", "on a node", "of Berth, on a node"],
)
def test_no_pod_that_berth_does_not_place_takes_what_limits_shares(
    arena: Arena, scheduler: str, fields: dict[str, str]
) -> None:
    for name, requests in itertools.product((names.MPS_RESOURCE, names.HAMI_CORE_RESOURCE), ({}, {NVIDIA: "1"})):
        who = scheduler or arena.scheduler_name
        taking = pod(arena, {name: "400", **requests}, scheduler_name=who, labels=EACH, **fields)
        assert f"container main requests {name}, and Berth does not place the pod" in arena.refusal(taking)


@pytest.mark.parametrize("name", ["CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES"])
def test_variables_of_cuda_that_limit_nothing_are_allowed(arena: Arena, name: str) -> None:
    for asking in ({"annotations": MPS}, {"labels": HAMI}):
        assert arena.refusal(pod(arena, {GPU: "50"}, env=[{"name": name, "value": "1"}], **asking)) == ""


@pytest.mark.parametrize("path", ["/run/berth", "/var/run/berth/mps", "//run//berth/mps", "/var/lib/berth/hami-core"])
def test_folders_of_berth_on_the_node_are_refused(arena: Arena, path: str) -> None:
    volumes = [{"name": "x", "hostPath": {"path": path}}]
    manifest = pod(arena, {GPU: "50"}, volumes=volumes)
    label(arena, **{"pod-security.kubernetes.io/enforce": None})
    try:
        # Pod Security sees the label a moment later.
        waiting.until(
            lambda: "has one of Berth's folders" in arena.refusal(manifest), deadline=ACTIVE_SECONDS, what="the refusal"
        )
    finally:
        label(arena, **{"pod-security.kubernetes.io/enforce": "restricted"})


def test_shares_without_limits_are_allowed_warned_about_or_refused_by_namespace(arena: Arena) -> None:
    free = pod(arena, {GPU: "50"})
    replica = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb.shared"
    shared = [pod(arena, {name: "1"}, scheduler_name=each) for name in replica for each in (arena.scheduler_name, "x")]
    others = (pod(arena, {GPU: "50"}, annotations=MPS), pod(arena, {GPU: "100"}), pod(arena, {NVIDIA: "1"}))
    try:
        label(arena, **{names.UNLIMITED_SHARES: "warn"})
        waiting.until(lambda: warnings(arena, free), deadline=ACTIVE_SECONDS, what="the warning")
        assert "container main: nothing limits its share of a card" in warnings(arena, free)
        assert arena.refusal(free) == ""
        assert all("nothing limits its share of a card" in warnings(arena, each) for each in shared)
        assert [warnings(arena, each) for each in others] == [""] * 3
        label(arena, **{names.UNLIMITED_SHARES: "deny"})
        waiting.until(lambda: arena.refusal(free), deadline=ACTIVE_SECONDS, what="the refusal")
        assert "a share of a card without a limit is refused in this namespace" in arena.refusal(free)
        assert all("is refused in this namespace" in arena.refusal(each) for each in shared)
        assert [arena.refusal(each) for each in others] == [""] * 3
    finally:
        label(arena, **{names.UNLIMITED_SHARES: None})
    waiting.until(lambda: not arena.refusal(free), deadline=ACTIVE_SECONDS, what="shares to be allowed again")


@pytest.mark.parametrize(
    ("file", "default", "misspelt"),
    [
        ("validation", {"unlimited": '"deny"'}, {names.UNLIMITED_SHARES: "denied"}),
        ("policy", {"default": '"mps"'}, {KEY: "requird"}),
    ],
)
def test_an_unknown_value_of_the_namespace_counts_as_the_default(
    arena: Arena, file: str, default: dict[str, str], misspelt: dict[str, str]
) -> None:
    free = pod(arena, {GPU: "50"})

    def counts() -> bool:
        return bool(arena.refusal(free)) or is_limited(arena, free)

    try:
        label(arena, **misspelt)
        arena.apply(policies.policies(f"../components/isolation/{file}.yaml", arena, default))
        waiting.until(counts, deadline=ACTIVE_SECONDS, what="the default to count")
    finally:
        arena.apply(policies.policies(f"../components/isolation/{file}.yaml", arena))
        label(arena, **dict.fromkeys(misspelt))
    waiting.until(lambda: not counts(), deadline=ACTIVE_SECONDS, what="shares to be allowed again")


def test_a_share_by_words_needs_a_limit_like_any_other(arena: Arena) -> None:
    by_words = pod(arena, {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4096"})
    try:
        label(arena, **{names.UNLIMITED_SHARES: "deny"})
        waiting.until(lambda: arena.refusal(by_words), deadline=ACTIVE_SECONDS, what="the refusal")
    finally:
        label(arena, **{names.UNLIMITED_SHARES: None})
    waiting.until(lambda: not arena.refusal(by_words), deadline=ACTIVE_SECONDS, what="shares to be allowed again")


def test_pods_of_others_are_left_alone(arena: Arena) -> None:
    for scheduler in ("volcano", "default-scheduler"):
        made = arena.admitted(pod(arena, {"cpu": "1"}, annotations=MPS, schedulerName=scheduler))
        assert given(made) == ()


def test_a_request_is_parsed_without_isolation_as_before(arena: Arena) -> None:
    made = arena.admitted(pod(arena, {GPU: "50"}))
    parsed = pods.pending(pods.transform(made)).request
    assert parsed.isolation == ""
    assert dict(parsed.plugin_requests) == {GPU: 50}
    assert parsed.devices.parts == request.of_resources({GPU: 50}).parts
