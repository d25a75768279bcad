"""The operator sends one call for each bind.

tests/component/binding/test_binding.py and test_reports.py have refused, late and outdated calls.
"""

from collections import Counter

from devcluster import Cluster
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.stand_ins.proxy import FaultProxy

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


def test_forty_pods_take_the_cards_of_a_node(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    [port] = words.free_ports(1)
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token), metrics_port=port)
    cards, names = 8, [f"p{number}" for number in range(40)]
    world.pods(names, {"nvidia.com/gpu": "1"})
    for name in names:
        world.waits(name, "1 node.s. have no Device")

    world.device(node, [words.gpu(minor) for minor in range(cards)])

    done: set[str] = set()
    while len(done) < len(names):
        world.wait(lambda: len(world.bound_names()) == cards, what=f"{cards} pods to be bound")
        taken = {words.minors(each)[0] for each in world.arena.list("pods") if each["spec"].get("nodeName")}
        assert taken == set(range(cards))
        done |= world.bound_names()
        for name in world.bound_names():
            world.remove(name)
    assert done == set(names)
    # Each was decided once and sent once: none was refused, forgotten or backed off.
    assert Counter(each.path.partition("?")[0] for each in proxy.sent("POST", r"/binding$")) == {
        f"/api/v1/namespaces/{world.arena.namespace}/pods/{name}/binding": 1 for name in names
    }

    def binds() -> list[str]:
        return [line for line in words.metrics(port, "berth_binds_total") if not line.endswith(" 0.0")]

    # A pod is bound before the operator has the answer that it counts.
    world.wait(lambda: binds() == ['{outcome="bound"} 40.0'], what="40 counted binds")
    profile = world.arena.scheduler_name
    scheduled = f'{{profile="{profile}",result="scheduled"}} 40.0'
    assert scheduled in words.metrics(port, "scheduler_schedule_attempts_total")


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
