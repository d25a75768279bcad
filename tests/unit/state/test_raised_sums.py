"""For how long kubelet may not know the sums that the operator writes to a Node."""

from berth_api.request import BUILT_IN
from berth_operator.state.cache.raised_sums import SECONDS, RaisedSums
from tests.objects.builders import CORE, GPU, NVIDIA


class Sums:
    """Raised sums with a controlled clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.raised = RaisedSums(kinds=BUILT_IN, clock=lambda: self.now)

    def wait(self, *resources: str) -> float:
        return max(0.0, self.raised.wait_seconds("n", resources))


def test_each_resource_has_its_own_second() -> None:
    sums = Sums()
    sums.raised.put("n", {}, {GPU: 100, NVIDIA: 1})
    sums.now += 0.5
    sums.raised.put("n", {GPU: 100, CORE: 100}, {GPU: 100, CORE: 200})
    assert [sums.wait(GPU), sums.wait(CORE), sums.wait(GPU, CORE), sums.wait(NVIDIA)] == [0.5, 1.0, 1.0, 0.0]
    sums.now += SECONDS
    assert sums.wait(GPU, CORE) == 0.0


def test_a_lower_sum_is_not_waited_for() -> None:
    sums = Sums()
    sums.raised.put("n", {GPU: 200}, {GPU: 100})
    assert sums.wait(GPU) == 0.0


def test_nothing_is_kept_of_a_node_that_is_gone() -> None:
    sums = Sums()
    sums.raised.put("n", {}, {GPU: 100})
    sums.raised.remove("n")
    assert sums.wait(GPU) == 0.0
