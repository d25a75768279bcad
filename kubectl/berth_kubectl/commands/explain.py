"""`kubectl berth explain`: why a pod waits and what it lacks, or why it is where it is."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from berth_api import names
from berth_kubectl.arguments import forms, namespace
from berth_kubectl.commands import connecting, explaining
from berth_kubectl.errors import ANSWERED, CommandError, ReadError
from berth_kubectl.printing import output
from berth_kubectl.printing.report import API_VERSION
from berth_kubectl.reading import explanations
from berth_kubectl.reading.contract import Explanation, Object
from berth_kubectl.reading.objects import name_of
from berth_kubectl.reading.resources import (
    DEPLOYMENTS,
    EVENTS,
    EXPLAINED_PODS,
    EXPLANATION,
    JOBS,
    PODS,
    Resource,
)
from berth_kubectl.reading.session import Session, Source

SUMMARY: Final = "show why a pod waits and what it lacks, or why it is where it is"
EXAMPLES: Final = """\
  kubectl berth explain train-0              # a pod
  kubectl berth explain job/train            # the first pod of a Job that waits
  kubectl berth explain podgroup/ring -n ml -o wide
"""
KINDS: Final = {
    "pod": ("pod", "pods", "po"),
    "job": ("job", "jobs", "job.batch", "jobs.batch"),
    "deployment": ("deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"),
    "podgroup": ("podgroup", "podgroups", "podgroup.scheduling.x-k8s.io", "podgroups.scheduling.x-k8s.io"),
}
"""Kind -> the names that it may be given."""
WORKLOADS: Final[dict[str, Resource]] = {"job": JOBS, "deployment": DEPLOYMENTS}
WITHOUT: Final = (
    "this is the pod's condition: reasons per node, what is nearest and the place in the queue come from the "
    "visibility API (visibility.berth.dev), which "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is explained."""

    kind: str
    """A key of KINDS."""
    name: str


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("target", metavar="POD | job/NAME | deployment/NAME | podgroup/NAME", type=target)
    parser.add_argument(
        "--scheduler-names",
        default=names.SCHEDULER,
        metavar="NAMES",
        help="Berth's, joined by commas, where the visibility API is not served (default: %(default)s)",
    )
    namespace(parser)
    forms(parser, ("wide", "json", "yaml"))


def target(text: str) -> Target:
    """Return what a text names: `train-0`, `pod/train-0`, `job/train`."""
    kind, slash, name = text.rpartition("/")
    matching = [key for key, known_as in KINDS.items() if kind.lower() in known_as]
    if not slash:
        return Target(kind="pod", name=name)
    if not matching or not name:
        raise argparse.ArgumentTypeError(f'"{text}"; allowed are POD, {", ".join(f"{key}/NAME" for key in KINDS)}')
    return Target(kind=matching[0], name=name)


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    to = output.standard(options.output, headers=options.headers)
    with connecting.session(options) as session:
        pod, summary = chosen(session, options.target)
        explanation, listed = explained(session, pod, frozenset(options.scheduler_names.split(",")))
        notes = session.notes
    if to.form in ("json", "yaml"):
        body: dict[str, Any] = {**explanation, "events": listed} if listed else dict(explanation)
        to.document({"apiVersion": API_VERSION, "kind": "PodExplanation", **body})
    else:
        to.lines([*summary, *explaining.text(explanation, listed, wide=to.form == "wide")])
    for note in notes if not options.quiet else ():
        to.note(note)
    return ANSWERED


# --- which pod --------------------------------------------------------------------------------------------------


def chosen(session: Session, wanted: Target) -> tuple[Object, list[str]]:
    """Return the pod that is explained, as far as it is known, and lines about the others of its workload.

    Raises:
        CommandError: there is no such pod or workload, or it has no pods.
    """
    if wanted.kind == "pod":
        return {"metadata": {"name": wanted.name, "namespace": session.namespace}}, []
    pods = _pods(session, wanted)
    title = f"{wanted.kind}/{wanted.name}"
    if not pods:
        raise CommandError(f"{title} has no pods in the namespace {session.namespace}")
    waiting = sum(map(explanations.is_waiting, pods))
    first = explanations.first_waiting(pods)
    if first is None:
        return pods[0], [f"{title}: none of its {len(pods)} pods waits; this is about {name_of(pods[0])}", ""]
    return first, [f"{title}: {waiting} of {len(pods)} pods wait; this is about the first, {name_of(first)}", ""]


def _pods(session: Session, wanted: Target) -> list[Object]:
    """Return the pods of a workload or gang."""
    labels = ""
    if wanted.kind in WORKLOADS:
        workload = session.object(WORKLOADS[wanted.kind], session.namespace, wanted.name)
        labels = explanations.selector(workload["spec"]["selector"])
    [pods] = session.lists([Source(resource=PODS, namespace=session.namespace, labels=labels)])
    return list(pods or ()) if labels else explanations.members(pods or (), wanted.name)


# --- what is known of it ----------------------------------------------------------------------------------------


def explained(
    session: Session, pod: Object, schedulers: frozenset[str]
) -> tuple[Explanation, Sequence[dict[str, Any]]]:
    """Return the explanation of the visibility API; without it that of the pod's condition, and the pod's Events.

    Raises:
        ReadError: the pod cannot be read either.
    """
    name = name_of(pod)
    try:
        answer: Any = session.object(EXPLAINED_PODS, session.namespace, name, EXPLANATION)
    except ReadError as error:
        if not (error.is_missing or error.is_forbidden or error.is_unavailable):
            raise
        whole = session.object(PODS, session.namespace, name)
        session.notes.append(WITHOUT + ("is not served" if error.is_missing else f"was not readable: {error}"))
        return explanations.of_pod(whole, schedulers), explanations.events(list(_events(session, whole)))
    return answer, ()


def _events(session: Session, pod: Object) -> Iterator[Object]:
    fields = f"involvedObject.uid={pod['metadata']['uid']}"
    source = Source(resource=EVENTS, namespace=session.namespace, fields=fields, optional=True)
    [events] = session.lists([source])
    yield from events or ()
