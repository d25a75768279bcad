"""`kubectl berth migrate`: convert manifests of other systems to Berth, and plan how to move a live cluster."""

import argparse
from typing import Any, Final

from berth_api import arguments
from berth_kubectl.arguments import namespaces
from berth_kubectl.commands import connecting
from berth_kubectl.loading import heavy

EXAMPLES: Final = """\
  kubectl berth migrate -f manifests/                # a line for each workload; exit status 1 if something is lost
  helm template chart | kubectl berth migrate -f - -o yaml | kubectl apply -f -
  kubectl berth migrate -A                           # the workloads of the live cluster
  kubectl berth migrate --cluster                    # what runs there, and how to move it node by node
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    namespaces(parser)
    parser.add_argument(
        "--cluster",
        nargs="?",
        const="",
        metavar="NAME",
        help="show how to move the live cluster; with a value, this cluster of the kubeconfig file",
    )
    parser.add_argument("--memory-units", metavar="UNITS", help="unit of memory in other systems' resources: NAME=1Gi")
    arguments.migrate(parser)


def run(options: argparse.Namespace) -> int:
    """Print the answers; return 1 if something is lost or impossible, 2 if something could not be read."""
    options.takeover = options.cluster is not None
    migrating = _migrating()
    if options.file:
        return int(migrating.of_files(options))
    with connecting.session(options, meanwhile=_migrating) as session:
        return int(migrating.of_cluster(options, session.api, session.namespace))


def _migrating() -> Any:
    """Return the module, which loads the words' table, YAML and more."""
    return heavy("migrating")
