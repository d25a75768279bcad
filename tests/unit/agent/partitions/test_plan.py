"""The plan of a partition, with other programs on the card and a crash between each two steps."""

from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth_agent.vendor import Placement, RefusedError
from berth_agent.vendors.nvidia.partitions import plan
from berth_agent.vendors.nvidia.partitions.plan import Instance, Intent, SeenCard, after_boot, next_step

BOOT: Final = "boot-1"
ONE: Final = 19
HERE: Final = Placement(profile=ONE, start=2, size=1)
START: Final = Intent(card="GPU-1", placement=HERE, boot=BOOT)


@dataclass
class Machine:
    """A card, and the record of one partition. `ours` are ids of instances that the steps made."""

    intent: Intent | None = START
    mig: bool = False
    instances: dict[int, Instance] = field(default_factory=dict)
    ours: set[int] = field(default_factory=set)

    def card(self) -> SeenCard:
        return SeenCard(mig=self.mig, at_once=True, instances=tuple(self.instances.values()))

    def create(self, placement: Placement) -> int | None:
        if any(placement.overlaps(other.placement) for other in self.instances.values()):
            return None
        number = 7 + placement.start
        self.instances[number] = Instance(id=number, placement=placement)
        return number

    def step(self) -> bool:
        """Do the next step, and return whether there is another."""
        assert self.intent
        step = next_step(self.intent, self.card())
        match step:
            case plan.Record(intent=intent):
                self.intent = intent
            case plan.TurnOn():
                self.mig = True
            case plan.CreateInstance():
                number = self.create(self.intent.placement)
                assert number is not None, "the plan looked at the card immediately before"
                self.ours.add(number)
            case plan.CreateCompute(instance=number):
                assert number in self.ours
                self.instances[number] = replace(self.instances[number], computes=(0,))
            case plan.DestroyCompute(instance=number, compute=compute):
                assert number in self.ours, "a foreign compute instance was destroyed"
                assert compute == 0
                self.instances[number] = replace(self.instances[number], computes=())
            case plan.DestroyInstance(instance=number):
                assert number in self.ours, "a foreign instance was destroyed"
                del self.instances[number]
                self.ours.discard(number)
            case plan.Forget():
                self.intent = None
        return not isinstance(step, plan.Forget | plan.Made)

    def finish(self) -> None:
        for _ in range(20):
            if not self.step():
                return
        raise AssertionError("the plan does not end")


@settings(max_examples=300)
@given(st.lists(st.sampled_from(["step", "foreign", "foreign-here", "foreign-ends", "crash"]), max_size=14))
def test_what_a_crash_leaves_is_rolled_back_and_foreign_instances_stay(events: list[str]) -> None:
    """A crash is followed by the start of the process, which rolls back what is unfinished."""
    machine = Machine(mig=True)
    foreign: set[int] = set()
    for event in events:
        if event == "step" and machine.intent:
            try:
                machine.step()
            except RefusedError:
                machine.intent = replace(machine.intent, wanted=False)
        elif event == "foreign":
            foreign |= {number for number in [machine.create(replace(HERE, start=4))] if number}
        elif event == "foreign-here" and not (machine.intent and machine.intent.placing):
            # Between the last look at the card and the call, a foreign instance at the same place makes the call fail.
            foreign |= {number for number in [machine.create(HERE)] if number}
        elif event == "foreign-ends" and foreign:
            machine.instances.pop(foreign.pop())
        elif event == "crash" and machine.intent and plan.unfinished(machine.intent, boot=BOOT):
            machine.intent = replace(machine.intent, wanted=False)
            machine.finish()
            assert not machine.ours
            machine.intent = START
    assert foreign <= set(machine.instances)
    if machine.intent:
        machine.intent = replace(machine.intent, wanted=False)
        machine.finish()
    assert set(machine.instances) == foreign


def test_after_a_boot_nothing_is_ours_and_the_partition_is_made_again() -> None:
    made = replace(START, boot="boot-0", placing=True, instance=9, compute=0)
    foreign = SeenCard(mig=True, at_once=True, instances=(Instance(id=9, placement=HERE, computes=(0,)),))
    assert after_boot(replace(made, wanted=False), boot=BOOT) == plan.Forget()
    assert after_boot(made, boot=BOOT) == plan.Record(intent=START)
    assert after_boot(START, boot=BOOT) is None
    with pytest.raises(RefusedError, match="GPU instance 9 occupies"):
        next_step(START, foreign)


def test_the_mode_is_turned_on_only_where_it_needs_no_reset() -> None:
    assert next_step(START, SeenCard(mig=False, at_once=True)) == plan.TurnOn()
    with pytest.raises(RefusedError, match="needs a reset"):
        next_step(START, SeenCard(mig=False, at_once=False))


def test_an_instance_with_foreign_compute_instances_stays() -> None:
    made = replace(START, placing=True, instance=9, compute=0, wanted=False)
    card = SeenCard(mig=True, at_once=True, instances=(Instance(id=9, placement=HERE, computes=(0, 1)),))
    with pytest.raises(RefusedError, match=r"did not make: \[1\]"):
        next_step(made, card)
