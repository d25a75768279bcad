"""The notes of a release: how to install it, and its section of CHANGELOG.md."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
RELATIVE: Final = re.compile(r"\]\((?!#|\w+:)")
"""A link to a file of the repository."""


def text(version: str, registry: str, digests: Mapping[str, str], source: str) -> str:
    """Return the notes.

    Args:
        version: that of the release.
        registry: registry and folder of the images and the chart.
        digests: image -> digest.
        source: address of the repository's files at this version; empty to leave links as they are.

    Raises:
        ValueError: CHANGELOG.md has no section for this version.
    """
    headings = rf"(?:Unreleased \({re.escape(version)}\)|{re.escape(version)}(?: .*)?)"
    changes = re.search(
        rf"^## {headings}\n(.+?)(?=^## |\Z)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE | re.DOTALL
    )
    if changes is None:
        raise ValueError(f"CHANGELOG.md has no section `## {version}` or `## Unreleased ({version})`")
    images = "".join(f"    {registry}/{image}@{digest}\n" for image, digest in digests.items())
    notes = f"""\
Install the chart:

    helm install berth oci://{registry}/charts/berth --version {version} \\
      --namespace berth-system --create-namespace --wait

[What each file is, and how to check it](docs/release.md). The images:

{images}{changes[1]}"""
    return RELATIVE.sub(f"]({source}/", notes) if source else notes
