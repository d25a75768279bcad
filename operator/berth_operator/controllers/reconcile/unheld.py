"""Events on pods that, by their agent's report, use cards that they do not hold."""

from collections.abc import Iterator
from typing import Final

from berth_api.objects import device_text
from berth_api.resources import quantity
from berth_operator.binding.reports.events import Event, Subject, event_name
from berth_operator.controllers.reconcile.exceeding import CONTROLLER
from berth_operator.state.cache.views import NodeView

REASON: Final = "CardNotHeld"


def events(view: NodeView) -> Iterator[Event]:
    """Yield an Event for each pod and card, of pods of this node: a stolen token of an agent can name others."""
    if view.device is None or not view.ours or not (report := view.device.agent_report).unheld:
        return
    for use in (use for charge in view.charges for use in report.unheld_by(charge.uid, charge.pod)):
        card, memory = device_text.of_device(use.type, use.minor, ""), quantity.format_bytes(quantity.parse(use.memory))
        yield Event(
            subject=Subject(namespace=use.namespace, name=use.pod, uid=use.pod_uid, controller=CONTROLLER),
            # One for each pod and card, as long as the API server keeps Events.
            name=event_name(use.pod, f"{use.pod_uid[:8]}-unheld-{use.minor}"),
            type="Warning",
            reason=REASON,
            action="Running",
            note=f"its processes use {memory} of {card} ({use.id}), and it does not hold the card: pods that hold it "
            "may lack memory. Request the GPUs that it uses, or use only those that it holds",
        )
