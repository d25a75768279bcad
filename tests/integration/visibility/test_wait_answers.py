"""A change that should end a wait, by the visibility API's answer, binds the pod. Any other change does not: 60 cases.

All cases share one operator and wait at once. Each has its own node, which its pod selects by a label. The changes are
made with the API server's objects. `tests/component/test_wait_answers.py` tries random changes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from berth_api import names
from devcluster import waiting
from tests.aggregated import own_world
from tests.conftest import prepare
from tests.integration.operator.world import free_ports, gpu
from tests.integration.visibility.conftest import API, SERVED, Installation

Change = Callable[["Stage", str], object]

CPU: Final = {"cpu": "1"}
CARD: Final = {"kubernetes.io/gpu": "100"}
TAINT: Final = {"key": "example.com/x", "value": "", "effect": "NoSchedule"}
ENDS, NEEDED, NO_HELP = "Ends", "Needed", "DoesNotHelp"
STATE: Final = 10.0
"""Seconds within which an answer shows the nodes and pods that were created last."""
POLL: Final = 0.5
"""Seconds between two questions, of which a user may ask 20 a second."""
SETTLE: Final = 3.0
"""Seconds after the last bind for which pods that no change helps must still wait."""


@dataclass(frozen=True)
class Scenario:
    """A node, who holds what of it, what its waiting pod requests, and changes with what must be reported of each."""

    name: str
    requests: Mapping[str, str]
    changes: Sequence[tuple[str, str, Change]]
    """(message with the placeholders {node}, {pod} and {holder}, answer, change)."""
    node: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    held_ports: Sequence[int] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


class Stage:
    """The nodes and pods of all cases."""

    def __init__(self, installation: Installation) -> None:
        self.installation, self.world, self.arena = installation, installation.world, installation.arena
        self.nodes: dict[str, str] = {}
        """Case -> its node."""
        self.spare: list[str] = []

    def prepare(self, count: int) -> None:
        """Create nodes that no pod selects yet, at once."""
        self.spare = list(self.arena.nodes(count, capacity={"cpu": "2"}))

    def node(
        self, case: str, *, gpus: int = 1, labels: Mapping[str, str] | None = None, cpu: str = "", **spec: Any
    ) -> str:
        """Make a node as a case needs it; its label, by which the pod of the case selects it, comes last."""
        name = self.spare.pop()
        self.world.device(name, [gpu(minor) | {"id": f"GPU-{name}-{minor}"} for minor in range(gpus)])
        if cpu:
            self.set_cpu(name, cpu)
        self.arena.merge("nodes", name, {"metadata": {"labels": {"case": case, **(labels or {})}}, "spec": spec})
        return name

    def set_cpu(self, name: str, cpu: str) -> None:
        amounts = {"capacity": {"cpu": cpu}, "allocatable": {"cpu": cpu}}
        self.arena.merge("nodes", name, {"status": amounts}, subresource="status")

    def pod(self, name: str, case: str, requests: Mapping[str, str], fields: Mapping[str, Any]) -> dict[str, Any]:
        selector = {"case": case, **fields.get("nodeSelector", {})}
        own = {key: value for key, value in fields.items() if key not in ("claim", "ports", "annotations")}
        annotations = {key: value.format(case=case) for key, value in fields.get("annotations", {}).items()}
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{case}"}}
        made = self.arena.pod(
            name,
            requests=requests,
            limits=requests,
            annotations=annotations,
            **{**own, "nodeSelector": selector, "volumes": [claim] if "claim" in fields else []},
        )
        ports = [{"containerPort": port, "hostPort": port} for port in fields.get("ports", ())]
        made["spec"]["containers"][0]["ports"] = ports
        return made

    def messages(self, case: str) -> list[str]:
        """Return what is said of changes."""
        explanation = self.installation.api.get(f"{API}/namespaces/{self.arena.namespace}/pods/{case}/explanation")
        return [each["message"] for each in explanation.get("remedies", ())]


# --- changes ------------------------------------------------------------------------------------------------------


def untaint(stage: Stage, case: str) -> None:
    stage.arena.merge("nodes", stage.nodes[case], {"spec": {"taints": []}})


def uncordon(stage: Stage, case: str) -> None:
    stage.arena.merge("nodes", stage.nodes[case], {"spec": {"unschedulable": None}})


def labelled(stage: Stage, case: str) -> None:
    stage.arena.merge("nodes", stage.nodes[case], {"metadata": {"labels": {"pool": "b"}}})


def more_cpu(stage: Stage, case: str) -> None:
    stage.set_cpu(stage.nodes[case], "3")


def ended(stage: Stage, case: str) -> None:
    stage.world.remove(f"{case}-holder")


def claim(stage: Stage, case: str) -> None:
    spec = {
        "storageClassName": "by-hand",
        "accessModes": ["ReadWriteOnce"],
    }
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": "/none"}}
    stage.arena.apply(
        [
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{stage.arena.namespace}-{case}"},
                "spec": {
                    **spec,
                    **volume,
                    "claimRef": {"namespace": stage.arena.namespace, "name": f"data-{case}"},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": f"data-{case}"},
                "spec": {
                    **spec,
                    "volumeName": f"{stage.arena.namespace}-{case}",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            },
        ]
    )


def node(**fields: Any) -> Change:
    """Return the addition of a node that has these fields."""
    return lambda stage, case: stage.node(case, **fields)


def member(requests: Mapping[str, str]) -> Change:
    return lambda stage, case: stage.arena.create([stage.pod(f"{case}-more", case, requests, GANG)])


# --- cases --------------------------------------------------------------------------------------------------------

GANG: Final = {"annotations": {names.POD_GROUP: "g-{case}", names.POD_GROUP_MIN_MEMBER: "2"}}
ANOTHER, NO_OTHER = "another node like {node} would end the wait", "another node like {node} would not help"
END = "the end of pod {holder} on {node} would end the wait"
CLAIM = 'PersistentVolumeClaim "data-{pod}", bound to a volume that every node reaches'
ANY_NODE = "a new node, whatever it has, would not help"
H100 = {"annotations": {names.MODEL_GLOBS: "*A100*"}}


def scenarios(requests: Mapping[str, str], kind: str) -> list[Scenario]:
    """Return the scenarios of pods with these requests."""
    tainted = {"taints": [TAINT]}
    return [
        Scenario(
            f"{kind}-taint",
            requests,
            [
                ("removing the taint example.com/x:NoSchedule from {node} would end the wait", ENDS, untaint),
                (NO_OTHER, NO_HELP, node(**tainted)),
                ("a node like {node} without the taint example.com/x:NoSchedule would end the wait", ENDS, node()),
            ],
            node=tainted,
        ),
        Scenario(
            f"{kind}-cordon",
            requests,
            [("uncordoning {node} would end the wait", ENDS, uncordon), (ANOTHER, ENDS, node())],
            node={"unschedulable": True},
        ),
        Scenario(
            f"{kind}-label",
            requests,
            [
                ("the label pool=b on {node} would end the wait", ENDS, labelled),
                (NO_OTHER, NO_HELP, node()),
                ("a node like {node} with the label pool=b would end the wait", ENDS, node(labels={"pool": "b"})),
            ],
            fields={"nodeSelector": {"pool": "b"}},
        ),
        Scenario(
            f"{kind}-cpu",
            {**requests, "cpu": "1"},
            [(END, ENDS, ended), ("1 cpu more on {node} would end the wait", ENDS, more_cpu), (ANOTHER, ENDS, node())],
            held={"cpu": "2"},
        ),
        Scenario(
            f"{kind}-much-cpu",
            {**requests, "cpu": "3"},
            [
                ("1 cpu more on {node} would end the wait", ENDS, more_cpu),
                (NO_OTHER, NO_HELP, node()),
                ("a node like {node} with 3 cpu would end the wait", ENDS, node(cpu="3")),
            ],
        ),
        Scenario(
            f"{kind}-claim",
            requests,
            [(f"{CLAIM} would end the wait", ENDS, claim), (ANY_NODE, NO_HELP, node())],
            fields={"claim": True},
        ),
        Scenario(
            f"{kind}-claim-and-taint",
            requests,
            [(f"needed first: {CLAIM}", NEEDED, claim), (f"needed first: {CLAIM}", NEEDED, untaint)],
            node=tainted,
            fields={"claim": True},
        ),
        Scenario(
            f"{kind}-port",
            requests,
            [(END, ENDS, ended), (ANOTHER, ENDS, node())],
            held={"cpu": "100m"},
            held_ports=[8080],
            fields={"ports": [8080]},
        ),
        Scenario(
            f"{kind}-members",
            requests,
            [
                ("1 more member of pod group {namespace}/g-{pod} like {pod} (1 of 2 exist) would end the wait", ENDS,
                 member(requests)),
                ("1 more member of pod group {namespace}/g-{pod} like {pod} (1 of 2 exist) would end the wait", NO_HELP,
                 node(gpus=2)),
            ],
            node={"gpus": 2},
            fields=GANG,
        ),
    ]  # fmt: skip


CARDS: Final = [
    Scenario(
        "card-in-use",
        CARD,
        [(END, ENDS, ended), ("gpu 0 free on {node} would end the wait", ENDS, ended), (ANOTHER, ENDS, node())],
        held=CARD,
    ),
    Scenario(
        "more-cards",
        {"kubernetes.io/gpu": "200"},
        [
            (NO_OTHER, NO_HELP, node()),
            ("a node like {node} with 2 GPUs would end the wait", ENDS, node(gpus=2)),
            (NO_OTHER, NO_HELP, more_cpu),
        ],
    ),
    Scenario(
        "another-card",
        CARD,
        [
            (NO_OTHER, NO_HELP, node(gpus=0)),
            ("a node like {node} with 1 GPU of model *A100* would end the wait", ENDS, node()),
        ],
        node={"gpus": 0},
        fields=H100,
    ),
    Scenario(
        "two-reasons",
        CARD,
        [
            (NO_OTHER, NO_HELP, labelled),
            (NO_OTHER, NO_HELP, untaint),
            (
                "a node like {node} with the label pool=b and without the taint example.com/x:NoSchedule would",
                ENDS,
                node(labels={"pool": "b"}),
            ),
        ],
        node={"taints": [TAINT]},
        fields={"nodeSelector": {"pool": "b"}},
    ),
    Scenario(
        "never",
        {"kubernetes.io/gpu": "150"},
        [
            ("only a corrected pod, created again, can be placed", NO_HELP, node(gpus=4)),
            ("only a corrected pod, created again, can be placed", NO_HELP, more_cpu),
        ],
        node={"gpus": 4},
    ),
    Scenario(
        "share",
        {"kubernetes.io/gpu": "50"},
        [(END, ENDS, ended), (ANOTHER, ENDS, node())],
        held={"kubernetes.io/gpu": "60"},
    ),
    Scenario(
        "two-labels",
        CPU,
        [("the labels pool=b and rack=1 on {node} would end the wait", NO_HELP, labelled)],
        fields={"nodeSelector": {"pool": "b", "rack": "1"}},
    ),
]
SCENARIOS: Final = [*scenarios(CPU, "cpu"), *scenarios(CARD, "card"), *CARDS]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install the component with one operator."""
    with own_world(tmp_path_factory.mktemp("wait-answers"), prepare) as world:
        installed = Installation(world)
        installed.install()
        [port] = free_ports(1)
        installed.start(port).process.logged(SERVED)
        waiting.until(installed.is_available, what="the APIService to be available")
        yield installed


def test_what_is_said_of_a_change_comes_true(installation: Installation) -> None:
    stage = Stage(installation)
    cases = {
        f"{scenario.name}-{number}": (scenario, change)
        for scenario in SCENARIOS
        for number, change in enumerate(scenario.changes)
    }
    assert len(cases) == 60
    stage.prepare(len(cases))
    for case, (scenario, _) in cases.items():
        stage.nodes[case] = stage.node(case, **scenario.node)
    held = {case: scenario for case, (scenario, _) in cases.items() if scenario.held}
    stage.arena.create(
        [stage.pod(f"{case}-holder", case, each.held, {"ports": each.held_ports}) for case, each in held.items()]
    )
    stage.world.wait(lambda: len(stage.world.bound_names()) == len(held), what="the pods that hold capacity")
    stage.arena.create([stage.pod(case, case, each.requests, each.fields) for case, (each, _) in cases.items()])
    stage.world.wait(lambda: len(installation.names("queue")) >= len(cases) - 2, what="the pods to wait")

    for case, (_, (message, _, _)) in cases.items():
        assert_is_said(stage, case, message)
    before = stage.world.bound_names()
    stage.prepare(len(cases))
    for case, (_, (_, _, change)) in cases.items():
        change(stage, case)
    expected = {case for case, (_, (_, answer, _)) in cases.items() if answer == ENDS}
    stage.world.wait(lambda: expected <= stage.world.bound_names(), what="the pods whose wait has ended")
    time.sleep(SETTLE)
    bound = stage.world.bound_names() - before
    assert bound & cases.keys() == expected


def assert_is_said(stage: Stage, case: str, message: str) -> None:
    """Wait until the API says what must be said."""
    wanted = message.format(node=stage.nodes[case], pod=case, holder=f"{case}-holder", namespace=stage.arena.namespace)
    said: list[str] = []

    def is_said() -> bool:
        said[:] = stage.messages(case)
        return any(each.startswith(wanted) for each in said)

    waiting.until(is_said, what=f"{case}: {wanted!r}", deadline=STATE, poll=POLL, details=lambda: str(said))
