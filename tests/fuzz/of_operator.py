"""Parsers of the operator: objects of the API server, configuration, files of commands, requests to its servers."""

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp.test_utils import TestServer
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from yarl import URL

from berth_api import names
from berth_api.request import BUILT_IN
from berth_operator.apis.aggregated import options
from berth_operator.apis.aggregated.continuation import Continuation
from berth_operator.apis.aggregated.statuses import StatusError
from berth_operator.apis.debug_api import debug_server as debug_api
from berth_operator.apis.debug_api.debug_server import DebugApi
from berth_operator.apis.extender import protocol
from berth_operator.apis.list_watch import kinds
from berth_operator.apis.visibility.sources import FleetRows, HolderRows, QueueRows
from berth_operator.apis.webhook.mutations import Isolation, Mutations, Routing
from berth_operator.apis.webhook.review import ReviewError, responders
from berth_operator.apis.webhook.validation import Validation
from berth_operator.commands import snapshots, workload
from berth_operator.commands.errors import InputError
from berth_operator.core.claims.selectors import SelectorError, compile_selector
from berth_operator.core.decision.cycle import Failure, Placement, decide
from berth_operator.core.decision.policy import Policy
from berth_operator.core.fleet.fleet import Fleet
from berth_operator.metrics.gpu import exposition
from berth_operator.metrics.gpu.answers import AnswerError, vector
from berth_operator.settings import configuration
from berth_operator.settings.configuration import ConfigurationError
from berth_operator.state.cache.cluster import Cluster
from berth_operator.state.objects import devices, genius_priority, kubelet, pods
from berth_operator.state.watches.snapshot import PODS, Snapshot
from tests.claims.selectors_rows.grammar import random_expressions
from tests.claims.selectors_rows.rows import views
from tests.fuzz import inputs
from tests.fuzz.of_api import ANNOTATIONS, DEVICE, GPU_POD, LABELS, strings
from tests.fuzz.target import Target
from tests.objects.builders import container, device, entry, lease, node, pod, pod_group, whole
from tests.objects.resource_claims import allocated, gpu, resource_slice, taint, taint_rule

_TERM: Final = {
    "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]},
    "topologyKey": "kubernetes.io/hostname",
}
POD: Final = pod(
    "pod",
    {"kubernetes.io/gpu": "50", "cpu": "500m", "memory": "1Gi"},
    annotations={name: strings({name: value})[name] for name, value in ANNOTATIONS.items()},
    labels={"app": "a", names.GENIUS_PRIORITY: "-1"},
    priority=5,
    tolerations=[{"key": "k", "operator": "Exists", "effect": "NoSchedule"}],
    nodeSelector={"a": "b"},
    affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_TERM]}},
    initContainers=[container("init", {"nvidia.com/gpu": "1"})],
)
_PLAIN: Final = pod("pod", {"kubernetes.io/gpu": "50"}, labels=LABELS, bare=True)
_BOUND: Final = pod(
    "pod",
    {"kubernetes.io/gpu": "100"},
    allocated=whole(0),
    on="node",
    status={
        "phase": "Running",
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [
            {"name": "main", "resources": {"requests": {"cpu": "1"}}, "allocatedResources": {"cpu": "2"}}
        ],
    },
)
_FREE: Final = ("annotations", "labels", "nodeSelector")
"""The parts of a pod whose texts a tenant chooses freely."""


# --- objects --------------------------------------------------------------------------------------------------------


def _pending(raw: dict[str, Any]) -> None:
    read = pods.pending(pods.transform(raw))
    assert len(read.error) <= 1024
    fleet = _cluster().fleet
    assert isinstance(decide(fleet, read, Policy()), Placement | Failure)


def _bound(raw: dict[str, Any]) -> None:
    cluster = _cluster()
    cluster.put_bound(pods.transform(raw))
    assert "node" in cluster.fleet.rows


def _rows(values: Sequence[Any]) -> None:
    """Render the rows of the visibility API, which the scheduler's process does."""
    waiting, bound, grace = values
    cluster = _cluster()
    cluster.put_pending(pods.transform(waiting))
    limits = {"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": grace}
    cluster.put_bound(pods.transform({**bound, "spec": {**bound["spec"], **limits}}))
    for source in (FleetRows(cluster, lambda: "rack"), QueueRows(cluster), HolderRows(cluster)):
        for row in filter(None, source.rows()):
            if (rendered := row.render()) is not None:
                assert orjson.dumps(rendered)
                assert source.kind.cells(rendered)


def _cluster() -> Cluster:
    cluster = Cluster(grace=40)
    cluster.node_cache.put_node(node("node"))
    cluster.node_cache.put_device(device("node", entry(0), entry(1)))
    cluster.fleet.set_fresh("node", fresh=True)
    return cluster


def _device(raw: dict[str, Any]) -> None:
    status = raw.get("status")
    body = {
        **raw,
        "metadata": {**device("node")["metadata"], **_annotated(raw)},
        # The definition ensures that it is an object.
        "status": status if isinstance(status, dict) else {},
    }
    assert devices.record(body).status is not None
    cluster = _cluster()
    cluster.node_cache.put_device({**body, "metadata": {**body["metadata"], "generation": 2}})
    fleet, pending = cluster.fleet, pods.pending(pods.transform(pod("pod", {"kubernetes.io/gpu": "50"})))
    assert isinstance(decide(fleet, pending, Policy()), Placement | Failure)


def _annotated(raw: dict[str, Any]) -> dict[str, Any]:
    metadata = raw.get("metadata")
    found = metadata if isinstance(metadata, dict) else {}
    return {field: strings(found.get(field)) for field in ("annotations", "labels")}


def _gpu_pod(raw: dict[str, Any]) -> None:
    kubelet.gpu_pod({**raw, "metadata": GPU_POD["metadata"], "status": {}})


def _entry(source: dict[str, Any]) -> None:
    metadata = {"resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z", "managedFields": []}
    read = kinds.NODES.entry({**source, "metadata": {**DEVICE["metadata"], **metadata}})
    assert orjson.loads(read.body)["kind"] == "GpuNode"


# --- files ----------------------------------------------------------------------------------------------------------

_CONFIGURATION: Final = {
    "apiVersion": "config.berth.dev/v1alpha1",
    "kind": "BerthSchedulerConfiguration",
    "profiles": [
        {
            "schedulerName": "berth-scheduler",
            "strategy": {"nodes": "MostAllocated", "cards": "LeastAllocated"},
            "plugins": {
                "filters": {"disabled": ["*"]},
                "scores": {"disabled": ["*"], "weights": {"node-affinity": 2.5}},
            },
            "preemption": True,
            "reserveAfterSeconds": 60,
            "subdevices": "last",
            "gang": {"topologyKeys": ["topology.kubernetes.io/zone"], "keepPartial": True},
            "genius": {"static": {"weight": 1.0}, "dynamic": {"power": 0.5}, "powerPreference": "Draw"},
        }
    ],
    "modelAliases": {"a100": ["*A100*"]},
    "namespaceLimits": {"default": {"gpu": 800, "gpu-memory": "640Gi"}},
}
_WORKLOAD: Final = {
    "kind": "List",
    "items": [
        {**_PLAIN, "kind": "Pod"},
        {
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {"replicas": 2, "template": {"spec": _PLAIN["spec"]}},
        },
        {"kind": "Job", "metadata": {"name": "j"}, "spec": {"parallelism": 2, "completions": 3, "template": _PLAIN}},
        {**pod_group("g", 2), "kind": "PodGroup"},
        {"kind": "PriorityClass", "metadata": {"name": "p"}, "value": 7, "globalDefault": True},
        {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}},
    ],
}
_OBJECTS: Final = {
    "nodes": node("node"),
    "devices": DEVICE,
    "gpu pods": GPU_POD,
    "leases": lease("node"),
    "pod groups": pod_group("g", 2),
    PODS: POD,
    "placed pods": _BOUND,
    "claims": {
        "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
        "spec": {
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "s",
            "accessModes": ["ReadWriteOnce"],
        },
    },
    "volumes": {
        "metadata": {"name": "v"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"name": "c"},
        },
    },
    "resource slices": resource_slice(gpu(0, taints=[taint()])),
    "resource claims": allocated("c", "gpu-0", pods=["u"]),
    "device taint rules": taint_rule(selector={"driver": "d"}, tainted=taint()),
    "budgets": {
        "metadata": {"name": "b", "namespace": "ns", "uid": "u"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}},
        "status": {"disruptionsAllowed": 1},
    },
}


def _configuration(content: bytes) -> None:
    assert configuration.parse(content, Path("berth.yaml")).policies


def _workload(content: bytes) -> None:
    read = workload.read(content.decode(errors="replace"), "file")
    for _, body in read.pods[:20]:
        _admitted(read, body)


def _admitted(read: workload.WorkloadFile, body: Any) -> None:
    classes = {each["metadata"]["name"]: each for each in read.priority_classes}
    admission = workload.Admission(namespace="ns", schedulers=("berth-scheduler",), priority_classes=classes)
    document = workload.Document(where="file", body=body)
    pods.pending(pods.transform(admission.admit(document, body)))


def _snapshot(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "snapshot"
        file.write_bytes(snapshots.head() + content)
        snapshots.load(file, Snapshot(grace=40, schedulers=("berth-scheduler",)))


def _line(kind: str, raw: Any) -> dict[str, Any]:
    return {"of": PODS if kind == "placed pods" else kind, "object": raw}


# --- what servers receive -------------------------------------------------------------------------------------------

_RESPONDERS: Final = responders(
    Mutations(runtime_class="nvidia"), Routing(scheduler="berth-scheduler"), Validation(), Isolation(default="required")
)
_HAMI: Final = pod(
    "pod", {"koordinator.sh/gpu.shared": "2"}, labels={"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
)
_REVIEWS: Final = tuple(
    {"request": {"uid": "u", "kind": {"kind": kind}, "namespace": "ns", "object": body, "oldObject": before}}
    for kind, body, before in (
        ("Pod", POD, None),
        ("Pod", {**POD, "spec": {**POD["spec"], "schedulerName": "berth-scheduler"}}, None),
        ("Pod", _HAMI, None),
        ("Pod", {**_PLAIN, "spec": {**_PLAIN["spec"], "ephemeralContainers": [{"name": "e"}]}}, _PLAIN),
        ("Deployment", {"metadata": {"name": "d"}, "spec": {"template": {"spec": _PLAIN["spec"]}}}, None),
    )
)
_EXTENDER: Final = {
    "Pod": POD,
    "NodeNames": ["node", "other"],
    "NodeNameToMetaVictims": {"node": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}},
    "PodNamespace": "ns",
    "PodName": "pod",
    "PodUID": "uid",
    "Node": "node",
}
_WITH_NODES: Final = {"Pod": POD, "Nodes": {"items": [node("node")]}}
_QUERY: Final = {
    "labelSelector": "a=b,c!=d,e in (f, g),h notin (i),j,!k",
    "fieldSelector": "metadata.name=x,spec.node_name!=y",
    "watch": "true",
    "resourceVersion": "7",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "1",
    "sendInitialEvents": "false",
    "timeoutSeconds": "5",
    "limit": "2",
    "continue": "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Nywic3RhcnQiOiIwL25zL2EifQ",
}
_SERIES: Final = (
    "berth_gpu_reading_timestamp_seconds 1.5\n"
    'berth_gpu_memory_free_bytes{UUID="GPU-0",node="node",modelName="A\\"\\\\"} 1024\n'
    'berth_gpu_power_watts{UUID="GPU-1",node="node"} NaN 12\n'
)
_ANSWER: Final = {
    "status": "success",
    "data": {"resultType": "vector", "result": [{"metric": {"UUID": "GPU-0", "Hostname": "n"}, "value": [1.5, "7"]}]},
}


def _reviews(body: bytes) -> None:
    refused = 0
    for respond in _RESPONDERS.values():
        try:
            response = respond(body)["response"]
            assert orjson.loads(orjson.dumps(response))["uid"] == response["uid"]
        except ReviewError:
            refused += 1
    if refused:
        raise ReviewError(f"{refused} of {len(_RESPONDERS)}")


def _extender(body: bytes) -> None:
    refused = 0
    for read in (protocol.node_args, protocol.preempt_args, protocol.bind_args):
        try:
            args = read(body)
            if not isinstance(args, protocol.BindArgs):
                read_pod = protocol.read_pod(args.pod, BUILT_IN, "default-scheduler")
                assert isinstance(decide(_cluster().fleet, read_pod, Policy()), Placement | Failure)
        except protocol.ProtocolError:
            refused += 1
    if refused:
        raise protocol.ProtocolError(str(refused))


def _query(query: dict[str, Any]) -> None:
    given = {name: value if isinstance(value, str) else str(value) for name, value in query.items()}
    read = options.read(kinds.PODS, "ns", given)
    read.selection.labels.matches({"a": "b"})
    assert 0 <= read.seconds <= options.MAX_SECONDS


def _continue(body: bytes) -> None:
    read = Continuation.decode(base64.urlsafe_b64encode(body).decode().rstrip("="))
    assert Continuation.decode(read.encode()) == read


class _Snapshots:
    """The Fleet that the debug API shows."""

    async def whole(self) -> Fleet:
        return _cluster().fleet

    async def of(self, node: str) -> Fleet:  # noqa: ARG002 - it is among all
        return _cluster().fleet


def _debug(path: str) -> None:
    """Ask the debug API for a path below its own, as clients may write it."""

    async def ask() -> int:
        application = DebugApi(snapshots=_Snapshots, guard=None, address="127.0.0.1").application()
        async with TestServer(application) as server, aiohttp.ClientSession() as session:
            url = URL(f"{server.make_url(debug_api.PATH)}/{quote(path, safe='/?&=%')}", encoded=True)
            async with session.get(url) as answer:
                assert answer.content_type == "application/json"
                orjson.loads(await answer.read())
                return answer.status

    assert asyncio.run(ask()) < HTTPStatus.INTERNAL_SERVER_ERROR


def _exposed(content: bytes) -> None:
    samples = exposition.samples(content.decode(errors="replace"), "node", now=0.0)
    assert len(samples) <= exposition.MAX_CARDS


_TOKENS: Final = (
    *(
        "device",
        ".attributes",
        '["gpu.example.com"]',
        ".model",
        ".?x",
        "[?0]",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "?",
    ),
    *(
        "!",
        "-",
        "+",
        "*",
        "/",
        "%",
        "==",
        "<",
        " in ",
        "&&",
        "||",
        "1",
        "2u",
        "1.5",
        '"a"',
        "b'\\xff'",
        "null",
        "true",
        "x",
    ),
    *(
        ".all(x, ",
        ".map(x, ",
        "cel.bind(x, ",
        ".size()",
        "string(",
        "int(",
        "quantity(",
        "semver(",
        ".matches(",
        ".sort()",
    ),
    *(
        "lists.range(9999)",
        "optional.of(",
        ".value()",
        ".split(",
        ".replace(",
        "timestamp(",
        "duration(",
        "ip(",
        "cidr(",
    ),
)


def _damaged(expression: str) -> SearchStrategy[str]:
    """Return an expression with a part replaced."""
    places = st.integers(0, len(expression))
    return st.builds(
        lambda at, to, text: expression[:at] + text + expression[to:], places, places, st.sampled_from(_TOKENS)
    )


def _selected(expression: str) -> object:
    """Evaluate a selector on each device; an error of one keeps no other from being looked at."""
    selector = compile_selector(expression)
    for view in views():
        with contextlib.suppress(SelectorError):
            selector.evaluate(view, 100_000)
    return selector


TARGETS: Final = (
    Target(name="pending pod", inputs=inputs.typed(POD, _PLAIN, below=(*_FREE, "requests")), parse=_pending),
    Target(name="bound pod", inputs=inputs.typed(_BOUND, {**_BOUND, "status": {}}, below=_FREE), parse=_bound),
    Target(
        name="visibility rows",
        inputs=st.tuples(
            inputs.typed(POD, _PLAIN, below=(*_FREE, "requests")),
            inputs.typed(_BOUND, below=_FREE),
            st.sampled_from((0, 30, 2**40, 2**50, 2**63 - 1)),
        ),
        parse=_rows,
    ),
    Target(name="device record", inputs=inputs.objects(DEVICE), parse=_device),
    Target(name="gpu pod record", inputs=inputs.objects(GPU_POD), parse=_gpu_pod),
    Target(name="served device", inputs=inputs.typed(DEVICE, below=("model", "labels", "topology")), parse=_entry),
    Target(
        name="genius priorities",
        inputs=st.one_of(inputs.texts, st.from_regex(r"([a-z*]{1,3}=[0-9]{1,12},?){0,3}", fullmatch=True)),
        parse=genius_priority.read_limits,
        errors=(ValueError,),
    ),
    Target(
        name="configuration",
        inputs=inputs.as_yaml(inputs.near(_CONFIGURATION)),
        parse=_configuration,
        errors=(ConfigurationError,),
    ),
    Target(
        name="selector",
        inputs=st.one_of(
            inputs.texts,
            st.integers(0, 2**32).map(lambda seed: next(random_expressions(seed))).flatmap(_damaged),
            st.lists(st.sampled_from(_TOKENS), max_size=30).map("".join),
        ),
        parse=_selected,
        errors=(SelectorError,),
    ),
    Target(name="workload", inputs=inputs.as_yaml(inputs.near(_WORKLOAD)), parse=_workload, errors=(InputError,)),
    Target(
        name="snapshot",
        inputs=inputs.as_json(inputs.near(*(_line(kind, raw) for kind, raw in _OBJECTS.items()))),
        parse=_snapshot,
        errors=(InputError,),
    ),
    Target(name="reviews", inputs=inputs.as_json(inputs.near(*_REVIEWS)), parse=_reviews, errors=(ReviewError,)),
    Target(
        name="extender",
        inputs=inputs.as_json(inputs.near(_EXTENDER, _WITH_NODES)),
        parse=_extender,
        errors=(protocol.ProtocolError,),
    ),
    Target(name="list options", inputs=inputs.objects(_QUERY), parse=_query, errors=(StatusError,)),
    Target(
        name="continue token",
        inputs=inputs.as_json(inputs.near({"v": "meta.k8s.io/v1", "rv": 7, "start": "0/ns/a"})),
        parse=_continue,
        errors=(StatusError,),
    ),
    Target(name="debug API", inputs=inputs.texts, parse=_debug),
    Target(name="agent metrics", inputs=inputs.damaged(st.just(_SERIES.encode())), parse=_exposed),
    Target(
        name="prometheus answer",
        inputs=inputs.as_json(inputs.near(_ANSWER)),
        parse=lambda body: list(vector(body)),
        errors=(AnswerError,),
    ),
)
