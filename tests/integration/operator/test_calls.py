"""The operator sends one call for each bind, and never an older message after a newer one."""

import sys
import time
from collections import Counter

import pytest

from devcluster import Cluster
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.proxy import FaultProxy

HALF = {"kubernetes.io/gpu": "50"}
POD_WRITES = ("POST", "PUT", "PATCH", "DELETE")


def test_each_bind_is_one_call(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(8)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    world.wait_sum(node, "kubernetes.io/gpu", "800")
    # It may wait until the operator has heard of the sums that it has written itself.
    world.pod("first", HALF)
    world.wait(lambda: world.events("first", "Scheduled"), what="the Event of the first")
    events = rf"/{world.arena.namespace}/events$"
    before = len(proxy.sent("POST", events))
    names = [f"p{number}" for number in range(12)]

    world.pods(names, HALF)

    world.wait(lambda: all(world.events(name, "Scheduled") for name in names), what="the Events")
    world.wait_allocated(node, "6.5")
    # Nothing else was written to a pod, and no single pod was read to do so.
    # The dry runs are the test of the fence, once in each term.
    sent = [each for method in (*POD_WRITES, "GET") for each in proxy.sent(method, r"/pods/p\d")]
    of_pods = [each for each in sent if "dryRun=All" not in each.path]
    assert Counter((each.method, each.path.split("?")[0]) for each in of_pods) == {
        ("POST", f"/api/v1/namespaces/{world.arena.namespace}/pods/{name}/binding"): 1 for name in names
    }
    # Of its pods: an operator also reports Devices that fail, and those of other tests are among them.
    assert len(proxy.sent("POST", events)) - before == len(names)


@pytest.mark.parametrize("cards", [pytest.param(40, id="all at once"), pytest.param(8, id="as cards fall free")])
def test_forty_pods_take_the_cards_of_a_node(proxy: FaultProxy, world: World, cluster: Cluster, cards: int) -> None:
    [node] = world.arena.nodes()
    [port] = words.free_ports(1)
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token), metrics_port=port)
    names = [f"p{number}" for number in range(40)]
    world.pods(names, {"nvidia.com/gpu": "1"})
    for name in names:
        world.waits(name, "1 node.s. have no Device")

    world.device(node, [words.gpu(minor) for minor in range(cards)])

    done: set[str] = set()
    while len(done) < len(names):
        since = time.monotonic()
        world.wait(lambda: len(world.bound_names()) == cards, what=f"{cards} pods to be bound")
        # On a quiet machine it is less than one.
        sys.stdout.write(f"{cards} cards are taken after {time.monotonic() - since:.2f} s\n")
        taken = {words.minors(each)[0] for each in world.arena.list("pods") if each["spec"].get("nodeName")}
        assert taken == set(range(cards))
        done |= world.bound_names()
        for name in world.bound_names():
            world.remove(name)
    assert done == set(names)
    # Each was decided once and sent once: none was refused, forgotten or backed off.
    assert Counter(each.path for each in proxy.sent("POST", r"/binding$")) == {
        f"/api/v1/namespaces/{world.arena.namespace}/pods/{name}/binding": 1 for name in names
    }

    def binds() -> list[str]:
        return [line for line in words.metrics(port, "berth_binds_total") if not line.endswith(" 0.0")]

    # A pod is bound before the operator has the answer that it counts.
    world.wait(lambda: binds() == ['{outcome="bound"} 40.0'], what="40 counted binds")
    profile = world.arena.scheduler_name
    scheduled = f'{{profile="{profile}",result="scheduled"}} 40.0'
    assert scheduled in words.metrics(port, "scheduler_schedule_attempts_total")


def test_waiting_pod_costs_two_calls(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    world.arena.nodes()
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))

    world.pods(["p", "q"], HALF)

    for name in ("p", "q"):
        world.waits(name, "1 node.s. have no Device")
    world.wait(lambda: len(proxy.sent("POST", rf"/{world.arena.namespace}/events$")) == 2, what="the Events")
    assert len(proxy.sent("PATCH", r"/pods/[pq]/status")) == 2


def test_older_reason_never_replaces_a_newer(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    slow = proxy.hold("PATCH", "/pods/p/status", count=1)
    world.pod("p", {"nvidia.com/gpu": "2"})
    slow.wait()

    # The first reason is still on its way when it is outdated.
    world.device(node, [words.gpu(0)])
    world.pod("q", {"nvidia.com/gpu": "2"})
    world.waits("q", ".*too few healthy GPUs .2 requested")
    slow.release()

    world.waits("p", ".*too few healthy GPUs .2 requested")
    assert "node(s) have no Device" not in world.message("p")


def test_late_reason_does_not_mark_a_bound_pod(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    # It is refused repeatedly; each retry must check whether the message still holds.
    busy = proxy.answer("PATCH", "/pods/p/status", status=500, count=2)
    world.pod("p", {"nvidia.com/gpu": "1"})
    busy.wait()

    world.device(node, [words.gpu(0)])

    world.bound("p")
    world.wait(lambda: world.events("p", "Scheduled"), what="the Event, which comes behind all else")
    scheduled = words.condition(world.arena.get("pods", "p"), "PodScheduled")
    assert scheduled["status"] == "True"


def test_refused_bind_is_reported_and_tried_again(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    refused = proxy.answer("POST", "/pods/p/binding", status=403)

    world.pod("p", HALF)

    [event] = world.wait(lambda: world.events("p", "FailedBinding"), what="the Event")
    assert event["type"] == "Warning"
    # Its cards are free meanwhile, and it is decided again after its back-off.
    world.pod("whole", {"nvidia.com/gpu": "1"})
    world.bound("whole")
    refused.remove()
    world.remove("whole")
    world.bound("p")
    assert len(proxy.sent("POST", "/pods/p/binding")) >= 2


def test_pod_that_goes_while_it_is_bound_holds_nothing(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    bind = proxy.hold("POST", "/pods/p/binding", count=1)
    world.pod("p", {"nvidia.com/gpu": "1"})
    bind.wait()
    world.pod("q", {"nvidia.com/gpu": "1"})
    world.waits("q", "too few free GPUs")

    world.remove("p")
    bind.release()

    world.bound("q", deadline=words.PROMPT)
    world.wait_allocated(node, "1")


def test_pod_of_the_same_name_is_not_bound_by_an_old_decision(
    proxy: FaultProxy, world: World, cluster: Cluster
) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    bind = proxy.hold("POST", "/pods/p/binding", count=1)
    world.pod("p", {"nvidia.com/gpu": "1"})
    bind.wait()
    world.remove("p")
    world.wait(lambda: not world.arena.list("pods"), what="the pod to go")
    # The new pod of the same name requests less; the decision for the first must not reach it.
    world.pod("p", HALF)

    bind.release()

    [card] = words.allocation(world.bound("p"))["gpu"]
    assert card["resources"]["kubernetes.io/gpu-core"] == "50"
    world.wait_allocated(node, "0.5")
