"""An API server's certificate authority is rotated under running programs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster import Arena, Cluster
from tests.programs.processes import Processes
from tests.stand_ins.certificates import Authority
from tests.stand_ins.proxy import FaultProxy


@pytest.fixture
def processes(arena: Arena, tmp_path: Path) -> Iterator[Processes]:
    running = Processes(arena=arena, folder=tmp_path)
    yield running
    running.close()


def test_programs_trust_a_rotated_authority_without_a_restart(
    cluster: Cluster, arena: Arena, processes: Processes, tmp_path: Path
) -> None:
    [node] = arena.nodes(1)
    fleet, authority = tmp_path / "fleet.yaml", Authority(tmp_path)

    def describe(gpus: int) -> None:
        fleet.write_text(yaml.safe_dump({"nodes": [{"names": node, "profile": "a100", "gpus": gpus}]}))

    def is_bound(name: str) -> bool:
        assert all(process.exit_code is None for process in processes.started)
        return bool(arena.get("pods", name)["spec"].get("nodeName"))

    def create(name: str) -> None:
        arena.create([arena.pod(name, limits={"kubernetes.io/gpu": "50"})])
        arena.wait(lambda: is_bound(name), what=f"the pod {name} to be bound")

    with FaultProxy(server=cluster.server, ca_file=cluster.ca_file, folder=tmp_path, authority=authority) as proxy:
        describe(1)
        kubeconfig = proxy.kubeconfig(cluster.token)
        processes.agent(fleet, kubeconfig=kubeconfig)
        processes.operator(kubeconfig=kubeconfig)
        create("before")
        other = Authority(tmp_path, "other")
        shutil.copyfile(other.file, authority.file)
        proxy.restart(other.issue("proxy"))
        create("after")
        describe(2)
        arena.wait(lambda: len(arena.get("devices", node)["spec"]["devices"]) == 2, what="the agent's new inventory")
