"""The APIService as users install, upgrade, roll back and remove it: no state of the operator harms the cluster."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster import waiting
from devcluster.building import programs
from tests.conftest import prepare
from tests.integration.operator.world import free_ports
from tests.integration.visibility.conftest import API_SERVICE, GROUP, MANIFEST, SERVED, Installation, Replica
from tests.programs import chart
from tests.programs.aggregated import own_world

NAME = f"v1alpha1.{GROUP}"
ONLY = {
    "crds": {"install": False},
    "agent": {"enabled": False},
}
"""Values of a release that is only looked at; its pods run nowhere."""


class Installed(Installation):
    """One replica, which tests start and end."""

    replica: Replica

    def begin(self, port: int = 0) -> None:
        """Start the replica, on a free port if none is given. If its term ended on a slow machine, it would stay so."""
        self.replica = self.start(port or free_ports(1)[0])
        self.replica.process.logged(SERVED)

    def end(self) -> None:
        """Stop the replica in order."""
        assert self.replica.process.stop() == 0

    def serve(self) -> None:
        """Start the replica, and wait until users get answers."""
        self.begin()
        self.answers()

    def answers(self) -> None:
        """Wait until users get answers."""
        tail = self.replica.process.tail
        waiting.until(self.is_available, what="the API server to pass requests on", details=tail)

    def kubectl(self, *arguments: str, manifest: Any = None) -> str:
        """Run kubectl, and return what it prints."""
        text = None if manifest is None else yaml.safe_dump(manifest)
        return self.arena.cluster.kubectl(*arguments, input=text)

    def of_before(self) -> dict[str, Any]:
        """Return the APIService as manifests of an earlier version had it."""
        place = {"namespace": self.arena.namespace, "name": "berth-visibility", "port": self.replica.port}
        return {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": NAME},
            "spec": {
                "group": GROUP,
                "version": "v1alpha1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "service": place,
            },
        }

    def delete_a_namespace(self) -> None:
        """Create a namespace, delete it, and wait until it is gone."""
        path = "/api/v1/namespaces/doomed"
        self.api.post("/api/v1/namespaces", {"metadata": {"name": "doomed"}})
        self.api.delete(path)
        waiting.until(lambda: not self.api.exists(path), what="the namespace to be gone")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    with own_world(tmp_path_factory.mktemp("registration"), prepare) as world:
        installation = Installed(world)
        installation.install()
        yield installation


def test_no_manifest_has_it_and_a_replica_creates_it(installed: Installed) -> None:
    assert not installed.api.exists(API_SERVICE)
    installed.serve()
    waiting.until(lambda: GROUP in installed.kubectl("api-resources", "--cached=false"), what="the group to be listed")


def test_upgrade_from_a_manifest_that_has_it_and_rollback(installed: Installed) -> None:
    # A replica that runs would create it again before kubectl does.
    installed.end()
    installed.kubectl("apply", "-f-", manifest=installed.of_before())
    installed.begin(installed.replica.port)
    installed.answers()
    installed.install()  # of this version
    installed.answers()
    installed.api.delete(API_SERVICE)
    # The API server may serve what was registered a moment longer.
    waiting.until(lambda: installed.api.exists(API_SERVICE), what="a replica to create the APIService again")
    installed.answers()
    spec = installed.api.get(API_SERVICE)["spec"]
    for how in ("--server-side=false", "--server-side=true"):
        installed.kubectl("apply", "-f-", how, manifest=installed.of_before())
        assert installed.api.get(API_SERVICE)["spec"] == spec, how
        # The API server follows each change of an APIService after a moment.
        installed.answers()


@pytest.mark.usefixtures("helm")
def test_releases_of_helm(installed: Installed, tmp_path: Path) -> None:
    place = f"--namespace={installed.arena.namespace}"

    def helm(*arguments: str | Path, values: Any = None) -> None:
        chart.helm(*arguments, place, values=values, kubeconfig=installed.arena.cluster.kubeconfig)

    def is_owned() -> bool:
        """Return whether the replica has created it: then it goes with its owner."""
        exists = installed.api.exists(API_SERVICE)
        return exists and "ownerReferences" in installed.api.get(API_SERVICE)["metadata"]

    installed.end()
    for document in yaml.safe_load_all(MANIFEST.read_text()):
        installed.api.delete(installed.api.path_of(installed.placed(document)))
    helm("install", "berth", _chart_of_before(installed, tmp_path), "--no-hooks", values=ONLY)
    installed.begin()
    waiting.until(lambda: "caBundle" in installed.api.get(API_SERVICE)["spec"], what="the replica to be trusted")

    helm("upgrade", "berth", chart.CHART, "--no-hooks", values=ONLY)
    waiting.until(is_owned, what="the replica to create it in the place of the release's")
    helm("upgrade", "berth", chart.CHART, "--no-hooks", values=ONLY)
    helm("rollback", "berth", "2", "--no-hooks")
    assert is_owned()
    with pytest.raises(chart.RenderError, match="APIService"):
        helm("rollback", "berth", "1", "--no-hooks")
    installed.end()  # its last replica deletes the APIService
    helm("rollback", "berth", "1", "--no-hooks")

    helm("upgrade", "berth", chart.CHART, "--no-hooks", values=ONLY)
    installed.begin()
    waiting.until(is_owned, what="the replica to create it again")
    helm("uninstall", "berth", "--no-hooks")
    waiting.until(lambda: not installed.api.exists(API_SERVICE), what="it to be deleted with its owner")
    installed.install()
    installed.answers()


def _chart_of_before(installed: Installed, folder: Path) -> Path:
    before = folder / "before"
    shutil.copytree(chart.CHART, before)
    file = before / "files/visibility.yaml"
    file.write_text(file.read_text() + yaml.safe_dump([installed.of_before()]))
    return before


def test_the_last_replica_takes_its_service_back(installed: Installed) -> None:
    installed.answers()
    installed.end()
    assert not installed.api.exists(API_SERVICE)
    installed.delete_a_namespace()


def test_after_all_replicas_were_killed_doctor_has_the_command(installed: Installed) -> None:
    installed.serve()
    installed.replica.process.kill()
    waiting.until(lambda: not installed.is_available(""), what="the API server to miss the replica")
    waiting.until(lambda: _fix(installed), what="doctor to find it")
    subprocess.run(["/bin/sh", "-c", _fix(installed)], env=_environment(installed), check=True, timeout=60)
    assert not installed.api.exists(API_SERVICE)
    installed.delete_a_namespace()


def _fix(installed: Installed) -> str:
    """Return the command that `kubectl berth doctor` shows for the APIService; empty if it finds nothing."""
    command = [sys.executable, "-m", "berth_kubectl", "doctor", "-o", "json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60, env=_environment(installed))
    findings = json.loads(done.stdout)["findings"]
    return next((str(each["fix"]) for each in findings if each["object"] == f"apiservice/{NAME}"), "")


def _environment(installed: Installed) -> dict[str, str]:
    kubectl = programs.ensure(["kubectl"])["kubectl"]
    own = {"BERTH_KUBECTL": str(kubectl), "KUBECONFIG": str(installed.arena.cluster.kubeconfig)}
    return {**os.environ, **own, "PATH": f"{kubectl.parent}:{os.environ['PATH']}"}
