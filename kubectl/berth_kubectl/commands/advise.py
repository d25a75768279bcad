"""`kubectl berth advise POD`: the fewest pods to move so that this pod fits."""

import argparse
from typing import Final

from berth_kubectl.commands import planned

EXAMPLES: Final = """\
  kubectl berth advise finetune-0 -n ml      # a pod that waits
  kubectl berth advise -f pod.yaml           # one that does not exist yet
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("pod", nargs="?", default="", metavar="POD", help="a pod that waits, or namespace/name")
    which.add_argument("-f", "--file", default="", help="the pod: YAML or JSON, - for standard input")
    planned.configure(parser)


def run(options: argparse.Namespace) -> int:
    """Print the advice; return 1 if no pods were found that could be moved."""
    return planned.run(options, "advise")
