"""Names of GpuPods: no node can use a name that another node needs."""

import itertools
import re

import pytest

from berth_api.objects import gpupod

VALID = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""What Kubernetes accepts as the name of a pod, a Node or a GpuPod."""
SEPARATORS = (".", "-", "--", "---", "----")
NAMES = ["a", *(f"a{one}a" for one in SEPARATORS), *(f"a{a}a{b}a" for a in SEPARATORS for b in SEPARATORS)]
"""They differ by dots and dashes alone, as names would that could be confused."""
PAIRS = list(itertools.product(NAMES, NAMES))


@pytest.mark.parametrize(
    ("pod", "node", "name"),
    [
        ("half-1", "node-0", "half-1.node-0"),
        ("half-1", "ip-10-0-0-1.ec2.internal", "half-1.ip-10-0-0-1--ec2--internal"),
        ("dotted.pod", "a", "dotted.pod.a"),
        ("p", "a.b", "p.a--b"),
        ("p", "a--b", "p.a---b"),
    ],
)
def test_a_name_is_that_of_pod_and_node(pod: str, node: str, name: str) -> None:
    assert gpupod.name_of(pod, node) == name
    assert gpupod.pod_of(name, node) == pod


@pytest.mark.parametrize("name", ["half-1", "half-1.node-1", "node-0", "half-1-node-0", "a.node-0.b"])
def test_a_name_without_the_node_is_that_of_the_pod(name: str) -> None:
    assert gpupod.pod_of(name, "node-0") == name


def test_no_two_pods_share_a_name() -> None:
    by_name = {gpupod.name_of(pod, node): (pod, node) for pod, node in PAIRS}
    assert len(by_name) == len(PAIRS)
    for name, (pod, node) in by_name.items():
        assert VALID.fullmatch(name)
        assert gpupod.pod_of(name, node) == pod


def test_no_name_ends_in_another_node() -> None:
    """The policy compares the ends of names."""
    ends = {node: gpupod.name_of("", node) for node in NAMES}
    for pod, node in PAIRS:
        name = gpupod.name_of(pod, node)
        assert [other for other, end in ends.items() if name.endswith(end)] == [node]
