"""A cluster in which a test installs the chart. The programs of its pods run as processes of the test.

kwok simulates the nodes, so pods run nothing. Operator and webhook are started with the arguments and the accounts of
the installed Deployments.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import yaml

from devcluster import Cluster, waiting
from devcluster.control_plane.api import Api, ApiError, Manifest
from tests.integration.operator.world import free_ports
from tests.programs import chart
from tests.programs.processes import LEADING, Process

NAMESPACE: Final = "devices"
"""Not that of manifests/: the policies have to follow."""
AGENTS: Final = "berth-agent-system"
NODES: Final = ("node-0", "node-1")
PODS: Final = "/api/v1/namespaces/default/pods"
DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
OF_POD: Final = ("--pod=", "--config=", "--visibility-port=")
"""Arguments of the Deployment that fit only its pods."""
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"


class Site:
    """The cluster, its release, and the processes."""

    def __init__(self, *, cluster: Cluster, folder: Path, helm: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.api: Api = cluster.api
        self._helm = helm
        self._processes: list[Process] = []

    def helm(self, *arguments: str | Path, values: Mapping[str, Any] | None = None) -> str:
        """Run Helm in the release's namespace, as administrator; return what it prints."""
        return chart.helm(*arguments, f"--namespace={NAMESPACE}", values=values, kubeconfig=self.cluster.kubeconfig)

    def install(self, values: Mapping[str, Any], *options: str) -> None:
        """Install the chart."""
        self.helm("install", "berth", chart.CHART, "--create-namespace", *options, values=values)

    # --- programs -----------------------------------------------------------------------------------------------

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> str:
        """Run a command of berth-operator to its end; return what it prints."""
        command = [sys.executable, "-m", "berth_operator", *arguments]
        command.append(f"--kubeconfig={kubeconfig or self.cluster.kubeconfig}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def start_agent(self) -> None:
        """Publish the Devices of the nodes."""
        fleet = self.folder / "fleet.yaml"
        fleet.write_text(yaml.safe_dump({"nodes": [{"names": name, "profile": "a100", "gpus": 8} for name in NODES]}))
        flags = ["--inventory=simulated", f"--fleet={fleet}", f"--kubeconfig={self.cluster.kubeconfig}"]
        self._start("agent", "berth_agent", *flags)

    def start_operator(self) -> Process:
        """Start what the Deployment berth-operator runs, and wait until it leads."""
        arguments = [each for each in self._arguments("berth-operator") if not each.startswith(OF_POD)]
        configuration = self.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/berth-operator")["data"]["berth.yaml"]
        file = self.folder / "berth.yaml"
        file.write_text(configuration)
        [port] = free_ports(1)
        own = [f"--config={file}", "--health=", "--metrics-port=0", "--debug-port=0"]
        own += [f"--visibility-port={port}", f"--visibility-service-port={port}", "--pod-ip=127.0.0.1"]
        service = {"type": "ExternalName", "externalName": "127.0.0.1", "selector": None, "clusterIP": None}
        self.api.merge(f"/api/v1/namespaces/{NAMESPACE}/services/berth-visibility", {"spec": service})
        login = f"--kubeconfig={self.account('berth-operator')}"
        process = self._start("operator", "berth_operator", *arguments, *own, login)
        process.logged(LEADING)
        return process

    def start_webhook(self) -> None:
        """Start what the Deployment berth-webhook runs, and let the API server call it."""
        [port] = free_ports(1)
        for kind, name in (("mutating", "berth-injection"), ("validating", "berth-validation")):
            self._call(f"{ADMISSION}/{kind}webhookconfigurations/{name}", port)
        own = [f"--port={port}", "--address=127.0.0.1", "--host=127.0.0.1", "--period=0.5"]
        login = f"--kubeconfig={self.account('berth-webhook')}"
        self._start("webhook", "berth_operator", *self._arguments("berth-webhook"), *own, login)

    def _call(self, path: str, port: int) -> None:
        hooks = self.api.get(path)["webhooks"]
        for hook in hooks:
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{hook['clientConfig']['service']['path']}"}
        self.api.merge(path, {"webhooks": hooks})

    def _arguments(self, deployment: str) -> list[str]:
        [container] = self.api.get(f"{DEPLOYMENTS}/{deployment}")["spec"]["template"]["spec"]["containers"]
        arguments: list[str] = container["args"]
        return arguments

    def account(self, name: str) -> Path:
        """Return a kubeconfig with the rights of a ServiceAccount of the release."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{name}/token"
        token = self.api.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        file = self.folder / f"{name}.kubeconfig"
        file.touch(mode=0o600)
        file.write_text(self.cluster.kubeconfig_for(token))
        return file

    def may_label_device(self, node: str, *, agent_of: str) -> bool:
        """Return whether the token of a node's agent may label the Device of a node."""
        agents = f"/api/v1/namespaces/{AGENTS}"
        # No scheduler of this version runs that would place the pods of the DaemonSet.
        spec = {
            "nodeName": agent_of,
            "serviceAccountName": "berth-agent",
            "containers": [{"name": "a", "image": "none"}],
        }
        pod = self.api.post(f"{agents}/pods", {"metadata": {"generateName": "agent-"}, "spec": spec})["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["name"], "uid": pod["uid"]}
        request = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        token = self.api.post(f"{agents}/serviceaccounts/berth-agent/token", request)["status"]["token"]
        agent = Api(server=self.cluster.server, token=token, ca=self.cluster.ca_file.read_text())
        label = {"metadata": {"labels": {"example.com/by": "agent"}}}
        try:
            agent.merge(f"/apis/berth.dev/v1alpha1/devices/{node}", label)
        except ApiError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            return False
        finally:
            agent.close()
            self.api.delete(f"{agents}/pods/{pod['name']}", grace_seconds=0)
        return True

    def _start(self, name: str, module: str, *arguments: str) -> Process:
        process = Process(
            name=name,
            command=[sys.executable, "-m", module, *arguments],
            folder=self.folder,
            environment={"BERTH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"},
        )
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """Kill all processes, as if their pods had ended."""
        while self._processes:
            self._processes.pop().kill()

    def tails(self) -> str:
        """Return the ends of all logs."""
        return "".join(f"--- {each.name} (exit code {each.exit_code})\n{each.tail()}\n" for each in self._processes)

    # --- objects ------------------------------------------------------------------------------------------------

    def create_pod(self, name: str, amount: str) -> Manifest:
        """Create a pod that requests hundredths of a GPU and names no scheduler; return it as it was admitted."""
        resources = {"requests": {"kubernetes.io/gpu": amount}, "limits": {"kubernetes.io/gpu": amount}}
        spec = {"containers": [{"name": "main", "image": "none", "resources": resources}]}
        return self.api.post(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def running(self, name: str) -> Manifest:
        """Wait until a pod runs; return it."""

        def pod() -> Manifest | None:
            got = self.api.get(f"{PODS}/{name}")
            return got if got.get("status", {}).get("phase") == "Running" else None

        return waiting.until(pod, what=f"{name} to run") or {}

    def spec(self, deployment: str) -> str:
        """Return the spec of an installed Deployment, as text to compare."""
        return json.dumps(self.api.get(f"{DEPLOYMENTS}/{deployment}")["spec"], sort_keys=True)
