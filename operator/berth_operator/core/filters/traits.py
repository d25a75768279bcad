"""The traits of a filter: each filter's module declares its `TRAITS` next to its name."""

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
    of_volumes: bool = False
    """Whether it rejects nodes only because of the pod's volumes, so that it is not run for a pod without any."""
    plugin: str = ""
    """The plugin of kube-scheduler that rejects such nodes there; empty if none does."""
    one_node: bool = True
    """Whether it reads only the node, and no pods or volumes elsewhere.

    If not, an event that its `may_help` accepts may let it pass other nodes than the event's.
    """
    transient: bool = False
    """Whether it rejects nodes only because they are out of service, or because of pods elsewhere.

    Advice about new nodes, and about a cluster without other pods, ignores it.
    """
    ends_by_itself: bool = False
    """Whether its rejections end after a while, so that a pod keeps its nominated node meanwhile."""
    capacity: bool = False
    """Whether it reads only the free resources and devices of a node, so that only its own pods matter."""
    partly_unresolvable: bool = False
    """Whether some of its rejections are UnschedulableAndUnresolvable in kube-scheduler, and some not."""
    needed: str = ""
    """Why no policy can switch it off; empty if one can."""
