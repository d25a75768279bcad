"""`kubectl berth explain`: why a pod waits and what it lacks, or why it is on its node."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from berth_api import names
from berth_api.objects.visibility import API_VERSION, PodExplanation
from berth_api.values import keys, spelling
from berth_kubectl.arguments import forms, namespace
from berth_kubectl.commands import connecting, explaining, explaining_quota
from berth_kubectl.errors import ANSWERED, CommandError, ReadError
from berth_kubectl.printing import output
from berth_kubectl.reading import explanations, views, workloads
from berth_kubectl.reading.objects import Object, name_of
from berth_kubectl.reading.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    EXPLAINED_PODS,
    EXPLANATION,
    JOBS,
    LOCAL_QUEUES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from berth_kubectl.reading.session import Session, Source
from berth_kubectl.reading.workloads import Controller

EXAMPLES: Final = """\
  kubectl berth explain train-0              # a pod
  kubectl berth explain job/train            # the first pod of a Job that waits
  kubectl berth explain deployment/chat      # also why its pods are not created
  kubectl berth explain podgroup/ring -n ml -o wide
  kubectl berth explain workload/job-train   # place in Kueue's queue, quota and devices
"""
KINDS: Final = {
    "pod": ("pod", "pods", "po"),
    "job": ("job", "jobs", "job.batch", "jobs.batch"),
    "deployment": ("deployment", "deployments", "deploy", "deployment.apps", "deployments.apps"),
    "replicaset": ("replicaset", "replicasets", "rs", "replicaset.apps", "replicasets.apps"),
    "statefulset": ("statefulset", "statefulsets", "sts", "statefulset.apps", "statefulsets.apps"),
    "daemonset": ("daemonset", "daemonsets", "ds", "daemonset.apps", "daemonsets.apps"),
    "workload": ("workload", "workloads", "workload.kueue.x-k8s.io", "workloads.kueue.x-k8s.io", "kwl"),
    "podgroup": ("podgroup", "podgroups", "podgroup.scheduling.x-k8s.io", "podgroups.scheduling.x-k8s.io"),
}
"""Kind -> the names that it may be given."""
WORKLOADS: Final[dict[str, tuple[str, Resource]]] = {
    "job": ("Job", JOBS),
    "deployment": ("Deployment", DEPLOYMENTS),
    "replicaset": ("ReplicaSet", REPLICA_SETS),
    "statefulset": ("StatefulSet", STATEFUL_SETS),
    "daemonset": ("DaemonSet", DAEMON_SETS),
}
"""Key of KINDS -> the kind, and where its objects are."""
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
WITHOUT: Final = (
    "this is only the pod's condition: reasons by node, the nearest nodes and the place in the queue come from the "
    "visibility API (visibility.berth.dev), which "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is explained."""

    kind: str
    """A key of KINDS."""
    name: str
    namespace: str = ""
    """Of a pod that is named with its namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """An explanation, and what is printed with it."""

    explanation: PodExplanation
    events: Sequence[dict[str, Any]] = ()
    summary: Sequence[str] = ()
    """Lines about the other pods of a workload, and its controllers."""
    subject: str = "Pod"
    """The kind that is explained."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "target",
        nargs="+",
        action=_Target,
        metavar="POD | KIND/NAME",
        help=f"a pod, also as NAMESPACE/POD, or a kind and a name; kinds: {', '.join(KINDS)}. KIND NAME works, too",
    )
    parser.add_argument(
        "--scheduler-names",
        default=names.SCHEDULER,
        metavar="NAMES",
        help="Berth's scheduler names, separated by commas, if the visibility API is not served (default: %(default)s)",
    )
    namespace(parser)
    forms(parser, ("wide", "json", "yaml"))


class _Target(argparse.Action):
    """Reads the one or two words that name what is explained."""

    def __call__(
        self, _parser: argparse.ArgumentParser, to: argparse.Namespace, words: Any, _option: str | None = None
    ) -> None:
        """Set the target."""
        try:
            setattr(to, self.dest, target("/".join(words)))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from error


def target(text: str) -> Target:
    """Return what a text names: `train-0`, `pod/train-0`, `job/train`, or as for `advise` `ml/train-0`."""
    kind, slash, name = text.rpartition("/")
    matching = [key for key, known_as in KINDS.items() if kind.lower() in known_as]
    if not slash:
        return Target(kind="pod", name=name)
    near = spelling.closest(
        kind.lower(), [name for known_as in KINDS.values() for name in known_as], spelling.ALMOST_SURE
    )
    if not matching and name and keys.NAME.fullmatch(kind) and not near:
        return Target(kind="pod", name=name, namespace=kind)
    if not matching or not name:
        allowed = ", ".join(("POD", "NAMESPACE/POD", *(f"{key}/NAME" for key in KINDS)))
        raise argparse.ArgumentTypeError(f'"{text}"; allowed are {allowed}')
    return Target(kind=matching[0], name=name)


def run(options: argparse.Namespace) -> int:
    """Print the explanation."""
    to = output.standard(options.output, headers=options.headers)
    options.namespace = options.target.namespace or options.namespace
    with connecting.session(options) as session:
        answer = explain(session, options.target, frozenset(options.scheduler_names.split(",")))
        explanation, listed, notes = answer.explanation, answer.events, session.notes
    if to.form in ("json", "yaml"):
        body: dict[str, Any] = {**explanation, "events": listed} if listed else dict(explanation)
        to.document({"apiVersion": API_VERSION, "kind": "PodExplanation", **body})
    else:
        text = explaining.text(
            explanation, listed, wide=to.form == "wide", subject=answer.subject, width=to.terminal_width
        )
        to.lines([*answer.summary, *text])
    for note in notes if not options.quiet else ():
        to.note(note)
    return ANSWERED


# --- which pod --------------------------------------------------------------------------------------------------


def explain(session: Session, wanted: Target, schedulers: frozenset[str]) -> Explained:
    """Explain a pod; of a workload or gang the first that waits, or why it has none.

    Raises:
        CommandError: there is no such pod, workload or gang.
    """
    if wanted.kind == "pod":
        return _of_pod(session, {"metadata": {"name": wanted.name, "namespace": session.namespace}}, schedulers)
    if wanted.kind == "workload":
        return Explained(explanation=explaining_quota.explained(session, wanted.name), subject="Workload")
    title = f"{wanted.kind}/{wanted.name}"
    if wanted.kind not in WORKLOADS:
        pods = explanations.members(_pods(session), wanted.name)
        if not pods:
            raise CommandError(f"{title} has no pods in the namespace {session.namespace}")
        return _of_first(session, title, pods, [], schedulers)
    kind, resource = WORKLOADS[wanted.kind]
    workload = Controller(kind=kind, body=session.object(resource, session.namespace, wanted.name))
    labels = explanations.selector(workload.body["spec"]["selector"])
    replica_sets = []
    if wanted.kind == "deployment":
        source = Source(resource=REPLICA_SETS, namespace=session.namespace, labels=labels, optional=True)
        [listed] = session.lists([source])
        replica_sets = workloads.owned(listed or (), workload.body)
    pods, controllers = _pods(session, labels), [*replica_sets, workload]
    said = [*workloads.without_effect(workload), *workloads.conditions(controllers)]
    if pods:
        return _of_first(session, title, pods, said, schedulers)
    queue = (workload.body["metadata"].get("labels") or {}).get(QUEUE_NAME)
    if queue and workload.body["spec"].get("suspend"):
        try:
            session.object(LOCAL_QUEUES, session.namespace, queue)
        except ReadError as error:
            if error.is_missing:
                no_queue = (
                    f"spec.suspend is true, and nothing resumes it: there is no LocalQueue {queue}, which its label "
                    f"{QUEUE_NAME} names, or Kueue is not installed"
                )
                said = [no_queue, *said]
    events = explanations.events([event for controller in controllers for event in _events(session, controller.uid)])
    return Explained(explanation=workloads.without_pods(workload, said, events), events=events, subject=kind)


def _of_first(
    session: Session, title: str, pods: list[Object], said: list[str], schedulers: frozenset[str]
) -> Explained:
    """Explain the first of these pods that waits."""
    waiting, first = sum(map(explanations.is_waiting, pods)), explanations.first_waiting(pods)
    if len(pods) == 1:
        head = f"{title}: its only pod {'waits' if first else 'does not wait'}"
    elif first is None:
        head = f"{title}: none of its {len(pods)} pods waits; this is about {name_of(pods[0])}"
    else:
        head = f"{title}: {waiting} of {len(pods)} pods wait; this is about the first, {name_of(first)}"
    answer = _of_pod(session, first or pods[0], schedulers)
    return replace(answer, summary=[head, *said, ""])


def _of_pod(session: Session, pod: Object, schedulers: frozenset[str]) -> Explained:
    explanation, events = explained(session, pod, schedulers)
    return Explained(explanation=explanation, events=events)


def _pods(session: Session, labels: str = "") -> list[Object]:
    [pods] = session.lists([Source(resource=PODS, namespace=session.namespace, labels=labels)])
    return list(pods or ())


# --- what is known of it ----------------------------------------------------------------------------------------


def explained(
    session: Session, pod: Object, schedulers: frozenset[str]
) -> tuple[PodExplanation, Sequence[dict[str, Any]]]:
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
        views.note_age(session, "its condition is from then")
        return explanations.of_pod(whole, schedulers, session.now()), explanations.events(
            list(_events(session, whole["metadata"]["uid"]))
        )
    return answer, ()


def _events(session: Session, uid: str) -> Iterator[Object]:
    fields = f"involvedObject.uid={uid}"
    source = Source(resource=EVENTS, namespace=session.namespace, fields=fields, optional=True)
    [events] = session.lists([source])
    yield from events or ()
