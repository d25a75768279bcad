"""Events on pods that use more memory of a card than their share, as their agent reports."""

from collections.abc import Iterator
from typing import Final

from berth_api.device import ExceedingUse
from berth_api.objects import device_text
from berth_api.resources import quantity
from berth_api.values import keys
from berth_operator.binding.reports.events import Event, Subject, event_name
from berth_operator.state.cache.views import NodeView

REASON: Final = "ShareExceeded"
CONTROLLER: Final = "berth.dev/operator"


def events(view: NodeView) -> Iterator[Event]:
    """Yield an Event for each pod and card, of pods that have something on this node.

    A stolen token of an agent can name pods of other nodes, and other names.
    """
    charged = {charge.uid: charge.pod for charge in view.charges}
    for use in view.device.status.exceeding if view.device is not None and view.ours else ():
        if charged.get(use.pod_uid) == keys.join(use.namespace, use.pod):
            yield _event(use)


def _event(use: ExceedingUse) -> Event:
    card = device_text.of_device(use.type, use.minor, "")
    memory, limit = (quantity.format_bytes(quantity.parse(each)) for each in (use.memory, use.limit))
    subject = Subject(namespace=use.namespace, name=use.pod, uid=use.pod_uid, controller=CONTROLLER)
    return Event(
        subject=subject,
        # One for each pod and card, as long as the API server keeps Events.
        name=event_name(use.pod, f"{use.pod_uid[:8]}-share-{use.minor}"),
        type="Warning",
        reason=REASON,
        action="Running",
        note=f"its processes use {memory} of {card}, its share is {limit}: other pods of the card may lack memory. "
        "Request more, or use less; nothing limits it",
    )
