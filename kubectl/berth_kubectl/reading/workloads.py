"""Why a workload has no pods or too few, and which of its fields have no effect on its pods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from berth_api import words
from berth_api.objects.visibility import PodExplanation
from berth_kubectl.reading.objects import Object, name_of

NO_PODS: Final = "NoPods"
TELLING: Final = ("ReplicaFailure", "Suspended", "FailureTarget", "Failed", "Complete")
"""Types of conditions that say why there are no pods."""
NOT_YET: Final = "its controller has created no pod yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A workload, or a ReplicaSet of a Deployment."""

    kind: str
    body: Object

    @property
    def uid(self) -> str:
        """Return its UID."""
        return str(self.body["metadata"]["uid"])


def owned(replica_sets: Iterable[Object], workload: Object) -> list[Controller]:
    """Return the ReplicaSets of a Deployment that are to have pods."""
    uid = workload["metadata"]["uid"]
    kept = []
    for replica_set in replica_sets:
        owners = replica_set["metadata"].get("ownerReferences") or ()
        controller = next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
        if replica_set["spec"].get("replicas") and controller == uid:
            kept.append(Controller(kind="ReplicaSet", body=replica_set))
    return kept


def conditions(controllers: Iterable[Controller]) -> list[str]:
    """Return what the conditions of controllers say, each message once."""
    by_message: dict[tuple[str, str], str] = {}
    for controller in controllers:
        for condition in (controller.body.get("status") or {}).get("conditions") or ():
            if condition["type"] in TELLING and condition["status"] == "True":
                message = str(condition.get("message") or "")
                reason = f" ({condition['reason']})" if condition.get("reason") else ""
                said = f": {message}" if message else ""
                by_message.setdefault(
                    (condition["type"], message),
                    f"{controller.kind} {name_of(controller.body)}: {condition['type']}{reason}{said}",
                )
    return list(by_message.values())


def without_effect(controller: Controller) -> list[str]:
    """Return the words of other systems on a controller that only have an effect on its pods."""
    template = (controller.body["spec"].get("template") or {}).get("metadata") or {}
    return list(words.of_controller(controller.kind, controller.body["metadata"], template))


def without_pods(workload: Controller, said: Sequence[str], events: Sequence[Any]) -> PodExplanation:
    """Return the explanation of a workload without pods, by what its conditions say and by its Events."""
    metadata = workload.body["metadata"]
    warned = (f"{event['reason']}: {event['message']}" for event in reversed(events) if event["type"] == "Warning")
    spec, title = workload.body["spec"], f"{workload.kind} {name_of(workload.body)}"
    by_spec = (
        f"{title}: spec.{field} is {str(value).lower()}"
        for field, value in (("suspend", True), ("replicas", 0), ("parallelism", 0), ("completions", 0))
        if spec.get(field) is not None and spec[field] == value
    )
    message = "; ".join(said) or next(chain(by_spec, warned), NOT_YET)
    return {
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
        "state": NO_PODS,
        "message": message,
    }
