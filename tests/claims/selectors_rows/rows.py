"""The recorded rows: expressions with the results of Kubernetes' own implementation for each device."""

import json
from itertools import islice
from pathlib import Path
from typing import Any, Final

from berth_operator.core.claims.selectors import DeviceView, SelectorError, compile_selector
from tests.claims.selectors_rows.devices import DEVICES, view
from tests.claims.selectors_rows.expressions import expressions
from tests.claims.selectors_rows.grammar import random_expressions

RECORDED: Final = Path(__file__).parents[2] / "unit" / "core" / "claims" / "selectors.json"
SEED: Final = 1
RANDOM: Final = 2_600


def all_expressions(seed: int = SEED, count: int = RANDOM) -> list[str]:
    """Return the expressions of the tables and random ones, each once."""
    return list(dict.fromkeys([*expressions(), *islice(random_expressions(seed), count)]))


def views() -> list[DeviceView]:
    """Return what selectors see of the devices."""
    return [view(device) for device in DEVICES]


def outcome(expression: str, devices: list[DeviceView]) -> str:
    """Return the results as recorded: `t`, `f` or `e` (error) for each device, or `c` if it does not compile."""
    try:
        selector = compile_selector(expression)
    except SelectorError:
        return "c"
    return "".join(_letter(selector.matches, device) for device in devices)


def _letter(matches: Any, device: DeviceView) -> str:
    try:
        return "t" if matches(device) else "f"
    except SelectorError:
        return "e"


def read() -> dict[str, str]:
    """Return the recorded results by expression."""
    recorded: dict[str, str] = json.loads(RECORDED.read_text())
    return recorded


def write(results: dict[str, str]) -> None:
    """Record results, one row a line."""
    lines = ",\n".join(f"{json.dumps(expression)}: {json.dumps(result)}" for expression, result in results.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n")
