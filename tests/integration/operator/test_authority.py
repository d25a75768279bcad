"""An API server whose certificate Go programs such as kubectl trust, and Python's defaults refuse in some versions."""

from pathlib import Path

from devcluster import Cluster
from tests.integration.operator.world import World
from tests.stand_ins.certificates import Authority
from tests.stand_ins.proxy import FaultProxy


def test_an_authority_without_root_and_key_identifiers_is_trusted(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    authority = Authority(tmp_path, "intermediate", signer=Authority(tmp_path, "root"), is_bare=True)
    with FaultProxy(server=cluster.server, ca_file=cluster.ca_file, folder=tmp_path, authority=authority) as proxy:
        world.agent(kubeconfig=proxy.kubeconfig(cluster.token))
        world.operator(kubeconfig=proxy.kubeconfig(cluster.token))
        [node] = world.nodes(gpus=1)
        world.pod("p", {"nvidia.com/gpu": "1"})
        # kopf, which has a session of its own, hears of the Device.
        world.wait_allocated(node, "1")
        world.close()
