"""`kubectl berth simulate -f FILE`: whether and where the pods of a workload would fit, and what would be left."""

import argparse
from typing import Final

from berth_kubectl.commands import planned

SUMMARY: Final = "show whether and where the pods of a workload would fit, and what would be left"
EXAMPLES: Final = """\
  kubectl berth simulate -f workload.yaml -n ml
  helm template chart | kubectl berth simulate -f -
  kubectl berth simulate -f workload.yaml --without 'ml/batch-*'
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("-f", "--file", required=True, help="workload: YAML or JSON, - for standard input")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PATTERN",
        help="treat placed pods (namespace/name, with * and ?) as deleted; may be repeated",
    )
    parser.add_argument("--waiting", action="store_true", help="also list the pods that wait already")
    planned.configure(parser)


def run(options: argparse.Namespace) -> int:
    """Print the result; return 1 if not all pods fit."""
    return planned.run(options, "simulate")
