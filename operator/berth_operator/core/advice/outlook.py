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
    """Return the answers about changes other than new nodes; if there are none, that none helps, or none was tried."""
    answers = [WaitAnswer(message=remedy.sentence, helps=bool(remedy.ends)) for remedy in found if not remedy.is_new]
    if not wait.is_tried and not wait.problem:
        answers.append(WaitAnswer(message=NOT_TRIED, helps=False))
    elif (
        wait.is_tried
        and not isinstance(why.explanation.result, Placement)
        and all(remedy.ends is False for remedy in found)
    ):
        answers.append(WaitAnswer(message=NONE_FOUND, helps=False))
    return TriedChanges(title=CHANGES, answers=answers) if answers else None


def answers(wait: Wait, why: Why, found: Sequence[Remedy], nodes: int) -> Iterator[TitledAnswer]:
    """Yield one answer for each question about a waiting pod.

    `found` are the changes that end its wait. `nodes` is how many nodes the decision considered.
    """
    empty = why.explanation.fits_when_empty
    if isinstance(why.explanation.result, Placement):
        placed = is_placed(wait, why)
        who = "it" if placed else f"member {wait.pod.name} alone"
        yield TitledAnswer(title="Fits", message=f"{who} would be placed now", helps=placed)
    elif empty is not None:
        yield TitledAnswer(title="Fits", message=f"not now; {_when_empty(wait, why, empty, nodes)}", helps=empty > 0)
    if new := [remedy for remedy in found if remedy.is_new]:
        message = "; ".join(remedy.sentence for remedy in new)
        yield TitledAnswer(title="New node", message=message, helps=any(remedy.ends for remedy in new))
    if remedies.is_in_vain(found):
        yield TitledAnswer(title="In vain", message=IN_VAIN, helps=False)
    if (preemption := why.explanation.preemption) is not None:
        possible = bool(preemption.node)
        message = f"{'possible' if possible else 'not possible'}: {preemption_message(preemption)}"
        yield TitledAnswer(title="Preemption", message=message, helps=possible)


def _when_empty(wait: Wait, why: Why, empty: int, nodes: int) -> str:
    """Return how many nodes would take the pod if they were empty.

    For a gang, the nodes are counted for one member; the gang may need more than all of them.
    """
    explained, not_searched = why.explained(wait.pod)[0], why.explanation.not_searched
    member = "" if wait.gang is None else f"member {explained.name} "
    if not_searched:
        counted = f"at least {empty}" if empty else f"possibly {not_searched}"
        note = f"the search for devices ended at its bound before {not_searched} node(s) were known"
        return f"{member}on {counted} of {nodes} nodes if they were empty ({note})"
    if empty:
        alone = f"{member}alone " if member else ""
        return f"{alone}on {empty} of {nodes} nodes if they were empty"
    return f"{member}on no node even if empty"


def is_placed(wait: Wait, why: Why) -> bool:
    """Return whether a pod would be placed now: a member only if its gang is."""
    if wait.gang is None:
        return isinstance(why.explanation.result, Placement)
    result = () if why.of_gang is None or isinstance(why.of_gang.result, Failure) else why.of_gang.result
    return any(placement.pod.uid == wait.pod.uid for placement in result)


def preemption_message(answer: PreemptionAnswer) -> str:
    """Return how many pods would be evicted where, or why none."""
    if not answer.node:
        return answer.message
    return f"{answer.victims} pod(s) of lower priority on node {answer.node} would be evicted"
