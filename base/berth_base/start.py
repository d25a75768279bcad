"""The start of a program: `--version`, its settings, and errors as one line on standard error with status 2."""

import difflib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from json import JSONDecodeError
from typing import Any, Final, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsError

from berth_base.version import version

MISTAKE: Final = 2
"""Exit status after a mistake of the user; another start with the same input would fail in the same way."""

_FLAG: Final = re.compile(r"--[a-z][a-z-]*")
_FIELD: Final = re.compile(r'field "(\w+)"')
_FOLLOWS: Final = "default_factory_not_called"
"""Pydantic's type of an error that only follows from others."""

S = TypeVar("S", bound=BaseSettings)


class StartError(Exception):
    """A program cannot start. The text is one line that shows why."""


def give_up(program: str, reason: str) -> NoReturn:
    """End the program because of a mistake."""
    sys.stderr.write(f"{program}: {' '.join(reason.split())}\n")
    sys.exit(MISTAKE)


def show_version(program: str, arguments: Sequence[str]) -> None:
    """Print the version and end the program if the arguments ask for it."""
    if "--version" in arguments:
        sys.stdout.write(f"{program} {version()}\n")
        sys.exit()


def read(settings: type[S], arguments: Sequence[str]) -> S:
    """Return the settings from arguments and environment variables.

    Raises:
        StartError: an argument or variable is wrong.
    """
    try:
        return settings(_cli_parse_args=list(arguments), _cli_exit_on_error=False)
    except ValidationError as error:
        raise StartError(
            "; ".join(_shown(problem) for problem in error.errors() if problem["type"] != _FOLLOWS)
        ) from None
    except SettingsError as error:
        if isinstance(error.__cause__, JSONDecodeError) and (field := _FIELD.search(str(error))):
            name = f"{settings.model_config.get('env_prefix', '')}{field[1]}".upper()
            problem = f'{name} {os.environ.get(name, "")}: must be a JSON list, such as ["a", "b"]'
        else:
            problem = with_nearest(str(error).removeprefix("error parsing CLI: "), flags(settings))
        raise StartError(problem) from None


def _shown(problem: ErrorDetails) -> str:
    """Return a problem with the option and its value; a message of our own names them already."""
    message = problem["msg"].removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    option = f"--{problem['loc'][0]}".replace("_", "-")
    value = f" {problem['input']}" if isinstance(problem["input"], str | int | float) else ""
    return f"{(option + value).rstrip()}: {message}"


def flags(settings: type[BaseSettings]) -> list[str]:
    """Return the flags of settings."""
    return ["--help", "--version", *(f"--{name}".replace("_", "-") for name in settings.model_fields)]


def with_nearest(message: str, known: Iterable[str]) -> str:
    """Return the message of an argument parser; if it names an unknown flag, with the most similar known one."""
    unknown = _FLAG.findall(message.partition("unrecognized arguments: ")[2])
    return with_suggestion(message, [alike for flag in unknown for alike in nearest(flag, known)])


def with_suggestion(message: str, similar: Sequence[str]) -> str:
    """Return a message with the names that may have been meant, if there are any."""
    return f"{message}; did you mean {', '.join(similar)}?" if similar else message


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known name that is most similar to a mistyped name; none if no name is similar."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)


def unknown_variables(
    settings: type[BaseSettings], environment: Mapping[str, str], *, others: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the variables with the prefix of the settings that set nothing, each with the most similar known one or "".

    Args:
        settings: the settings.
        environment: the environment variables.
        others: prefixes of other programs' variables, which are left out.
    """
    prefix = settings.model_config.get("env_prefix", "")
    known = [name.upper() for name in settings.model_fields]
    for variable in sorted(environment):
        name = variable.removeprefix(prefix)
        if variable.startswith(prefix) and name not in known and not variable.startswith(tuple(others)):
            yield variable, next((f"{prefix}{alike}" for alike in nearest(name, known)), "")


def effective(settings: BaseSettings) -> dict[str, Any]:
    """Return all settings as plain values for the log. They name files with secrets, and contain none."""
    return settings.model_dump(mode="json")
