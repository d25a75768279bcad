"""The commands and their arguments, from the parsers."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from berth_kubectl import arguments as kubectl_berth
from berth_operator.commands import main as of_operator
from berth_operator.commands.crds import main as crds
from reference.markdown import code, page, section, table

OF_KUBECTL: Final = "flags of kubectl"
"""The group of flags that all commands of the plug-in pass on."""
HEAD: Final = ("argument", "default", "meaning")


def text() -> str:
    """Return the page."""
    return page(
        "Commands",
        "Every command with its arguments, as `--help` shows them. What programs that run in the cluster take is in "
        "[settings](settings.md).",
        section("kubectl berth", "[The guide](../kubectl.md) explains the output.", *_of_kubectl()),
        section(
            "berth-operator",
            "Commands about a cluster: [simulation and advice](../simulation.md), "
            "[defragmentation](../defragmentation.md), [migration](../migrate.md), definitions.",
            *(_command(f"berth-operator {name}", parser) for name, parser in _of_operator().items()),
        ),
    )


def _of_kubectl() -> Iterator[str]:
    parsers = {verb: kubectl_berth.parser(verb) for verb in kubectl_berth.VERBS}
    for verb, parser in parsers.items():
        yield _command(f"{kubectl_berth.PROGRAM} {verb}", parser)
    rows = [_argument(action) for action in _groups(next(iter(parsers.values())))[OF_KUBECTL]]
    yield section("Flags of kubectl", "All of them are passed on to kubectl.", table(HEAD, rows), level=3)


def _of_operator() -> Mapping[str, argparse.ArgumentParser]:
    subcommands = {
        str(name): parser
        for action in _actions(of_operator.parser())
        if isinstance(action.choices, dict)
        for name, parser in action.choices.items()
    }
    return {**subcommands, "crds": crds.parser()}


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    own = [action for group, actions in _groups(parser).items() if group != OF_KUBECTL for action in actions]
    description = (parser.description or "").strip()
    return section(name, description, table(HEAD, map(_argument, own)), level=3)


def _groups(parser: argparse.ArgumentParser) -> dict[str, list[argparse.Action]]:
    groups = parser._action_groups  # noqa: SLF001 - argparse has no other way to ask
    return {group.title or "": _shown(group._group_actions) for group in groups}  # noqa: SLF001 - the same


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for actions in _groups(parser).values() for action in actions]


def _shown(actions: list[argparse.Action]) -> list[argparse.Action]:
    return [action for action in actions if action.dest != "help" and action.help != argparse.SUPPRESS]


def _argument(action: argparse.Action) -> tuple[str, str, str]:
    choices = "|".join(map(str, action.choices)) if action.choices else ""
    value = "" if action.nargs == 0 else choices or str(action.metavar or action.dest.upper())
    names = [f"{name} {value}".strip() for name in action.option_strings] or [value]
    default = "" if action.nargs == 0 or action.default in (None, "", []) else str(action.default)
    required = "; required" if action.required and action.option_strings else ""
    return ", ".join(map(code, names)), code(default), f"{(action.help or '') % {**vars(action), 'prog': ''}}{required}"
