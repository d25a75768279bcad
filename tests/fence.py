"""The shipped fence under other names, so that each test has one of its own."""

from pathlib import Path
from typing import Any

import yaml

FENCE = Path(__file__).parent.parent / "manifests/base/fence.yaml"

# An API server follows the Leases for the first policy that has them as its parameter, stops when the last such
# policy goes, and cannot begin again: from then on it sees no new term. So one such policy stays for good.
KEEPER = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: test-keeps-leases-in-view}
spec:
  paramKind: {apiVersion: coordination.k8s.io/v1, kind: Lease}
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/binding]}
  validations: [{expression: "true"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: test-keeps-leases-in-view}
spec:
  policyName: test-keeps-leases-in-view
  validationActions: [Deny]
  matchResources: {objectSelector: {matchLabels: {example.com/nobody: has-this}}}
  paramRef: {name: none, namespace: default, parameterNotFoundAction: Allow}
"""


def fence(*, namespace: str, lease: str, service_account: str, suffix: str) -> list[dict[str, Any]]:
    """Return the policies and their bindings for one operator instance."""
    text = FENCE.read_text()
    # The account first, under a mark: the Lease has the same name in the shipped file.
    text = text.replace("system:serviceaccount:berth-system:berth-operator", "\0")
    for shipped, own in (
        ("berth-system", namespace),
        ("berth-operator", lease),
        ("berth-fence", f"berth-fence-{suffix}"),
        ("\0", f"system:serviceaccount:{namespace}:{service_account}"),
    ):
        text = text.replace(shipped, own)
    return list(yaml.safe_load_all(text))
