"""Sentences about a waiting pod's prospects. `kubectl berth explain` and the page print them unchanged."""

from collections.abc import Iterator, Sequence
from typing import Final

from berth_api.objects.visibility import TitledAnswer, TriedChanges, WaitAnswer
from berth_operator.core.advice import remedies
from berth_operator.core.advice.explanation import PreemptionAnswer
from berth_operator.core.advice.remedies import Remedy
from berth_operator.core.advice.waits import MAX_MEMBERS, Wait, Why
from berth_operator.core.decision.cycle import Failure, Placement

CHANGES: Final = "What would end the wait, for example, if nothing else changes"
NONE_FOUND: Final = "No single change was found that would end the wait."
NOT_TRIED: Final = f"Changes are not tried for a gang with more than {MAX_MEMBERS} waiting members."
IN_VAIN: Final = "no change of the cluster ends this wait"


def changes(wait: Wait, why: Why, found: Sequence[Remedy]) -> TriedChanges | None:
    """Return what is said of changes other than new nodes: they, that none ends the wait, or that none is tried."""
    answers = [WaitAnswer(message=remedy.sentence, helps=bool(remedy.ends)) for remedy in found if not remedy.is_new]
    if not wait.is_tried and not wait.problem:
        answers.append(WaitAnswer(message=NOT_TRIED, helps=False))
    elif wait.is_tried and _is_none_found(why, found):
        answers.append(WaitAnswer(message=NONE_FOUND, helps=False))
    return TriedChanges(title=CHANGES, answers=answers) if answers else None


def answers(wait: Wait, why: Why, found: Sequence[Remedy], nodes: int) -> Iterator[TitledAnswer]:
    """Yield one answer for each question about a waiting pod.

    `found` is what ends its wait, `nodes` how many nodes the decision considered.
    """
    empty = why.explanation.fits_when_empty
    if isinstance(why.explanation.result, Placement):
        placed = is_placed(wait, why)
        who = "it" if placed else f"member {wait.pod.name} alone"
        yield TitledAnswer(title="Fits", message=f"{who} would be placed now", helps=placed)
    elif empty is not None:
        message = f"not now; {_when_empty(_member(wait, why), empty, nodes)}"
        yield TitledAnswer(title="Fits", message=message, helps=empty > 0)
    if new := [each for each in found if each.is_new]:
        message = "; ".join(each.sentence for each in new)
        yield TitledAnswer(title="New node", message=message, helps=any(each.ends for each in new))
    if remedies.is_in_vain(found):
        yield TitledAnswer(title="In vain", message=IN_VAIN, helps=False)
    if (preemption := why.explanation.preemption) is not None:
        possible = bool(preemption.node)
        message = f"{'possible' if possible else 'not possible'}: {preemption_message(preemption)}"
        yield TitledAnswer(title="Preemption", message=message, helps=possible)


def is_placed(wait: Wait, why: Why) -> bool:
    """Return whether a pod would be placed now: a member only if its gang is."""
    if wait.gang is None:
        return isinstance(why.explanation.result, Placement)
    result = () if why.of_gang is None or isinstance(why.of_gang.result, Failure) else why.of_gang.result
    return any(each.pod.uid == wait.pod.uid for each in result)


def _member(wait: Wait, why: Why) -> str:
    """Return the name of the member that nodes are counted for; empty for a single pod."""
    if wait.gang is None:
        return ""
    return wait.pod.name if why.of_gang is None or why.of_gang.first is None else why.of_gang.first.name


def _when_empty(member: str, count: int, nodes: int) -> str:
    """Return on how many nodes a pod would fit if they were empty. A gang may need more than all of them."""
    if not count:
        return f"member {member} on no node even if empty" if member else "on no node even if empty"
    return f"{f'member {member} alone ' if member else ''}on {count} of {nodes} nodes if they were empty"


def preemption_message(answer: PreemptionAnswer) -> str:
    """Return how many pods would be evicted where, or why none."""
    if not answer.node:
        return answer.message
    return f"{answer.victims} pod(s) of lower priority on node {answer.node} would be evicted"


def _is_none_found(why: Why, found: Sequence[Remedy]) -> bool:
    """Return whether none of the changes that were tried ends the wait."""
    return not isinstance(why.explanation.result, Placement) and all(each.ends is False for each in found)
