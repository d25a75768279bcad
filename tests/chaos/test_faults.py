"""Paused leaders, lost answers, refusals and broken connections: each pod is bound once, with its cards."""

import re
from pathlib import Path

import pytest

from demo.audit import audit
from devcluster import Cluster
from tests.integration.operator import world as words
from tests.integration.operator.world import World
from tests.programs.processes import QUICK_TERMS
from tests.stand_ins.proxy import FaultProxy

HALF = {"kubernetes.io/gpu": "50"}


def token(kubeconfig: Path) -> str:
    """Return the token in a kubeconfig."""
    return next(line.split("token:")[1].strip() for line in kubeconfig.read_text().splitlines() if "token:" in line)


def check(world: World) -> None:
    """Run the independent audit on all pods and nodes."""
    findings = audit(
        pods=world.arena.list("pods"),
        nodes=world.arena.list("nodes", labelSelector=world.arena.selector),
        devices=[each for each in world.arena.list("devices") if each["metadata"]["name"].startswith(world.arena.id)],
        scheduler=world.arena.scheduler_name,
    )
    assert not findings, "\n".join(map(str, findings))


def test_leader_paused_between_decision_and_write_changes_nothing(
    proxy: FaultProxy, world: World, account: Path
) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0), words.gpu(1)])
    first = world.operator(kubeconfig=proxy.kubeconfig(token(account)), **QUICK_TERMS)
    world.wait_ready(node, "True")
    bind = proxy.hold("POST", "/pods/p/binding", count=1)
    world.pod("p", {"nvidia.com/gpu": "1"})
    bind.wait()

    # The leader has decided card 0 for `p` and sent the Binding. It is paused; another takes over and allocates card 0
    # to a pod with a higher priority.
    first.pause()
    world.pod("urgent", {"nvidia.com/gpu": "1"}, labels={"genius/priority": "9"})
    second = world.operator(kubeconfig=account, takeover_pause=0.5, genius_priorities="*=9", **QUICK_TERMS)
    assert words.minors(world.bound("urgent")) == [0]
    assert words.minors(world.bound("p")) == [1]
    before = _settled(world)

    bind.release()
    first.resume()

    assert first.ended() == 1
    assert re.search(r"term \d+ has ended", first.text())
    assert "Traceback" not in first.text()
    assert "is over, the LeaderLease" in first.text()
    assert second.exit_code is None
    assert _settled(world) == before
    check(world)


def test_term_that_is_over_is_refused_by_the_server(proxy: FaultProxy, world: World, account: Path) -> None:
    """The pod still waits and its card is still free: only the fence keeps the old decision out."""
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)])
    first = world.operator(kubeconfig=proxy.kubeconfig(token(account)), **QUICK_TERMS)
    world.wait_ready(node, "True")
    bind = proxy.hold("POST", "/pods/p/binding", count=1)
    world.pod("p", HALF)
    bind.wait()
    first.pause()
    # The next leader takes the term, and waits so long before it reads that only the old decision can arrive.
    second = world.operator(kubeconfig=account, takeover_pause=60, wait=False, **QUICK_TERMS)
    second.logged('"event": "term changed"')
    before = _versions(world)

    bind.release()
    first.resume()

    assert first.ended() == 1
    assert re.search(r"term \d+ has ended", first.text())
    assert "Traceback" not in first.text()
    assert "is over, the LeaderLease" in first.text()
    assert _versions(world) == before
    assert not world.bound_names()
    second.kill()
    world.free_lease()
    world.operator(kubeconfig=account, **QUICK_TERMS)
    world.bound("p")
    check(world)


def _settled(world: World) -> dict[str, str]:
    """Return the pods' resourceVersions once all run: from then on only an operator would write to them."""
    world.wait(
        lambda: all(each["status"]["phase"] == "Running" for each in world.arena.list("pods")), what="all pods to run"
    )
    return _versions(world)


def _versions(world: World) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in world.arena.list("pods")}


def test_lost_answer_binds_once(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0), words.gpu(1)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    world.wait_sum(node, "kubernetes.io/gpu", "200")
    lost = proxy.lose("POST", "/pods/p[0-9]/binding", count=3)
    names = [f"p{number}" for number in range(4)]

    world.pods(names, HALF)

    for name in names:
        world.bound(name)
    lost.wait(3)
    world.wait(lambda: all(world.events(name, "Scheduled") for name in names), what="the Events")
    world.wait_allocated(node, "2")
    assert [len(world.events(name)) for name in names] == [1] * 4
    # The same Binding again, a 409, and a read of the pod: nothing was decided again.
    assert len(proxy.sent("POST", "/binding$")) == 4 + 3
    check(world)


@pytest.mark.parametrize("status", [429, 500])
def test_busy_server_binds_once_in_the_end(proxy: FaultProxy, world: World, cluster: Cluster, status: int) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(4)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    headers = {"Retry-After": "1"} if status == 429 else {}
    proxy.answer("POST", "/binding$", status=status, headers=headers, count=8)
    names = [f"p{number}" for number in range(8)]

    world.pods(names, HALF)

    world.wait(lambda: len(world.bound_names()) == len(names), what="all pods to be bound")
    world.wait(lambda: all(world.events(name, "Scheduled") for name in names), what="the Events")
    world.wait_allocated(node, "4")
    assert [len(world.events(name, "Scheduled")) for name in names] == [1] * 8
    check(world)


def test_cards_stay_charged_while_the_answer_is_unknown(proxy: FaultProxy, world: World, cluster: Cluster) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(0)])
    world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
    broken = proxy.answer("POST", "/pods/p/binding", status=500)
    world.pod("p", {"nvidia.com/gpu": "1"})
    broken.wait()

    # It is unknown whether `p` is bound, so no other pod gets its card.
    world.pod("q", {"nvidia.com/gpu": "1"})
    world.waits("q", "too few free GPUs")
    broken.wait(3)
    assert not world.bound_names()
    broken.remove()

    world.bound("p")
    assert world.bound_names() == {"p"}
    check(world)


def test_two_replicas_bind_once(world: World, account: Path) -> None:
    [node] = world.arena.nodes()
    world.device(node, [words.gpu(minor) for minor in range(4)])
    first = world.operator(kubeconfig=account, **QUICK_TERMS)
    second = world.operator(kubeconfig=account, wait=False, **QUICK_TERMS)
    world.pods([f"a{number}" for number in range(4)], HALF)
    world.wait(lambda: len(world.bound_names()) == 4, what="the first leader to bind")

    # A leader that receives SIGTERM releases its Lease, so the other need not wait until it expires.
    first.stop()
    second.logged('"event": "leading"')
    world.pods([f"b{number}" for number in range(4)], HALF)

    world.wait(lambda: len(world.bound_names()) == 8, what="the second leader to bind")
    check(world)
