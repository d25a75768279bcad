"""The arguments that a command has in both programs, `berth-operator` and `kubectl berth`.

They are here so that the plug-in can show help without loading the operator.
"""

import argparse
from typing import Final

from berth_api import names

FORMS: Final = ("json", "yaml")
"""The forms of `migrate -o`."""


def migrate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `migrate`."""
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        help="file or folder of manifests, - for standard input; may be repeated (default: the live cluster)",
    )
    parser.add_argument(
        "--scheduler-name",
        default=names.SCHEDULER,
        metavar="NAME",
        help="schedulerName to write (default: %(default)s)",
    )
    parser.add_argument("--in-place", action="store_true", help="change the files instead of printing them")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print notes and progress to standard error")
    parser.add_argument("-o", "--output", default="", choices=FORMS, metavar="FORM", help="json | yaml")


def simulate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `simulate`."""
    parser.add_argument("-f", "--file", required=True, help="workload: YAML or JSON, - for standard input")
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PATTERN",
        help="treat placed pods (namespace/name, with * and ?) as deleted; may be repeated",
    )
    parser.add_argument("--waiting", action="store_true", help="also list the pods that wait already")
