"""Choose the sources that answer a question: the visibility API first, then the objects of the API server."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from berth_api.objects.visibility import FleetNode, HoldingPod, QueuedPod
from berth_kubectl.errors import ReadError
from berth_kubectl.reading import fleet, holders, queue
from berth_kubectl.reading.leases import without_leader
from berth_kubectl.reading.objects import name_of, natural
from berth_kubectl.reading.resources import DEVICES, FLEET, GPU_PODS, HOLDERS, LEADER_LEASES, NODES, PODS, QUEUE
from berth_kubectl.reading.session import Lists, Session, Source

T = TypeVar("T")
ALIVE: Final = "status.phase!=Succeeded,status.phase!=Failed"
WAITING: Final = "spec.nodeName=,status.phase=Pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class View(Generic[T]):
    """Sources, and what their objects mean."""

    sources: tuple[Source, ...]
    rows: Callable[[Lists, datetime], list[T]]
    """Of the objects of each source, and the time."""
    old: str = ""
    """What is as old as the last leader, where it shows what the operator last wrote and none leads now."""
    lacks: str = ""
    """What this view cannot say; empty for the visibility API."""


def first_of(session: Session, views: Sequence[View[T]]) -> tuple[View[T], Lists]:
    """Return the first view that the user may read and that is served, with its objects.

    Raises:
        ReadError: there is none; of the last one.
    """
    for view in views[:-1]:
        try:
            return view, session.lists(view.sources)
        except ReadError as error:
            if not (error.is_missing or error.is_forbidden or error.is_unavailable):
                raise
            if not error.is_missing:
                session.notes.append(f"the visibility API is not used: {error}")
    lists = session.lists(views[-1].sources)
    if old := views[-1].old:
        note_age(session, old)
    return views[-1], lists


def _of_node(row: Any) -> list[tuple[str, int]]:
    return natural(name_of(row))


def note_age(session: Session, old: str) -> None:
    """Note since when no operator has led, if none leads now; `old` says what is as old."""
    [leases] = session.lists([Source(resource=LEADER_LEASES, optional=True)])
    session.notes += filter(None, [without_leader(leases or (), session.now(), old)])


def fleets(labels: str = "") -> list[View[FleetNode]]:
    """Return the views of the fleet, of the nodes that a label selector matches."""
    selected = (Source(resource=NODES, labels=labels),) if labels else ()
    nodes = Source(resource=NODES, labels=labels, optional=not labels)

    def of_api(lists: Lists, _now: datetime) -> list[FleetNode]:
        rows: list[Any] = sorted(lists[0] or (), key=_of_node)
        matching = {name_of(node) for node in lists[1] or ()} if len(lists) > 1 else None
        return [row for row in rows if matching is None or name_of(row) in matching]

    def of_devices(lists: Lists, _now: datetime) -> list[FleetNode]:
        devices, listed = lists
        by_name = None if listed is None else {name_of(node): node for node in listed}
        if labels:
            by_name = by_name or {}
            devices = [device for device in devices or () if name_of(device) in by_name]
        return fleet.rows(devices or (), by_name)

    return [
        View(sources=(Source(resource=FLEET), *selected), rows=of_api),
        View(
            sources=(Source(resource=DEVICES), nodes),
            rows=of_devices,
            old="what is held and free is from then, and still counts pods deleted since",
        ),
    ]


def holding(namespace: str, labels: str = "") -> list[View[HoldingPod]]:
    """Return the views of the pods that hold devices, of one namespace or all."""
    selected = (Source(resource=PODS, namespace=namespace, labels=labels, fields=ALIVE),) if labels else ()

    def of_pods(lists: Lists, _now: datetime) -> list[HoldingPod]:
        pods, devices, gpu_pods = lists
        return holders.rows(pods or (), devices=devices or (), gpu_pods=gpu_pods or ())

    return [
        View(sources=(Source(resource=HOLDERS, namespace=namespace), *selected), rows=_selected_pods),
        View(
            sources=(
                Source(resource=PODS, namespace=namespace, labels=labels, fields=ALIVE),
                Source(resource=DEVICES, optional=True),
                Source(resource=GPU_PODS, namespace=namespace, optional=True),
            ),
            rows=of_pods,
            old="DRIFTED and EXCEEDED are from then; the list of pods is current",
        ),
    ]


def holding_and_fleet(namespace: str) -> View[tuple[list[HoldingPod], list[FleetNode]]]:
    """Return the view of the pods that hold devices together with the fleet, of the visibility API alone."""

    def rows(lists: Lists, _now: datetime) -> list[tuple[list[HoldingPod], list[FleetNode]]]:
        held: list[Any] = list(lists[0] or ())
        nodes: list[Any] = list(lists[1] or ())
        return [(held, nodes)]

    return View(sources=(Source(resource=HOLDERS, namespace=namespace), Source(resource=FLEET)), rows=rows)


def _selected_pods(lists: Lists, _now: datetime) -> list[Any]:
    selected = {pod["metadata"]["uid"] for pod in lists[1] or ()} if len(lists) > 1 else None
    return [row for row in lists[0] or () if selected is None or row["metadata"]["uid"] in selected]


def queues(namespace: str, schedulers: Collection[str], labels: str = "") -> list[View[QueuedPod]]:
    """Return the views of the pods that wait, of one namespace or all."""
    selected = (Source(resource=PODS, namespace=namespace, labels=labels, fields=WAITING),) if labels else ()
    pending = Source(resource=PODS, namespace=namespace, labels=labels, fields=WAITING)
    return [
        View(sources=(Source(resource=QUEUE, namespace=namespace), *selected), rows=_selected_pods),
        View(
            sources=(pending,),
            rows=lambda lists, now: queue.rows(lists[0] or (), schedulers=schedulers, now=now),
            old="no pod is decided meanwhile, and MESSAGE is from then",
            lacks="the order of the queue is not known: pods are listed by priority and age",
        ),
    ]
