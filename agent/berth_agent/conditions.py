"""Conditions: what was found, why, and since when.

The object on the server remembers "since when": a condition keeps its lastTransitionTime until its status changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from berth_api.device import MAX_MESSAGE, Condition, DeviceInfo
from berth_client import times

HEALTHY: Final = "Healthy"
"""The condition type of a card. Only an unhealthy card carries it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition of the Device without its time."""

    type: str
    ok: bool
    reason: str
    message: str = ""

    def condition(self) -> Condition:
        """Return it as a condition that holds since now.

        A message may contain texts of any length and form, such as an answer of the API server or a file's name. It is
        cut to what a condition may have, and characters that cannot be encoded are replaced.
        """
        return Condition(
            type=self.type,
            status="True" if self.ok else "False",
            reason=self.reason,
            message=self.message[:MAX_MESSAGE].encode(errors="replace").decode(),
            last_transition_time=times.time(times.now()),
        )


def unhealthy(card: DeviceInfo, *, reason: str, message: str) -> DeviceInfo:
    """Return the card as one that must not be handed out, and why."""
    finding = Finding(type=HEALTHY, ok=False, reason=reason, message=message)
    return card.model_copy(update={"health": False, "conditions": [finding.condition()]})


def keep_times(fresh: Sequence[Condition], before: Sequence[Condition]) -> list[Condition]:
    """Return the conditions with the times of their last transitions."""
    since = {(condition.type, condition.status): condition.last_transition_time for condition in before}
    return [
        condition.model_copy(
            update={
                "last_transition_time": since.get((condition.type, condition.status), condition.last_transition_time)
            }
        )
        for condition in fresh
    ]


def keep_card_times(fresh: Sequence[DeviceInfo], before: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Do so for the conditions of cards."""
    earlier = {(card.type, card.id): card.conditions for card in before}
    return [
        card.model_copy(update={"conditions": keep_times(card.conditions, earlier.get((card.type, card.id), []))})
        if card.conditions
        else card
        for card in fresh
    ]
