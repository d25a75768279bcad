"""The commands in the documents work as written, and each example does what it says.

The commands of the console blocks run from top to bottom, in one shell for each page, on a cluster of `devcluster up
--operator`.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from devcluster import Cluster, waiting
from devcluster.additions import installation
from devcluster.building import programs
from devcluster.control_plane.api import Manifest
from tests.integration.documents.console import SECONDS, Command, Shell, commands, missing
from tests.integration.documents.examples import CHECKS, REFUSED
from tests.integration.documents.site import Site

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = ROOT / "manifests" / "examples"
PAGES: Final = (
    "README.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md") if commands(page.read_text())),
)
"""All pages with console blocks."""

UP: Final = "python -m devcluster up --operator"
DOWN: Final = "python -m devcluster down"
BOX: Final = """kubectl run hello --image=berth.dev/devcluster/box:1 --image-pull-policy=Never \\
    --overrides='{"spec":{"nodeName":"real-0"}}' -- env wait"""
OPERATOR_IMAGE: Final = "docker build --push -f images/operator.Dockerfile -t $REGISTRY/berth-operator:0.1.0 ."
AGENT_IMAGE: Final = "docker build --push -f images/agent.Dockerfile -t $REGISTRY/berth-agent:0.1.0 ."
INSTALL: Final = "helm install berth charts/berth --namespace berth-system --create-namespace --wait"
HELM: Final = f"""{INSTALL} \\
    --set image.operator.repository=$REGISTRY/berth-operator \\
    --set image.agent.repository=$REGISTRY/berth-agent"""
LOGS: Final = (
    "kubectl logs -n berth-system --prefix --tail=50 -l app.kubernetes.io/name=berth-operator",
    "kubectl logs -n berth-system --tail=-1 -l app.kubernetes.io/name=berth-operator | grep -A20 'plug-in' || true",
    "kubectl logs --prefix --tail=20 -n berth-agent-system -l app.kubernetes.io/name=berth-agent",
    "kubectl logs -n berth-system --tail=-1 -l app.kubernetes.io/name=berth-operator | grep 'live metrics' || true",
)
READS: Final = re.compile(r"kubectl (get|describe) ")
ELSEWHERE: Final[Mapping[str, str]] = {
    **dict.fromkeys(LOGS, "needs nodes that serve logs"),
    UP: "the fixture `site` runs it, once for all pages",
    DOWN: "the fixture `site` runs it after the last page",
    "make test": "its tests do not need what these do, and run before them",
    "make e2e": "this is one of its tests",
    "make demo": "tests/integration/test_demo.py",
    "make kind": "needs Docker; `make kind-e2e` runs its steps (tests/node/test_trial.py)",
    "kind delete cluster --name berth": "needs Docker",
    "kubectl berth dashboard": "runs until it is interrupted: tests/integration/kubectl/test_kubectl_berth.py",
    "make trial": "tests/node/test_trial.py",
    'eval "$(.venv/bin/python -m devcluster env)"': "belongs to `make trial`",
    "kubectl describe pod first": "belongs to `make trial`",
    "helm uninstall berth --namespace berth-system": "tests/node/test_trial.py",
    ".venv/bin/python -m devcluster down": "belongs to `make trial`",
    "python -m devcluster up --real-node": "tests/node/test_clean_up.py",
    BOX: "tests/node/test_clean_up.py",
    "helm install berth berth-0.1.0.tgz --namespace berth-system --create-namespace --wait": "make install-e2e",
    OPERATOR_IMAGE: "needs Docker and a registry",
    AGENT_IMAGE: "needs Docker and a registry",
    "make images": "minutes the first time; tests/node/test_trial.py uses the same archives",
    "ctr --namespace k8s.io images import .build/images/berth-operator.tar": "tests/node/test_trial.py",
    "ctr --namespace k8s.io images import .build/images/berth-agent.tar": "tests/node/test_trial.py",
    f"{INSTALL} --set image.pullPolicy=Never": "tests/node/test_trial.py installs the chart",
    **dict.fromkeys(
        (
            "kubectl --namespace berth-system port-forward deploy/berth-operator 10251 &",
            "curl --silent localhost:10251/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/node-2",
        ),
        "needs an operator in a pod; tests/integration/operator/test_debug_api.py asks the same path",
    ),
    **dict.fromkeys(
        (
            "berth-operator defragment --pod ml/finetune --dry-run",
            "berth-operator defragment --pod ml/finetune",
        ),
        "needs a fragmented cluster; tests/integration/operator/test_defragmentation.py",
    ),
    **dict.fromkeys(
        (
            "kubectl berth simulate -f manifests/examples/claims/one.yaml",
            "kubectl apply -f manifests/examples/claims/one.yaml",
            "kubectl wait --for=condition=PodScheduled pod/by-claim --timeout=120s",
            "kubectl get resourceclaims",
            "kubectl delete -f manifests/examples/claims/one.yaml --now",
        ),
        "needs a driver; tests/integration/operator/test_from_plugins_to_claims.py",
    ),
    **dict.fromkeys(
        (
            "berth-operator simulate -f workload.yaml -n ml",
            "echo $?",
            "berth-operator advise -f finetune.yaml -n ml",
        ),
        "needs the workload of the page; tests/integration/operator/test_simulation.py",
    ),
    **dict.fromkeys(
        (
            "kubectl get gpunodes.nvidia-gpu-scheduler",
            "kubectl get --raw '/apis/nvidia-gpu-scheduler/v1/gpupods?watch=true'",
        ),
        "needs the aggregated API; tests/integration/list_watch/test_list_watch.py",
    ),
    **dict.fromkeys(
        (
            "kubectl get queue -n ml",
            "kubectl get fleet",
            "kubectl get --raw /apis/visibility.berth.dev/v1alpha1/namespaces/ml/pods/train/explanation",
            "kubectl auth can-i get pods.visibility.berth.dev --subresource=explanation -n team-a",
        ),
        "needs the visibility API; tests/integration/visibility/test_visibility.py",
    ),
    **dict.fromkeys(
        (
            "kubectl get device node-1",
            r"kubectl get pod two -o jsonpath='{.metadata.annotations.scheduling\.koordinator\.sh/device-allocated}'",
        ),
        "needs the plug-in of the page; tests/integration/operator/test_plugins.py",
    ),
    HELM: "needs the images on nodes; tests/node/test_trial.py installs the chart",
}
"""Commands that do not run here, by their exact text: why, or the test that runs them."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which clusters by name are the tests' own."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    """Return what a reader has: the checkout's programs on PATH, and no cluster yet."""
    kubectl = programs.ensure(["kubectl"])["kubectl"]
    path = f"{Path(sys.executable).parent}:{kubectl.parent}:{os.environ['PATH']}"
    return {"XDG_STATE_HOME": str(home), "PATH": path, "COLUMNS": "200"}


@pytest.fixture(scope="module")
def site(environment: dict[str, str], home: Path) -> Iterator[Site]:
    """Start the cluster as the pages say, and stop it as they say."""
    try:
        _type(UP, environment)
        cluster = Cluster(folder=home / "berth" / "devcluster" / "berth")
        yield Site(cluster)
        cluster.api.close()
    finally:
        _type(DOWN, environment)


def _type(command: str, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command.split(),
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def _commands(page: str) -> list[Command]:
    return commands((ROOT / page).read_text())


def run(shell: Shell, command: Command) -> None:
    """Run a command; look again, as a reader would, while one that only reads lacks what the page shows."""
    status, output = shell.run(command.text)
    assert status == 0, f"$ {command.text}\n{output}"
    if missing(command.shown, output) and READS.match(command.text):
        waiting.until(
            lambda: not missing(command.shown, shell.run(command.text)[1]),
            what=f"$ {command.text} to show what the page shows",
            details=lambda: shell.run(command.text)[1],
        )
    else:
        assert missing(command.shown, output) == [], f"$ {command.text}\n{output}"


@pytest.mark.parametrize("page", PAGES)
def test_each_command_of_a_page_works_as_written(page: str, site: Site, environment: dict[str, str]) -> None:
    try:
        with Shell(folder=ROOT, environment={**environment, "KUBECONFIG": str(site.cluster.kubeconfig)}) as shell:
            for command in _commands(page):
                if command.text not in ELSEWHERE:
                    run(shell, command)
    finally:
        site.clear()


@pytest.mark.parametrize(
    ("command", "note"), [("explain waits", ""), ("queue", ""), ("top", "no fresh metrics: the operator reads them")]
)
def test_commands_answer_from_the_visibility_api(
    command: str, note: str, site: Site, environment: dict[str, str]
) -> None:
    [waits] = installation.documents(EXAMPLES / "waits.yaml")
    site.api.apply(waits)
    site.message("waits")
    own = {**os.environ, **environment, "KUBECONFIG": str(site.cluster.kubeconfig)}
    line = ["kubectl", "berth", *command.split()]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False, env=own)
    # Without the API a note would say that it is not served.
    assert (done.returncode, done.stderr[: len(note)], bool(note)) == (0, note, bool(done.stderr))
    site.clear()


def test_commands_that_run_elsewhere_are_still_there() -> None:
    written = {command.text for page in PAGES for command in _commands(page)}
    assert sorted(ELSEWHERE.keys() - written) == []
    tests = [path for reason in ELSEWHERE.values() for path in re.findall(r"tests/[\w/]+\.py", reason)]
    assert [path for path in tests if not (ROOT / path).exists()] == []


def test_there_is_a_check_for_each_example() -> None:
    assert sorted(CHECKS) == sorted(file.stem for file in EXAMPLES.glob("*.yaml"))


def test_all_examples_are_applied_at_once(site: Site) -> None:
    try:
        site.cluster.kubectl("apply", "-f", str(EXAMPLES))
        waiting.until(lambda: site.waiting() == {"patient-", "waits"}, what=f"all pods but two; {site.waiting()}")
    finally:
        site.clear()


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_an_example_does_what_it_says(name: str, site: Site) -> None:
    try:
        for document in installation.documents(EXAMPLES / f"{name}.yaml"):
            site.api.apply(document)
        assert CHECKS[name](site)
    finally:
        site.clear()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_an_example_waits_where_its_constraint_cannot_be_met(name: str, site: Site) -> None:
    node, reason = REFUSED[name]
    try:
        for document in installation.documents(EXAMPLES / f"{name}.yaml"):
            site.api.apply(_pinned(document, node))
        waiting.until(lambda: reason in "".join(site.messages().values()), what=f"{reason!r}; {site.messages()}")
        assert all("nodeName" not in pod["spec"] for pod in site.pods())
    finally:
        site.clear()


def _pinned(document: Manifest, node: str) -> Manifest:
    """Return an object whose pods have to run on a node."""
    pod = document["spec"].get("template", document)
    if "containers" in pod["spec"]:
        pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return document
