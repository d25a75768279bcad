"""`kubectl berth simulate -f FILE`: whether and where the pods of a workload would fit, and what would be left."""

import argparse
from typing import Final

from berth_api import arguments
from berth_kubectl.commands import planned

EXAMPLES: Final = """\
  kubectl berth simulate -f workload.yaml -n ml
  helm template chart | kubectl berth simulate -f -
  kubectl berth simulate -f workload.yaml --without 'ml/batch-*'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    arguments.simulate(parser)
    planned.configure(parser)


def run(options: argparse.Namespace) -> int:
    """Print the result; return 1 if not all pods fit."""
    return planned.run(options, "simulate")
