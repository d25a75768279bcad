"""What is said of a waiting pod's prospects: the sentences that `kubectl berth explain` and the page print as they are.

outlook(wait, why, found, nodes)  ->  Outlook
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from berth_operator.core.advice import remedies
from berth_operator.core.advice.explanation import PreemptionAnswer
from berth_operator.core.advice.remedies import Remedy
from berth_operator.core.advice.waits import Wait, Why
from berth_operator.core.decision.cycle import Placement

CHANGES: Final = "What would end the wait, for example, if nothing else changes"
NONE_FOUND: Final = "No single change was found that would end the wait."
IN_VAIN: Final = "no change of the cluster ends this wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer."""

    message: str
    helps: bool
    """Whether it names a way to end the wait."""
    title: str = ""
    """What it answers; empty in a list, which has one title."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """All answers about a pod."""

    answers: tuple[Answer, ...]
    """One for each question."""
    changes: tuple[Answer, ...]
    """Changes of the cluster, or that none was found; with the title CHANGES."""


def outlook(wait: Wait, why: Why, found: Sequence[Remedy], nodes: int) -> Outlook:
    """Return what is said of a waiting pod; `found` is what ends its wait, `nodes` how many the decision considered."""
    changes = [Answer(message=each.sentence, helps=bool(each.ends)) for each in found if not each.is_new]
    if wait.is_tried and _is_none_found(why, found):
        changes.append(Answer(message=NONE_FOUND, helps=False))
    return Outlook(answers=tuple(_answers(why, found, nodes)), changes=tuple(changes))


def _answers(why: Why, found: Sequence[Remedy], nodes: int) -> Iterator[Answer]:
    empty = why.explanation.fits_when_empty
    if isinstance(why.explanation.result, Placement):
        yield Answer(title="Fits", message="it would be placed now", helps=True)
    elif empty is not None:
        where = f"on {empty} of {nodes} nodes if they were empty" if empty else "on no node even if empty"
        yield Answer(title="Fits", message=f"not now; {where}", helps=empty > 0)
    if new := [each for each in found if each.is_new]:
        message = "; ".join(each.sentence for each in new)
        yield Answer(title="New node", message=message, helps=any(each.ends for each in new))
    if remedies.is_in_vain(found):
        yield Answer(title="In vain", message=IN_VAIN, helps=False)
    if (preemption := why.explanation.preemption) is not None:
        possible = bool(preemption.node)
        message = f"{'possible' if possible else 'not possible'}: {preemption_message(preemption)}"
        yield Answer(title="Preemption", message=message, helps=possible)


def preemption_message(answer: PreemptionAnswer) -> str:
    """Return how many pods would be evicted where, or why none."""
    if not answer.node:
        return answer.message
    return f"{answer.victims} pod(s) of lower priority on node {answer.node} would be evicted"


def _is_none_found(why: Why, found: Sequence[Remedy]) -> bool:
    """Return whether none of the changes that were tried ends the wait."""
    return not isinstance(why.explanation.result, Placement) and all(each.ends is False for each in found)
