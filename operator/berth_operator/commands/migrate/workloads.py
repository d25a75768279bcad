"""Decide what each workload of a manifest becomes in Berth: unchanged, rewritten, with losses, or impossible."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from berth_api import names, resources, words
from berth_api.request import RequestError, is_device
from berth_api.words import AMOUNTS, TABLE, PodGroupKind, Role
from berth_operator.commands import workload
from berth_operator.commands.errors import InputError
from berth_operator.commands.migrate import operators
from berth_operator.commands.migrate.operators import CUSTOM_KINDS, CustomKind
from berth_operator.state.objects import pods

Object = dict[str, Any]
Path = tuple[str, ...]

TEMPLATES: Final[Mapping[tuple[str, str], Path]] = {
    ("", "Pod"): (),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("apps", "ReplicaSet"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}
"""(API group, kind) -> where the pod is."""
COUNTING: Final[Mapping[str, Path]] = {"ResourceQuota": ("spec", "hard"), "LimitRange": ("spec", "limits")}
"""Kinds that count resources of pods by name -> where the names are."""
GROUP: Final = "PodGroup"
GROUPS: Final = {kind.group: kind for kind in TABLE.pod_groups if not kind.has_status}
SCHEDULERS: Final = frozenset(name for system in TABLE.systems for name in system.schedulers)
USUAL: Final = "default-scheduler"
"""The scheduler of pods that name none."""
_LIST: Final = "List"


class MigrationResult(StrEnum):
    """What became of a workload."""

    UNCHANGED = "unchanged"
    REWRITTEN = "rewritten"
    PARTLY = "partly"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedWorkload:
    """One workload, before and after."""

    kind: str
    namespace: str
    name: str
    outcome: MigrationResult
    words: tuple[str, ...] = ()
    """The words of other systems that it has."""
    becomes: str = ""
    """What each pod requests, in plain amounts."""
    lost: tuple[str, ...] = ()
    """Which words have no effect, and what to use instead."""
    why: str = ""
    """Why it is impossible, and what to do."""
    scheduler: str = ""
    """The scheduler name that it has afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What manifests are rewritten for."""

    scheduler: str = names.SCHEDULER
    units: Mapping[str, int] = field(default_factory=dict)
    """Word -> bytes of its unit, where it is not the table's."""
    priority_classes: frozenset[str] | None = None
    """The names of the cluster's PriorityClasses; None if they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A document afterwards, with what became of its workloads."""

    body: Any
    workloads: tuple[MigratedWorkload, ...] = ()


def rewrite(body: Any, goal: Goal) -> Rewritten:
    """Return a document in Berth's words. A document that is no workload stays unchanged."""
    if not isinstance(body, dict) or not isinstance(body.get("kind"), str):
        return Rewritten(body=body)
    if body["kind"].endswith(_LIST) and isinstance(body.get("items"), list):
        items = [rewrite(item, goal) for item in body["items"]]
        workloads = tuple(workload for item in items for workload in item.workloads)
        return Rewritten(body={**body, "items": [item.body for item in items]}, workloads=workloads)
    group = _group_of(body)
    if body["kind"] == GROUP:
        return _of_group(body, GROUPS[group]) if group in GROUPS else Rewritten(body=body)
    if not group and body["kind"] in COUNTING:
        # What counts resources by name counts nothing of pods that request Berth's resources.
        counted = _keys(_at(body, COUNTING[body["kind"]]))
        found = tuple(name for name, row in TABLE.resources.items() if row.word.role in AMOUNTS and name in counted)
        if not found:
            return Rewritten(body=body)
        lost = (
            f"{', '.join(found)}: only pods that request it by this name are counted, none that was rewritten; "
            "limit the namespace by namespaceLimits of Berth's configuration"
        )
        named = _Found(words=found, becomes=f"{body['kind']} as it was", lost=(lost,))
        return Rewritten(body=body, workloads=(_workload(body, MigrationResult.PARTLY, named),))
    if (custom := CUSTOM_KINDS.get((group, body["kind"]))) is not None:
        return _of_custom(body, custom, goal)
    path = TEMPLATES.get((group, body["kind"]))
    return _of_unknown(body, goal) if path is None else _of_known(body, path, goal)


def priority_class(body: Object) -> str:
    """Return the name of the PriorityClass of a workload's pods; empty if it names none, or is no workload."""
    path = TEMPLATES.get((_group_of(body), body["kind"]))
    return "" if path is None else _at(body, (*path, "spec", "priorityClassName")) or ""


# --- pods and their templates ---------------------------------------------------------------------------------


def _of_known(body: Object, path: Path, goal: Goal) -> Rewritten:
    template = _at(body, path)
    try:
        workload.check_template(template)
    except InputError as error:
        why = f"not the form of a {body['kind']}: {': '.join(filter(None, ('.'.join(path), str(error))))}"
        return _unwritten(body, MigrationResult.IMPOSSIBLE, why=why)
    try:
        changed, found = _template(template, _place(body), goal)
    except (RequestError, InputError) as error:
        named = words_of(template)
        return _unwritten(body, MigrationResult.IMPOSSIBLE, why=str(error), words=named)
    # A part that stands on a controller, and not on its pods, has no effect.
    of_controller = _mapping(body.get("metadata")), template.get("metadata") or {}
    if lost := tuple(words.of_controller(body["kind"], *of_controller)) if path else ():
        found = _Found() if found is None else found
        found = replace(found, lost=(*found.lost, *lost))
    if found is None:
        return Rewritten(body=body)
    # The labels by which a controller knows its pods.
    selected = frozenset(_mapping(_at(body, ("spec", "selector", "matchLabels")))) if path else frozenset()
    if fixed := selected & (_labels(template) - _labels(changed)):
        why = (
            f"label {min(fixed)} is in spec.selector, which cannot change; create it by another name, without the label"
        )
        return _unwritten(body, MigrationResult.IMPOSSIBLE, why=why, words=found.words)
    after = operators.with_value(body, path, changed)
    return Rewritten(body=after, workloads=(_workload(body, _outcome(body, after, found), found),))


def _outcome(body: Object, after: Object, found: "_Found") -> MigrationResult:
    if found.lost:
        return MigrationResult.PARTLY
    return MigrationResult.REWRITTEN if after != body else MigrationResult.UNCHANGED


def _labels(template: Object) -> frozenset[str]:
    return frozenset((template.get("metadata") or {}).get("labels") or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What was read of a pod."""

    words: tuple[str, ...] = ()
    becomes: str = ""
    lost: tuple[str, ...] = ()
    scheduler: str = ""


def _template(template: Object, place: tuple[str, str], goal: Goal) -> tuple[Object, _Found | None]:
    """Return a pod or template in Berth's words, and the words that were read; None if it has no such words.

    Raises:
        RequestError: a word cannot be honoured.
        InputError: the operator or the API server would refuse the pod.
    """
    metadata, spec = template.get("metadata") or {}, template["spec"]
    reading = words.read(spec, metadata.get("annotations") or {}, metadata.get("labels") or {}, goal.units)
    scheduler = spec.get("schedulerName") or ""
    if not reading.words and scheduler not in {"", USUAL, goal.scheduler} | SCHEDULERS:
        return template, None
    as_read = {
        "namespace": place[0],
        "name": place[1],
        "uid": "",
        "annotations": dict(reading.annotations),
        "labels": dict(reading.labels),
    }
    try:
        pending = pods.pending({"metadata": as_read, "spec": resources.from_limits(reading.spec)})
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(f"not the form of a pod: {type(error).__name__}: {error}") from error
    of_plugins = ", ".join(f"{amount} x {name}" for name, amount in pending.request.plugin_requests)
    devices = words.plain.text(pending.request.devices) or of_plugins
    if pending.error:
        raise InputError(pending.error)
    if not devices and not reading.words and scheduler not in SCHEDULERS:
        return template, None
    if spec.get("nodeName"):
        raise InputError(
            f"spec.nodeName: {spec['nodeName']} bypasses every scheduler, so a scheduler name has no effect; remove "
            f"it, and to keep the node write spec.nodeSelector: {{kubernetes.io/hostname: {spec['nodeName']}}}"
        )
    if spec.get("resourceClaims") and scheduler != goal.scheduler:
        return template, _stays(scheduler or USUAL, reading.words, goal)
    name = spec.get("priorityClassName")
    if name and goal.priority_classes is not None and name not in goal.priority_classes:
        raise InputError(
            f"spec.priorityClassName: {name}; the cluster has no PriorityClass of this name, so its API server refuses "
            "the pods, whichever scheduler they name: create it, or name another"
        )
    written = {**reading.spec, "schedulerName": goal.scheduler}
    for kind in ("initContainers", "containers"):
        if written.get(kind):
            pairs = zip(spec[kind], written[kind], strict=True)
            written[kind] = [_container(before, after) for before, after in pairs]
    changed = {**_with_metadata(template, reading), "spec": written}
    limited = ", with limits by the component isolation" if pending.request.unlimited else ""
    found = _Found(
        words=(*reading.words, *_idle(metadata)),
        becomes=f"{devices}{limited}",
        lost=reading.notes,
        scheduler=goal.scheduler,
    )
    return changed, found


def _stays(scheduler: str, read: tuple[str, ...], goal: Goal) -> _Found:
    """Return the answer to a pod with claims, which stays with its scheduler.

    Raises:
        InputError: its scheduler is another system's, or kube-scheduler does not read its words.
    """
    if scheduler != USUAL or read:
        raise InputError(
            "spec.resourceClaims: Berth allocates claims only from its own pools; if all claims are in these pools, "
            f"write spec.schedulerName: {goal.scheduler}; otherwise request the devices by claims, too"
        )
    becomes = (
        "stays with kube-scheduler, as it has spec.resourceClaims; if all claims are in pools of Berth's, write "
        f"spec.schedulerName: {goal.scheduler}"
    )
    return _Found(becomes=becomes, scheduler=scheduler)


def _with_metadata(holder: Object, reading: words.Reading) -> Object:
    """Return an object with the annotations and labels that were read."""
    metadata = holder.get("metadata") or {}
    written = dict(metadata)
    for name, rows, after in (
        ("annotations", TABLE.annotations, reading.annotations),
        ("labels", TABLE.labels, reading.labels),
    ):
        kept = {key: value for key, value in after.items() if key not in rows or not _is_idle(rows[key])}
        if kept != (metadata.get(name) or {}):
            written[name] = kept
            if not kept:
                del written[name]
    if written == metadata:
        return holder
    changed = {**holder, "metadata": written}
    if not written:
        del changed["metadata"]
    return changed


def _is_idle(row: words.Row) -> bool:
    return row.word.role == Role.NO_EFFECT


def _idle(metadata: Object) -> tuple[str, ...]:
    """Return the words without effect, which are removed, too."""
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    rows = [
        *(TABLE.annotations[name] for name in TABLE.annotations if name in annotations),
        *(TABLE.labels[name] for name in TABLE.labels if name in labels),
    ]
    return tuple(row.word.title for row in rows if _is_idle(row))


def _container(before: Object, after: Mapping[str, Any]) -> Object:
    """Return a container whose new amounts are numbers where they can be, and that has no empty mapping."""
    if after == before:
        return before
    held = after.get("resources") or {}
    written = dict(held)
    for kind in ("limits", "requests"):
        if kind in held:
            written[kind] = {
                name: int(value)
                if name.startswith(names.PREFIX) and isinstance(value, str) and value.isascii() and value.isdecimal()
                else value
                for name, value in held[kind].items()
            }
    kept = {kind: value for kind, value in written.items() if value != {}}
    changed = {**after, "resources": kept}
    if not kept:
        del changed["resources"]
    return changed


def words_of(template: Object) -> tuple[str, ...]:
    """Return the words of the table in a pod or a template, as messages name them."""
    metadata, spec = _mapping(template.get("metadata")), template["spec"]
    held = {
        name
        for kind in ("initContainers", "containers")
        for container in (spec.get(kind) if isinstance(spec.get(kind), list) else ())
        for part in _mapping(_mapping(container).get("resources")).values()
        for name in _mapping(part)
    }
    requested = [TABLE.resources[name] for name in TABLE.resources if name in held]
    annotations = [row for name, row in TABLE.annotations.items() if name in _mapping(metadata.get("annotations"))]
    labels = [row for name, row in TABLE.labels.items() if name in _mapping(metadata.get("labels"))]
    return tuple(row.word.title for row in (*requested, *annotations, *labels))


# --- PodGroups ------------------------------------------------------------------------------------------------


def _of_group(body: Object, kind: PodGroupKind) -> Rewritten:
    try:
        workload.check_group(body)
        metadata, spec = body.get("metadata") or {}, body["spec"]
        reading = words.of_group(metadata.get("annotations") or {}, metadata.get("labels") or {})
    except (InputError, RequestError) as error:
        return _unwritten(body, MigrationResult.IMPOSSIBLE, why=str(error))
    kept = {name: value for name, value in spec.items() if name in words.READ_OF_GROUPS}
    api = f"{names.POD_GROUP_GROUP}/{names.VERSION}"
    changed = {**_with_metadata(body, reading), "apiVersion": api, "spec": kept}
    found = _Found(
        words=(*reading.words, *_idle(metadata)),
        becomes=f"{GROUP} of {names.POD_GROUP_GROUP} with minMember {spec['minMember']}",
        lost=(*reading.notes, *kind.notes(spec)),
    )
    outcome = MigrationResult.PARTLY if found.lost else MigrationResult.REWRITTEN
    return Rewritten(body=changed, workloads=(_workload(body, outcome, found),))


# --- quotas ---------------------------------------------------------------------------------------------------


def _keys(value: Any) -> frozenset[str]:
    """Return the names of resources in a part of a quota."""
    if isinstance(value, list):
        return frozenset().union(*map(_keys, value))
    own = (str(key).removeprefix("requests.") for key in _mapping(value))
    return frozenset(own).union(*map(_keys, _mapping(value).values()))


# --- other kinds ----------------------------------------------------------------------------------------------


def _of_custom(body: Object, kind: CustomKind, goal: Goal) -> Rewritten:
    """Return the answer to a custom resource whose controller creates the pods of its templates."""
    if kind.by_hand:
        held = _words_below(body)
        why = (
            f"the kind {body['kind']} has no pod templates: {kind.by_hand.format(scheduler=goal.scheduler)}; or leave "
            f"it unchanged and give its namespace the label {names.ROUTING}: devices"
        )
        return _unwritten(body, MigrationResult.IMPOSSIBLE, why=why, words=held) if held else Rewritten(body=body)
    after, read, unread = body, [], []
    for path, template in operators.templates(body, kind):
        try:
            workload.check_template(template)
            changed, found = _template(template, _place(body), goal)
        except (RequestError, InputError) as error:
            where = ".".join(map(str, path))
            return _unwritten(body, MigrationResult.IMPOSSIBLE, why=f"{where}: {error}", words=words_of(template))
        if found is None:
            unread.append((path, template))
            continue
        if found.scheduler != goal.scheduler:
            # All pods of one custom resource stay together, as one scheduler places them.
            return Rewritten(body=body, workloads=(_workload(body, MigrationResult.UNCHANGED, found),))
        read.append(found)
        after = operators.with_value(after, path, changed)
    if not read:
        return Rewritten(body=body)
    # The pods of one custom resource wait for each other, so one scheduler places all of them.
    for path, template in unread:
        if (template["spec"].get("schedulerName") or USUAL) in {USUAL, *SCHEDULERS}:
            after = operators.with_value(after, (*path, "spec", "schedulerName"), goal.scheduler)
    if kind.scheduler and (_at(body, kind.scheduler) or USUAL) in {USUAL, *SCHEDULERS}:
        after = operators.with_value(after, kind.scheduler, goal.scheduler)
    found = _Found(
        words=tuple(dict.fromkeys(word for found in read for word in found.words)),
        becomes="; ".join(dict.fromkeys(found.becomes for found in read)),
        lost=tuple(dict.fromkeys(lost for found in read for lost in found.lost)),
        scheduler=goal.scheduler,
    )
    return Rewritten(body=after, workloads=(_workload(body, _outcome(body, after, found), found),))


def _words_below(value: Any) -> tuple[str, ...]:
    """Return the resources of the table, and of NVIDIA's device plugin, that stand anywhere in a document."""
    if isinstance(value, list):
        return tuple(dict.fromkeys(name for item in value for name in _words_below(item)))
    names_below: dict[str, None] = {}
    for key, item in _mapping(value).items():
        if key in TABLE.resources or is_device(str(key)):
            names_below[str(key)] = None
        names_below.update(dict.fromkeys(_words_below(item)))
    return tuple(names_below)


def _of_unknown(body: Object, goal: Goal) -> Rewritten:
    """Return the answer to an unknown kind. Only the kind's own controller knows what it makes of its templates."""
    held = [
        template
        for template in _templates(body)
        if words_of(template) or str(template["spec"].get("schedulerName")) in SCHEDULERS
    ]
    if not held:
        return Rewritten(body=body)
    answers = []
    for template in held:
        try:
            workload.check_template(template)
            _, found = _template(template, ("", ""), goal)
        except (RequestError, InputError) as error:
            answers.append(str(error))
        else:
            answers.append(found.becomes if found and found.becomes else "no cards")
    why = (
        f"the kind {body['kind']} of {body.get('apiVersion')} is not read; write its pod templates and its "
        f"scheduler name in Berth's words, or use a Deployment or Job: {'; '.join(answers)}"
    )
    named = tuple(dict.fromkeys(word for template in held for word in words_of(template)))
    return _unwritten(body, MigrationResult.IMPOSSIBLE, why=why, words=named)


def _templates(value: Any) -> Iterator[Object]:
    """Yield all pod templates in a document."""
    if isinstance(value, list):
        for item in value:
            yield from _templates(item)
    elif isinstance(value, dict):
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("containers"), list):
            yield value
        else:
            for part in value.values():
                yield from _templates(part)


# --- objects --------------------------------------------------------------------------------------------------


def _group_of(body: Object) -> str:
    return str(body.get("apiVersion") or "").rpartition("/")[0]


def _place(body: Object) -> tuple[str, str]:
    metadata = _mapping(body.get("metadata"))
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or metadata.get("generateName") or "")


def _mapping(value: Any) -> Object:
    """Return a value that should be a mapping; an empty one if it is not."""
    return value if isinstance(value, dict) else {}


def _at(body: Object, path: Path) -> Any:
    value: Any = body
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _unwritten(body: Object, outcome: MigrationResult, *, why: str, words: tuple[str, ...] = ()) -> Rewritten:
    namespace, name = _place(body)
    answer = MigratedWorkload(kind=body["kind"], namespace=namespace, name=name, outcome=outcome, why=why, words=words)
    return Rewritten(body=body, workloads=(answer,))


def _workload(body: Object, outcome: MigrationResult, found: _Found) -> MigratedWorkload:
    namespace, name = _place(body)
    return MigratedWorkload(
        kind=body["kind"],
        namespace=namespace,
        name=name,
        outcome=outcome,
        words=found.words,
        becomes=found.becomes,
        lost=found.lost,
        scheduler=found.scheduler,
    )
