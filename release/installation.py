"""What installs a release: the chart and the manifests, whose images are those of the release."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from devcluster.building import images
from release import archives

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "berth"
BASE: Final = ROOT / "manifests" / "base"
RESOURCES: Final = "resources"


def write_chart(target: Path, registry: str, digests: Mapping[str, str]) -> None:
    """Write the chart's archive. Its values name the images in a registry, by their digests."""
    files: dict[str, archives.Content] = {
        f"berth/{path.relative_to(CHART)}": path for path in CHART.rglob("*") if path.is_file()
    }
    values = (CHART / "values.yaml").read_text()
    for image, digest in digests.items():
        place = rf'(repository: ){images.PREFIX}/{image}\b(.*\n +tag: .*\n +digest: )""'
        values = _replaced(values, place, rf'\g<1>{registry}/{image}\g<2>"{digest}"')
    archives.write_tar(target, {**files, "berth/values.yaml": values.encode()})


def definitions() -> str:
    """Return the CustomResourceDefinitions."""
    return "---\n".join(path.read_text() for path in sorted((ROOT / "crds").glob("*.yaml")))


def manifest(registry: str, digests: Mapping[str, str]) -> str:
    """Return the definitions and the objects of manifests/base, whose images are in a registry, by their digests.

    Raises:
        ValueError: the kustomization does more than list its files, or an image is not named exactly once.
    """
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    if unknown := kustomization.keys() - {"apiVersion", "kind", RESOURCES}:
        raise ValueError(f"manifests/base/kustomization.yaml has {', '.join(sorted(unknown))}")
    objects = "---\n".join((BASE / file).read_text() for file in kustomization[RESOURCES])
    for image, digest in digests.items():
        objects = _replaced(objects, rf"\b{re.escape(images.name(image))}$", f"{registry}/{image}@{digest}")
    return f"{definitions()}---\n{objects}"


def _replaced(text: str, pattern: str, replacement: str) -> str:
    changed, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{count} places match {pattern}, not one")
    return changed
