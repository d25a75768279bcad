"""Requests that the user cannot have meant: refused while a pod waits, and charged unchanged once it is bound."""

import pytest

from berth_api import names
from berth_operator.state.objects import pods
from tests.objects.builders import CORE, FPGA, GPU, MEMORY, MI, RATIO, RDMA, SHARED, Raw, container, pod

K, KOORDINATOR = "kubernetes.io/", "koordinator.sh/"
HUNDREDTHS = "allowed are whole hundredths of a card"
BYTES = "allowed are whole bytes, from 1Mi"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        # As the API server stores 0.5 and 20000.
        pytest.param(GPU, "500m", f"0.5; {HUNDREDTHS}; did you mean 50?", id="half a GPU"),
        pytest.param(GPU, "0.01", f"0.01; {HUNDREDTHS}", id="a hundredth"),
        pytest.param(FPGA, "0.0001", f"0.001; {HUNDREDTHS}", id="as Kubernetes rounds it"),
        pytest.param(
            GPU, "1", "1; allowed are hundredths of a card, from 2; did you mean 100 (one whole GPU)?", id="one GPU"
        ),
        pytest.param(MEMORY, "20", f"20; {BYTES}; did you mean 20Gi?", id="GiB without the unit"),
        pytest.param(MEMORY, "20000", f"20000; {BYTES}; did you mean 20000Mi?", id="MiB without the unit"),
        pytest.param(MEMORY, "2000000.5", f"2000000.5; {BYTES}", id="half a byte"),
        pytest.param(MEMORY, "512Ki", "512Ki; allowed are bytes, from 1Mi", id="too little"),
        pytest.param(SHARED, "1500m", "1.5; allowed are whole numbers of cards", id="part of a number"),
    ],
)
def test_an_amount_that_cannot_be_meant_is_refused(name: str, value: str, message: str) -> None:
    wrong = container("b", {name: value})
    in_container, in_init = pod(containers=[container("a", {"cpu": "1"}), wrong]), pod(initContainers=[wrong])
    assert pods.pending(in_container).error == f"{name}: {message} (container b)"
    assert pods.pending(in_init).error == f"{name}: {message} (init container b)"


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param({GPU: "0"}, id="none"),
        pytest.param({GPU: "2"}, id="two hundredths"),
        pytest.param({GPU: "800"}, id="eight cards"),
        pytest.param({CORE: "1", MEMORY: "1Gi"}, id="hardly any cores"),
        pytest.param({RDMA: "1"}, id="a hundredth of a NIC"),
        pytest.param({MEMORY: "1Mi"}, id="the least memory"),
        pytest.param({SHARED: "2", MEMORY: "2Mi"}, id="the least on each of two"),
    ],
)
def test_what_users_of_koordinator_write_is_accepted(requests: dict[str, str]) -> None:
    assert pods.pending(pod("a", requests)).error == ""


def test_memory_is_not_spread_thinner_than_the_least() -> None:
    assert pods.pending(pod("a", {SHARED: "4", MEMORY: "3Mi"})).error == (
        f"{MEMORY}: 3Mi, {SHARED}: 4; allowed is at least 1Mi on each card (container main)"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("gpu-mem", "did you mean gpu-memory?", id="shortened"),
        pytest.param("gpus", "did you mean gpu?", id="plural"),
        pytest.param("gpu-ratio", "did you mean gpu-memory-ratio?", id="half of the name"),
        pytest.param(
            "gpu.count",
            "not known; allowed after kubernetes.io/ are gpu, gpu.shared, gpu-core, gpu-memory, gpu-memory-ratio",
            id="like none",
        ),
    ],
)
def test_an_unknown_resource_of_ours_is_refused(name: str, message: str) -> None:
    assert pods.pending(pod("a", {K + name: "1"})).error == f"{K}{name}: {message} (container main)"


# --- in the user's words ---------------------------------------------------------------------------------------------

PART_OR_WHOLE = "allowed are 1 to 100 (part of a card) or multiples of 100"


def of(name: str, *amounts: str, **fields: str) -> list[Raw]:
    """Return a container for each amount of a resource: a, b, ..."""
    return [container(chr(ord("a") + i), {name: amount}, **fields) for i, amount in enumerate(amounts)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(
            {"containers": of(GPU, *["25"] * 7)},
            f"{GPU}: 175; {PART_OR_WHOLE} "
            f"(the sum of {' and '.join(f'25 in container {name}' for name in 'abcde')} and 2 more)",
            id="a sum of many",
        ),
        pytest.param(
            {"containers": of(GPU, "60"), "initContainers": of(GPU, "150", "50")},
            f"{GPU}: 150; {PART_OR_WHOLE} (init container a)",
            id="the most at any time, in an init container",
        ),
        pytest.param(
            {"containers": of(GPU, "70"), "initContainers": of(GPU, "50", restartPolicy="Always")},
            f"{GPU}: 120; {PART_OR_WHOLE} (the sum of 50 in init container a and 70 in container a)",
            id="with a sidecar",
        ),
        pytest.param(
            {"containers": of(GPU, "70"), "overhead": {GPU: "50"}},
            f"{GPU}: 120; {PART_OR_WHOLE} (the sum of 70 in container a and 50 in spec.overhead)",
            id="with the overhead",
        ),
        pytest.param(
            {"containers": of(RATIO, "1k", "10")},
            f"{RATIO}: 1010; {PART_OR_WHOLE} (the sum of 1000 in container a and 10 in container b)",
            id="a number, not as it is stored",
        ),
        pytest.param(
            {"containers": [container(requests={CORE: "150", MEMORY: "10G"})]},
            f"{CORE}: 150; {PART_OR_WHOLE} (container main)",
            id="of two resources one",
        ),
        pytest.param(
            {"containers": [container(requests={CORE: "200", MEMORY: "10G"})]},
            f"{CORE}: 200, {MEMORY}: 10G puts gpu-core 200 on each of 1 card(s); allowed are up to 100: spread it with "
            "gpu.shared (container main)",
            id="memory with its unit",
        ),
        pytest.param(
            {"containers": [*of(MEMORY, "10G", "20Gi"), container("c", {RATIO: "50"})]},
            f"{MEMORY}: 30737145Ki, {RATIO}: 50 is not a request for GPUs; allowed is gpu-memory or gpu-memory-ratio, "
            f"not both: remove one of them ({MEMORY}: the sum of 10G in container a and 20Gi in container b; "
            f"{RATIO}: container c)",
            id="resources of several containers",
        ),
        pytest.param(
            {"containers": of(KOORDINATOR + "gpu", "50") + of(GPU, "50")},
            f"{KOORDINATOR}gpu and {GPU} are the same resource; request one of them (container a)",
            id="the same twice",
        ),
        pytest.param(
            {"containers": of("nvidia.com/mig-small", "1")},
            "nvidia.com/mig-small: 1 names no MIG profile; allowed are names such as nvidia.com/mig-1g.10gb "
            "(container a)",
            id="no profile",
        ),
        pytest.param(
            {"containers": of(MEMORY, "1Gi", "100Ei")},
            f"{MEMORY}: 100Ei; allowed are amounts below 8Pi (container b)",
            id="more memory than is counted",
        ),
        pytest.param(
            {"containers": of("nvidia.com/gpu", "5P", "5P")},
            "nvidia.com/gpu: 10000000000000000; allowed are amounts below 9007199254740992 "
            "(the sum of 5000000000000000 in container a and 5000000000000000 in container b)",
            id="a sum that is more than is counted",
        ),
    ],
)
def test_an_invalid_amount_is_quoted_as_written_and_where(spec: Raw, message: str) -> None:
    assert pods.pending(pod(**spec)).error == message


def test_a_resource_next_to_a_label_is_where_it_was_written() -> None:
    waiting = pod(containers=of(RDMA, "100"), labels={names.GENIUS_NUMBER: "1"})
    assert pods.pending(waiting).error == (
        f"label {names.GENIUS_NUMBER} and resource {RDMA}; request devices by one of the two (container a)"
    )


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(names.MIN_GPU_MEMORY, "100Ei"), (names.PARTITION_SPEC, '{"ringBusBandwidth": "100Ei"}')],
)
def test_an_annotation_with_more_than_is_counted_is_refused(annotation: str, value: str) -> None:
    error = pods.pending(pod(requests={GPU: "100"}, annotations={annotation: value})).error
    assert error.startswith(f"annotation {annotation}: ")
    assert "100Ei" in error


@pytest.mark.parametrize("name", ["koordinator.sh/gpu-other", "kubernetes.io/batch-cpu", "example.com/gpu-mem"])
def test_resources_of_others_are_left_alone(name: str) -> None:
    assert pods.pending(pod("a", {name: "1"})).error == ""


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param(
            {"annotations": {"berth.dev/gpu-modle": "*A100*"}},
            "annotation berth.dev/gpu-modle: did you mean gpu-model?",
            id="misspelt",
        ),
        pytest.param(
            {"annotations": {"berth.dev/movable": "yes"}},
            'annotation berth.dev/movable: "yes"; allowed are true, false',
            id="a value",
        ),
        pytest.param(
            {"labels": {"berth.dev/gpu-model": "a"}},
            "label berth.dev/gpu-model: did you mean the annotation of this name?",
            id="a label",
        ),
        pytest.param(
            {"labels": {"berth.dev/gpu-topolgy": "nvlink"}},
            "label berth.dev/gpu-topolgy: did you mean gpu-topology?",
            id="a misspelt label",
        ),
        pytest.param(
            {"labels": {"berth.dev/routing": "devices"}},
            "label berth.dev/routing: it is a label of Namespaces",
            id="of the namespace",
        ),
        pytest.param(
            {"annotations": {"berth.dev/color": "red"}},
            "annotation berth.dev/color: not known; allowed after berth.dev/ are gpu-model, min-gpu-memory, ",
            id="like none",
        ),
    ],
)
def test_an_unknown_name_of_ours_is_refused(fields: dict[str, dict[str, str]], message: str) -> None:
    assert pods.pending(pod("a", {GPU: "50"}, **fields)).error.startswith(message)


def test_names_that_pods_have_are_accepted() -> None:
    annotations = dict.fromkeys((names.EPOCH, names.POD_GROUP, names.POD_GROUP_MIN_MEMBER), "1")
    annotations |= {"main.devices.berth.dev/visible": "x", "team.example.com/berth.dev": "x"}
    assert pods.pending(pod("a", annotations=annotations, labels={names.FENCED_BY: "a"})).error == ""


@pytest.mark.parametrize(
    ("requests", "limits", "question"),
    [
        pytest.param(
            {GPU: "100"},
            {GPU: "800"},
            f"container a: {GPU}: 100 in requests and 800 in limits; "
            "Berth allocates what is requested; did you mean 800 in both?",
            id="cards",
        ),
        pytest.param(
            {CORE: "50", MEMORY: "512Mi", "cpu": "1"},
            {CORE: "50", MEMORY: "1Gi", "cpu": "2"},
            f"container a: {MEMORY}: 512Mi in requests and 1Gi in limits; "
            "Berth allocates what is requested; did you mean 1Gi in both?",
            id="memory",
        ),
        pytest.param({GPU: "100", RDMA: "1k"}, {GPU: "100", RDMA: "1000"}, "", id="equal"),
        pytest.param({GPU: "100"}, {}, "", id="no limits"),
        pytest.param({GPU: "100"}, {RDMA: "100"}, "", id="limits are the requests that are left out"),
    ],
)
def test_limits_above_requests_are_a_question(requests: dict[str, str], limits: dict[str, str], question: str) -> None:
    waiting = pod(containers=[{"name": "a", "resources": {"requests": requests, "limits": limits}}])
    assert pods.pending(waiting).request.questions == question
    assert pods.pending(waiting).error == ""


def test_no_card_and_no_memory_request_nothing() -> None:
    pending = pods.pending(pod("a", {"nvidia.com/gpu": "0", "nvidia.com/gpumem": "0"}))
    assert (pending.error, pending.request.devices.parts) == ("", ())


@pytest.mark.parametrize(("restart", "is_valid"), [(None, True), ("Always", False)])
def test_a_share_of_an_init_container_before_whole_cards(restart: str | None, *, is_valid: bool) -> None:
    share = {"name": "i", "resources": {"requests": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}}
    init = {**share, "restartPolicy": restart} if restart else share
    cards = {"name": "c", "resources": {"requests": {"nvidia.com/gpu": "2"}}}
    pending = pods.pending(pod(containers=[cards], initContainers=[init]))
    assert (pending.error == "") is is_valid
    assert [(part.count, part.whole) for part in pending.request.devices.parts] == ([(2, True)] if is_valid else [])


def test_what_a_limit_range_added_is_said() -> None:
    ranger = {"kubernetes.io/limit-ranger": "LimitRanger plugin set: nvidia.com/gpu request for container main"}
    error = pods.pending(pod("a", {GPU: "50", "nvidia.com/gpu": "2"}, annotations=ranger)).error
    assert error.endswith(" (a LimitRange of the namespace added nvidia.com/gpu)")
    assert "LimitRange" not in pods.pending(pod("a", {GPU: "150"}, annotations=ranger)).error
    two = {
        "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu, nvidia.com/gpu request for container a; x limit for"
    }
    assert pods.pending(pod("a", {GPU: "50", "nvidia.com/gpu": "2"}, annotations=two)).error == error


def test_what_asks_for_limits_is_named() -> None:
    share = {"nvidia.com/gpumem": "1000"}
    request = pods.pending(pod("a", share, annotations={"nvidia.com/vgpu-mode": "hami-core"})).request
    assert (request.unlimited, request.limited_by) == (("main",), "the annotation nvidia.com/vgpu-mode")


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"])
@pytest.mark.parametrize(
    ("requests", "value", "is_asked"),
    [
        ({GPU: "100"}, "3", True),
        ({GPU: "100"}, "GPU-8a3f", True),
        pytest.param({GPU: "100"}, 5000 * "9", True, id="more digits than a number may have"),
        ({}, "0", True),
        ({GPU: "100"}, "0", False),
        ({GPU: "400"}, "0,3", False),
        ({GPU: "100"}, "-1", False),
        ({GPU: "100"}, "", False),
    ],
)
def test_cards_that_a_container_chooses_by_itself_are_a_question(
    name: str, requests: dict[str, str], value: str, *, is_asked: bool
) -> None:
    variables = [{"name": name, "value": value}]
    raw = pods.transform(pod(containers=[{"name": "a", "env": variables, "resources": {"requests": requests}}]))
    pending = pods.pending(raw)
    question = f"container a has {name}={value}, which requests no card and numbers the container's own "
    assert pending.request.questions.startswith(question) is is_asked
    assert pending.error == ""


def test_cards_of_claims_are_not_asked_about() -> None:
    variables = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1"}]
    container = {"name": "a", "env": variables, "resources": {"claims": [{"name": "c"}]}}
    raw = pod(containers=[container], resourceClaims=[{"name": "c", "resourceClaimName": "c"}])
    assert pods.pending(pods.transform(raw)).request.questions == ""


@pytest.mark.parametrize(
    ("requests", "amounts"),
    [
        pytest.param({MEMORY: "20"}, {"gpu-memory": 20}, id="bytes"),
        pytest.param({GPU: "1"}, {"gpu-core": 1, "gpu-memory-ratio": 1}, id="a hundredth"),
        pytest.param({GPU: "500m"}, {"gpu-core": 1, "gpu-memory-ratio": 1}, id="a fraction"),
        pytest.param({SHARED: "2", MEMORY: str(MI)}, {"gpu-memory": MI // 2}, id="spread"),
    ],
)
def test_what_a_bound_pod_holds_stays_charged(requests: dict[str, str], amounts: dict[str, int]) -> None:
    count = int(requests.get(SHARED, 1))
    entries = [
        {"minor": minor, "id": f"GPU-{minor}", "resources": {K + name: str(amount) for name, amount in amounts.items()}}
        for minor in range(count)
    ]
    bound = pod("a", requests, allocated={"gpu": entries}, annotations={"berth.dev/older": "1"}, on="node")
    charge = pods.charge(bound)
    assert [(grant.minor, dict(grant.amounts)) for grant in charge.grants] == [
        (minor, amounts) for minor in range(count)
    ]
    assert charge.unknown == ()
    assert pods.pending(pod("a", requests)).error
