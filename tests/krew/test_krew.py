"""The archive that `make krew` wrote, installed by the real krew, runs on its own: `make krew-e2e`."""

import os
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from berth_kubectl import arguments
from berth_kubectl.dashboard import files
from devcluster import Cluster
from devcluster.building import programs
from tests.conftest import CRDS

FOLDER = os.environ.get("BERTH_KREW", "")
pytestmark = pytest.mark.skipif(not FOLDER, reason="`make krew-e2e` builds the archive and runs this")


def test_krew_installs_the_plugin_and_kubectl_runs_it(tmp_path: Path) -> None:
    folder = Path(FOLDER).resolve()
    [archive] = folder.glob("*.tar.gz")
    environment = {
        "HOME": str(tmp_path),
        "KREW_ROOT": str(tmp_path / "krew"),
        "PATH": f"{tmp_path}/krew/bin:{programs.ensure(['kubectl'])['kubectl'].parent}:/usr/bin:/bin",
    }

    def run(*command: str | Path) -> str:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    krew = programs.ensure(programs.PLUGIN_MANAGER)["krew"]
    files = (f"--manifest={folder / 'berth.yaml'}", f"--archive={archive}")
    run(krew, "install", *files)
    assert (tmp_path / "krew" / "receipts" / "berth.yaml").exists()

    assert all(verb in run("kubectl", "berth", "--help") for verb in arguments.VERBS)
    with Cluster(folder=tmp_path / "cluster") as cluster:
        cluster.install_crds(CRDS)
        environment["KUBECONFIG"] = str(cluster.kubeconfig)
        run("kubectl", "berth", "devices", "-o", "yaml")
        workload = tmp_path / "none.yaml"
        workload.write_text("")
        dashboard = [environment["KREW_ROOT"] + "/bin/kubectl-berth", "dashboard", "--no-browser"]
        with subprocess.Popen(dashboard, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            process.terminate()
        assert process.returncode == 0
        assert "0 of 0 pods would get a place" in run("kubectl", "berth", "simulate", "-f", workload)
        run("kubectl", "berth", "completion", "install", "--folder", tmp_path / "krew" / "bin")
        assert "devices\n" in run("kubectl", "__complete", "berth", "dev")


def test_the_archive_has_licences_and_the_digest_of_the_manifest() -> None:
    folder = Path(FOLDER)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = tar.getnames()
        assert {entry.uname for entry in tar.getmembers()} == {""}
    assert {"LICENSE", "kubectl-berth"} <= set(names)
    page = {name.partition("/page/")[2] for name in names if "berth_kubectl/dashboard/page/" in name}
    assert set(files.read()) <= page
    assert [name for name in names if name.startswith("licences/numpy")]
    manifest = yaml.safe_load((folder / "berth.yaml").read_text())
    [platform] = manifest["spec"]["platforms"]
    assert Path(f"{archive}.sha256").read_text() == f"{platform['sha256']}  {archive.name}\n"
    assert platform["uri"].endswith(archive.name)
    assert (folder / archive.name).exists()
