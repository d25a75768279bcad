"""The shipped fence under other names, so that each test has its own."""

from pathlib import Path
from typing import Any

import yaml

_MANIFESTS = Path(__file__).parents[2] / "manifests"
FENCE = _MANIFESTS / "base/fence.yaml"
OF_CLAIMS = _MANIFESTS / "components/claims/fence.yaml"
OF_CHECKS = _MANIFESTS / "components/kueue/checks.yaml"


def fence(*, namespace: str, lease: str, service_account: str, suffix: str, file: Path = FENCE) -> list[dict[str, Any]]:
    """Return the policies and their bindings for one operator instance."""
    text = file.read_text()
    # Replace the account first, by a marker: in the shipped file the LeaderLease has the same name.
    text = text.replace("system:serviceaccount:berth-system:berth-operator", "\0")
    for shipped, own in (
        ("berth-system", namespace),
        ("berth-operator", lease),
        ("berth-fence", f"berth-fence-{suffix}"),
        ("berth-claims", f"berth-claims-{suffix}"),
        ("berth-kueue", f"berth-kueue-{suffix}"),
        ("\0", f"system:serviceaccount:{namespace}:{service_account}"),
    ):
        text = text.replace(shipped, own)
    return list(yaml.safe_load_all(text))
