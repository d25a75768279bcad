"""Load modules of `berth_kubectl.heavy` when a command runs, so that help and completion need none of them."""

import importlib
from typing import Any


def heavy(name: str) -> Any:
    """Return a module of `berth_kubectl.heavy`."""
    return importlib.import_module(f"berth_kubectl.heavy.{name}")
