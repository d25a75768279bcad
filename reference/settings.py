"""The settings of the programs that run in the cluster, and the fields of the operator's configuration file."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from berth_agent.configuration.settings import Settings as Agent
from berth_operator.apis.list_watch.main import ApiSettings
from berth_operator.apis.webhook.main import WebhookSettings
from berth_operator.commands.cleanup.main import CleanupSettings
from berth_operator.core import filters
from berth_operator.settings.configuration import File
from berth_operator.settings.flags import Settings as Operator
from reference.markdown import code, page, section, table

PROGRAMS: Final[Mapping[str, type[BaseSettings]]] = {
    "berth-operator": Operator,
    "berth-agent": Agent,
    "berth-operator webhook": WebhookSettings,
    "berth-operator api": ApiSettings,
    "berth-operator cleanup": CleanupSettings,
}


def text() -> str:
    """Return the page."""
    return page(
        "Settings",
        "Every setting of the programs, as `--help` shows it. Each is a flag (`--lease x`) or a variable: the flag in "
        "capitals behind the prefix of the program (`BERTH_LEASE=x`). A flag overrides a variable. How pods are "
        "scheduled is in a file: [its fields](#the-configuration-file).",
        *(_program(name, settings) for name, settings in PROGRAMS.items()),
        section(
            "The configuration file",
            "[Configuration](../configuration.md) explains the file and has examples; [the schema]"
            "(../configuration.schema.json) is for editors.",
            *_file(File.model_json_schema()),
        ),
        section(
            "All filters",
            "A filter passes the nodes for which its sentence holds. `plugins.filters.disabled` of a profile switches "
            "off those without a reason in the last column.",
            table(("filter", "passes nodes if", "needed, because otherwise"), map(_filter, filters.ORDER)),
        ),
    )


def _filter(filter_: filters.Filter) -> tuple[str, str, str]:
    module = inspect.getmodule(filter_.passes)
    sentence = str(module and module.__doc__).partition("\n")[0]
    return code(filter_.NAME), sentence, filter_.TRAITS.needed


def _program(name: str, settings: type[BaseSettings]) -> str:
    prefix = settings.model_config.get("env_prefix", "")
    rows = [(code(f"--{_flag(name)}"), _default(field), field.description or "") for name, field in _fields(settings)]
    head = ("flag", "default", "meaning")
    return section(name, f"The variables' prefix is `{prefix}`.", table(head, rows))


def _fields(settings: type[BaseSettings]) -> list[tuple[str, FieldInfo]]:
    return list(settings.model_fields.items())


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined or field.default is None:
        return ""
    return code(_value(field.default))


def _value(value: object) -> str:
    """Return a value as it is written on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ",".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _file(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of each object of a JSON schema."""
    for title, node in {"BerthSchedulerConfiguration": schema, **schema["$defs"]}.items():
        rows = [(code(name), _json(field.get("default")), _meaning(field)) for name, field in _properties(node)]
        yield section(title, str(node.get("description", "")), table(("field", "default", "meaning"), rows), level=3)


def _properties(node: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(node.get("properties", {}).items())


def _json(value: object) -> str:
    return "" if value in (None, "", [], {}) or isinstance(value, dict) else code(_value(value))


def _meaning(field: dict[str, Any]) -> str:
    limits = [
        f"{word} {field[key]:g}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in field
    ]
    return " ".join(filter(None, [str(field.get("description", "")), f"({', '.join(limits)})" if limits else ""]))
