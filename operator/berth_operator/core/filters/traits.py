"""What a filter is, in its own words: each module of a filter has its `TRAITS`, next to its name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of a filter; the defaults are those of a filter that reads one node and may be switched off."""

    of_pod: bool = False
    """Whether it rejects all nodes or none, because of the pod alone (kube-scheduler's PreFilter)."""
    refusal: str = ""
    """The reason of the condition PodScheduled=False if a new node cannot pass either; empty if one may.

    Empty for volume-claims, whose reason in kube-scheduler is `Unschedulable`: autoscalers check claims themselves.
    """
    one_node: bool = True
    """Whether it reads only the node, and no pods or volumes elsewhere."""
    capacity: bool = False
    """Whether it reads only the free resources and devices of a node, so that only its own pods matter."""
    coupled: bool = False
    """Whether it has the members of `Coupled`: its answer depends on other nodes, or on volumes in use."""
    bounded: bool = False
    """Whether it has the members of `Bounded`."""
    hinting: bool = False
    """Whether it has the members of `Hinting`; without them every change in WAKES_ON may help."""
    partly_unresolvable: bool = False
    """Whether some of its rejections are UnschedulableAndUnresolvable in kube-scheduler, and some not."""
    needed: str = ""
    """Why no policy can switch it off; empty if one can."""
