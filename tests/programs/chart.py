"""The chart as Helm renders it."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from devcluster.building import programs
from devcluster.control_plane.api import Manifest
from devcluster.control_plane.manifests import documents

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "charts/berth"
RECOMMENDED: Final = sorted((ROOT / "examples/values").glob("*.yaml"))
"""Values for clusters of different sizes, which docs/recommended-values.md shows."""
NAMESPACE: Final = "berth-system"

Values = Mapping[str, Any]


class RenderError(Exception):
    """Helm refused the values or a template; the text is what it printed."""


def helm(*arguments: str | Path, values: Values | None = None, kubeconfig: Path | None = None) -> str:
    """Return what Helm prints; `values` are the file of --values.

    Raises:
        RenderError: Helm fails.
    """
    command: list[str | Path] = [programs.ensure(programs.PACKAGING)["helm"], *arguments]
    if values is not None:
        command.append("--values=-")
    if kubeconfig is not None:
        command.append(f"--kubeconfig={kubeconfig}")
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RenderError(done.stderr)
    return done.stdout


def rendered(
    values: Values | None = None, *, namespace: str = NAMESPACE, kube_version: str = "", options: Sequence[str] = ()
) -> dict[str, Manifest]:
    """Return the objects that an installation creates, hooks included: kind/name -> object."""
    versions = [f"--kube-version={kube_version}"] if kube_version else []
    text = helm("template", "berth", CHART, f"--namespace={namespace}", *versions, *options, values=values or {})
    return {f"{document['kind']}/{document['metadata']['name']}": document for document in documents(text)}
