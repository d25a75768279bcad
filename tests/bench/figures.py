"""Figures of a benchmark: quantiles, and the line of JSON that a run prints last."""

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def say(text: str) -> None:
    """Print progress to stderr; only the result goes to stdout."""
    print(text, file=sys.stderr, flush=True)


def say_load() -> None:
    """Print the load of the machine before the run adds to it."""
    say(f"load average {' '.join(f'{each:.2f}' for each in os.getloadavg())} on {os.cpu_count()} cores")


def result(figures: Mapping[str, Any]) -> None:
    """Print the result as the last line."""
    print(json.dumps(figures), flush=True)


def number(name: str, default: int) -> int:
    """Return a number from the environment, where `make` puts the variables of its command line."""
    text = os.environ.get(name, str(default))
    if not re.fullmatch("[0-9]+", text):
        sys.exit(f"{name}: must be a whole number, not {text!r}")
    return int(text)


def chosen(variable: str, known: Iterable[str]) -> list[str]:
    """Return the names in a variable of the environment, or all known names if there are none.

    Commas separate the names. Spaces do, too, unless known names have spaces.
    """
    allowed = list(known)
    separator = "," if any(" " in name for name in allowed) else "[, ]"
    names = [name.strip() for name in re.split(separator, os.environ.get(variable, "")) if name.strip()]
    if unknown := [name for name in names if name not in allowed]:
        sys.exit(f"{variable}: unknown {', '.join(unknown)}; allowed are {', '.join(allowed)}")
    return names or allowed
