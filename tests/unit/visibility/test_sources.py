"""Rows are read in steps. In between, the state changes."""

from berth_operator.apis.visibility.sources import QueueRows
from tests.unit.binding.workloads.kueue import Kueue, pods


def test_a_workload_may_be_decided_again_while_its_row_is_read() -> None:
    kueue = Kueue({"a": 4})
    kueue.hold("other", 0, 1, 2, 3)
    kueue.ask("big", pods(4))
    shown = []
    for row in QueueRows(kueue.cluster).rows():
        if row is not None:
            shown.append(row.key)
            # It gathers places, so it leaves its class and is decided again.
            kueue.turn(2.0)
    assert shown == [("ns", "workload:big")]
