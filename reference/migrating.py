"""Pages about migrating: one for the steps, and one for each system with a page about its words and differences."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import yaml

from berth_api.words import TABLE, Role, System, Word, WordPlace
from berth_api.words.table import GIB, MIB
from berth_operator.commands.migrate import manifests, takeover
from berth_operator.commands.migrate.takeover import Step
from berth_operator.commands.migrate.workloads import Goal
from reference import words
from reference.markdown import page, section

_WARNING: Final = (
    "> **Warning:** Two systems must not give the cards of one node to pods at the same time. Therefore move node by "
    "node."
)
_MEMORY: Final = {MIB: 4000, GIB: 8}
_BLOCKS: Final = 20
_VALUES: Final = {Role.CARDS: "2", Role.FRACTION: "0.5", Role.HUNDREDTHS: "30"}


def text(system: System) -> str:
    """Return the page of a system."""
    table = words.of_system(system.name)
    return page(
        f"Migrating from {system.name}",
        f"For administrators who move a cluster from {system.name.replace(', ', ' or ')} to Berth.\n"
        "This page shows how to convert manifests, and what differs.",
        _WARNING,
        section("Convert manifests", *_manifests(system)),
        section("Move nodes", *_move(system)),
        section("What differs", "\n".join(f"* {_sentence(each)}" for each in system.differs)),
        section("What Berth reads", words.legend(table), table),
    )


def steps() -> str:
    """Return the page with the steps, which are the same for all systems."""
    return page(
        "Moving nodes from another system",
        "For administrators who move a cluster from HAMi, KAI, Volcano, Aliyun or Tencent to Berth.\n"
        "This page shows how to move the nodes one after the other, and how to go back.",
        _WARNING,
        "> **Warning:** The steps drain nodes. Draining deletes the contents of `emptyDir` volumes.",
        *_order(),
    )


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


# --- manifests ------------------------------------------------------------------------------------------------


def _manifests(system: System) -> Iterator[str]:
    yield (
        "If a pod names Berth's scheduler, Berth reads the resources, annotations and labels (*words*) in [the "
        "table](#what-berth-reads). So you need not convert manifests before you move pods."
    )
    yield (
        "[`kubectl berth migrate`](../kubectl.md#migrate) ([install it](../kubectl.md#install)) converts manifests. It "
        f"keeps their comments, order and quoting. This example requests {_example(system)}"
    )


def _example(system: System) -> str:
    manifest = _manifest(system)
    done = manifests.migrate("", manifest, Goal())
    [answer] = done.answers
    typed = ["$ kubectl berth migrate -f - -o yaml -q <<'EOF'", *manifest.splitlines(), "EOF"]
    block = "\n".join(["```console", *typed, *done.text.splitlines(), "```"])
    return f"{answer.workload.becomes}:\n\n{block}"


def _manifest(system: System) -> str:
    """Return a pod that requests by the words of the system."""
    roles = {word.role for word in system.words}
    values = [(word, value) for word in system.words if (value := _value(word, roles))]
    limits = {word.name: int(value) for word, value in values if word.place == WordPlace.RESOURCE}
    annotations = {word.name: value for word, value in values if word.place == WordPlace.ANNOTATION}
    metadata = {"name": "train", "annotations": annotations}
    container = {
        "name": "main",
        "image": "example.com/train:1",
        **({"resources": {"limits": limits}} if limits else {}),
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {name: value for name, value in metadata.items() if value},
        "spec": {**({"schedulerName": system.schedulers[0]} if system.schedulers else {}), "containers": [container]},
    }
    return yaml.safe_dump(pod, sort_keys=False)


def _value(word: Word, roles: set[Role]) -> str:
    if word.role == Role.MEMORY:
        return "" if Role.FRACTION in roles else str(_MEMORY.get(word.unit, _BLOCKS))
    return _VALUES.get(word.role, "")


# --- the order ------------------------------------------------------------------------------------------------


def _move(system: System) -> Iterator[str]:
    yield "Follow the steps of [moving nodes](nodes.md)."
    if system.opt_out:
        yield (
            f"Before the first node, also keep {system.name}'s webhook out of each namespace that moves: label the "
            f"namespace `{system.opt_out}`."
        )


def _order() -> Iterator[str]:
    yield (
        "This command shows what runs, which systems share which cards, and the steps below with the names of your "
        "programs and nodes. It reads with your rights, and names what it may not read:"
    )
    yield "```console\n$ kubectl berth migrate --cluster\nWhat runs:\n...\n```"
    yield (
        "[Install](../install.md) has the commands that install Berth. If pods request whole cards by "
        "`nvidia.com/gpu`, let [Berth's agent](../install.md#which-device-plugin) be the device plugin of the nodes "
        "that you move. To limit the agents to these nodes, set the value `nodeSelectorDaemonSet.scheduler=berth`. "
        "After the last node, remove this value together with `operator.managedNodes`."
    )
    use = takeover.NodeUse(node="NODE", offered={}, holders={"other": ("NAMESPACE/POD",)})
    plugin = takeover.Program(kind="DaemonSet", namespace="NAMESPACE", name="DEVICE-PLUGIN", image="")
    yield _steps("Before the first node", takeover.before((), (plugin,)))
    yield _steps("Each node, beginning with the nodes that have the fewest pods", takeover.of_node(use))
    yield _steps("After each node", takeover.WATCH)
    yield _steps("After the last node", takeover.AFTER)
    yield _steps("To go back", takeover.back((plugin,)))


def _steps(title: str, steps: Any) -> str:
    return "\n".join(
        [f"## {title}", "", *(line for number, step in enumerate(steps, start=1) for line in _step(number, step))]
    )


def _step(number: int, step: Step) -> Iterator[str]:
    yield f"{number}. {_sentence(step.title)}"
    if step.commands:
        yield from ("", *(f"        {command}" for command in step.commands), "")


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "../migrate/nodes.md": steps,
    **{f"../migrate/{system.page}.md": partial(text, system) for system in TABLE.systems if system.page},
}
"""Path from the folder of reference pages -> what writes the page."""
