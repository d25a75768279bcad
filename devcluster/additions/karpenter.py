"""Karpenter with its provider for kwok. It creates Nodes for pending pods and removes them. kwok simulates the Nodes.

karpenter.start(cluster, types=[InstanceType(name="g6.12xlarge", …)]) cluster.api.apply(NODE_CLASS)  # then NodePools
that refer to it
"""

import json
import sys
from collections.abc import Sequence
from typing import Final

from devcluster.additions import installation, instances
from devcluster.additions.instances import InstanceType
from devcluster.building import programs
from devcluster.control_plane.cluster import Cluster

NODE_CLASS: Final = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "kwok"}}
NODE_CLASS_REF: Final = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "kwok"}
DELAY: Final = 6.0
"""Seconds between a Node and its Device."""


def start(cluster: Cluster, *, types: Sequence[InstanceType], delay: float = DELAY) -> None:
    """Start Karpenter, and what plays the machines that it adds, with one agent for all of them."""
    program = programs.ensure(programs.AUTOSCALER)["karpenter"]
    source = programs.source("karpenter")
    for folder in ("kwok/charts/crds", "kwok/apis/crds"):
        cluster.install_crds(source / folder)
    installation.create_namespaces(cluster)
    for_karpenter = cluster.folder / "karpenter-types.json"
    for_karpenter.write_text(json.dumps([kind.for_karpenter() for kind in types]))
    own = cluster.folder / "instance-types.json"
    instances.save(list(types), own)
    fleet = cluster.folder / "instances.yaml"
    fleet.write_text("nodes: []\n")
    python = [sys.executable, "-m"]
    cluster.run("instances", [*python, "devcluster.additions.instances", str(own), str(fleet), str(delay)])
    agent = ["--inventory=simulated", f"--fleet={fleet}", "--poll-interval=0.5", "--resync-interval=2"]
    cluster.run("berth-agent", [*python, "berth_agent", *agent])
    cluster.run(
        "karpenter",
        [
            str(program),
            f"--instance-types-file-path={for_karpenter}",
            "--disable-leader-election",
            "--feature-gates=NodeOverlay=true",
            # Any free port: no test reads them.
            "--metrics-port=0",
            "--health-probe-port=0",
        ],
    )
