"""Complete a command line: verbs, flags, their values, and names of objects of one namespace.

The metavar of a value in the help determines what the value may be: `POD`, `NODE`, `KIND/NAME`, `FILE`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from berth_kubectl import arguments
from berth_kubectl.errors import CommandError
from berth_kubectl.reading.objects import name_of
from berth_kubectl.reading.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    DEVICES,
    JOBS,
    NAMESPACES,
    POD_GROUPS,
    PODS,
    QUOTA_WORKLOADS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from berth_kubectl.transport import kubectl

LIMIT: Final = 500
"""Names that are read at most."""
NO_FILES: Final = ":4"
FILES: Final = ":0"
"""The last line of an answer to kubectl: whether its shell function also completes names of files."""

NAMED: Final = {"POD": PODS, "NODE": DEVICES}
"""What an argument is called -> the objects that it names."""
WORKLOAD: Final = "KIND/NAME"
WORKLOADS: Final = {
    "pod": PODS,
    "job": JOBS,
    "deployment": DEPLOYMENTS,
    "replicaset": REPLICA_SETS,
    "statefulset": STATEFUL_SETS,
    "daemonset": DAEMON_SETS,
    "podgroup": POD_GROUPS,
    "workload": QUOTA_WORKLOADS,
}
CONTEXTS: Final = "--context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What may follow: words that are known, or names that have to be read."""

    words: Sequence[str] = ()
    resource: Resource | None = None
    """Names of these objects, of the namespace of the command line."""
    prefix: str = ""
    """What comes before a name: `job/`."""
    contexts: bool = False
    """Names of contexts."""
    files: bool = False


def wanted(words: Sequence[str]) -> Wanted:
    """Return what may follow on a command line whose last word is being typed."""
    *before, typed = words or [""]
    place = arguments.place_of_verb(before)
    if place < len(before):
        verb = before[place]
        before = [*before[:place], *before[place + 1 :]]
        if verb not in arguments.VERBS:
            return Wanted()
        parser = arguments.parser(verb)
        flags = parser.flags()
        if before and (action := flags.get(before[-1])) and action.nargs != 0:
            flag = before[-1]
            if action.choices:
                return Wanted(words=[*map(str, action.choices)])
            if flag in ("-n", "--namespace", "--system-namespace", "--agent-namespace"):
                return Wanted(resource=NAMESPACES)
            return Wanted(
                contexts=flag == CONTEXTS, files=(action.metavar or action.dest.upper()) in ("FILE", "FOLDER")
            )
        if typed.startswith("-"):
            return Wanted(words=[flag for flag in flags if flag.startswith("--")])
        if (argument := parser.positional()) is None:
            return Wanted()
        if argument.choices:
            return Wanted(words=[*map(str, argument.choices)])
        meanings, (kind, slash, _) = str(argument.metavar).split(" | "), typed.rpartition("/")
        if WORKLOAD in meanings and slash:
            return Wanted(resource=WORKLOADS.get(kind), prefix=f"{kind}/")
        if WORKLOAD in meanings and before and before[-1] in WORKLOADS:
            return Wanted(resource=WORKLOADS[before[-1]])
        return Wanted(resource=NAMED.get(meanings[0]))
    if before and before[-1] == CONTEXTS:
        return Wanted(contexts=True)
    if typed.startswith("-"):
        return Wanted(words=[flag for flag, _, _ in arguments.FLAGS])
    return Wanted(words=list(arguments.VERBS))


def answer(words: Sequence[str]) -> list[str]:
    """Return the lines that kubectl reads: words that begin with what is typed, and how to go on."""
    what = wanted(words)
    typed = words[-1] if words else ""
    known = list(what.words)
    try:
        # The command line is unfinished, so argparse cannot read kubectl's global flags.
        values = {flag: _after(words[:-1], (flag,)) for flag, _, _ in arguments.FLAGS}
        program = kubectl.find([f"{flag}={value}" for flag, value in values.items() if value])
        if what.contexts:
            known += program.contexts()
        elif resource := what.resource:
            namespace = ""
            if resource.namespaced:
                namespace = _after(words, ("-n", "--namespace")) or program.namespace()
            answered = program.get_raw(resource.request(namespace, limit=str(LIMIT)).target)
            known += [what.prefix + name_of(obj) for obj in answered["items"]]
    except CommandError:
        pass  # a message would end up on the command line
    return [*(word for word in known if word.startswith(typed)), FILES if what.files else NO_FILES]


def _after(words: Sequence[str], flags: Sequence[str]) -> str:
    """Return the value of a flag on an unfinished command line; empty if it is not there."""
    for flag in flags:
        for word, value in pairwise([*words, ""]):
            if word == flag:
                return value
            if word.startswith(f"{flag}="):
                return word.partition("=")[2]
    return ""
