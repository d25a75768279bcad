"""Code that `simulate` and `advise` share. They read the cluster with the user's rights, and decide locally."""

import argparse
from typing import Any

from berth_kubectl.arguments import namespace
from berth_kubectl.commands import connecting
from berth_kubectl.loading import heavy
from berth_kubectl.printing import output


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    namespace(parser)
    parser.add_argument(
        "--snapshot", metavar="FILE", help="read a file that `berth-operator snapshot` wrote, not the live cluster"
    )
    own = parser.add_argument_group("settings in place of the operator's")
    own.add_argument("--config", metavar="FILE", help="BerthSchedulerConfiguration file")
    own.add_argument("--genius-priorities", metavar="LIMITS", help="highest genius/priority of namespaces: ml=10,*=5")
    own.add_argument("--memory-units", metavar="UNITS", help="unit of memory in other systems' resources: NAME=1Gi")
    own.add_argument("--gpu-vendors", metavar="VENDORS", help="vendors of GPUs for kubernetes.io/gpu: nvidia,amd")
    own.add_argument("--trusted-schedulers", metavar="NAMES", help="other schedulers whose allocations are trusted")
    own.add_argument("--node-selector", metavar="LABELS", help="label selector of the nodes to use")
    own.add_argument("--agent-namespace", metavar="NAME", help="namespace of the agents' Leases")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not print notes to standard error")
    parser.add_argument("-o", "--output", default="", choices=("json", "yaml"), metavar="FORM", help="json | yaml")


def run(options: argparse.Namespace, question: str) -> int:
    """Answer a question by the function of its name in `heavy.planning`."""
    to = output.standard(options.output)
    if options.snapshot:
        options.namespace = options.namespace or "default"
        planning = _planning()
        plan, note = planning.of_snapshot(options)
    else:
        with connecting.session(options, meanwhile=_planning) as session:
            options.namespace = session.namespace
            planning = _planning()
            plan, note = planning.of_cluster(options, session.api)
    if note and not options.quiet:
        to.note(note)
    return int(getattr(planning, question)(options, plan, to))


def _planning() -> Any:
    """Return the module, which takes half a second to load."""
    return heavy("planning")
