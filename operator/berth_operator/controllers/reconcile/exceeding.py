"""Events on pods that, by their agent's report, use more memory of a card than their share."""

from collections.abc import Iterator
from typing import Final

from berth_api.objects import device_text
from berth_api.resources import quantity
from berth_operator.binding.reports.events import Event, Subject, event_name
from berth_operator.state.cache.views import NodeView

REASON: Final = "ShareExceeded"
CONTROLLER: Final = "berth.dev/operator"


def events(view: NodeView) -> Iterator[Event]:
    """Yield an Event for each pod and card, of pods that have something on this node.

    A stolen token of an agent can name pods of other nodes, and other names.
    """
    if view.device is None or not view.ours or not (report := view.device.agent_report).exceeding:
        return
    for charge in view.charges:
        for use in report.exceeded_by(charge.uid, charge.pod):
            card = device_text.of_device(use.type, use.minor, "")
            memory, limit = (quantity.format_bytes(quantity.parse(size)) for size in (use.memory, use.limit))
            limited = f"{charge.isolation} does not stop it" if charge.isolation else "nothing limits it"
            yield Event(
                subject=Subject(namespace=use.namespace, name=use.pod, uid=use.pod_uid, controller=CONTROLLER),
                # One for each pod and card, as long as the API server keeps Events.
                name=event_name(use.pod, f"{use.pod_uid[:8]}-share-{use.minor}"),
                type="Warning",
                reason=REASON,
                action="Running",
                note=f"its processes use {memory} of {card}, its share is {limit}: other pods of the card may lack "
                f"memory. Request more, or use less; {limited}",
            )
