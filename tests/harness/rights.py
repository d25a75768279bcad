"""The tables of docs/rights.md, the manifests' roles, and programs' requests to API servers, as sets of rights.

python -m tests.harness.rights FOLDER     compare the audit logs in a folder with the tables
"""

import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/rights.md"
MANIFESTS: Final = ROOT / "manifests"
ROLES: Final = {"Role", "ClusterRole"}
OF_USERS: Final = re.compile(r"berth-(view|edit|.*-view|.*-reader)")
"""Roles that are bound to no account of Berth."""

_ACCOUNT: Final = re.compile(r"^## .*`(berth-[a-z]+)`$")
_RESOURCES: Final = re.compile(
    r"(?P<resources>`[^`]+`(?:, `[^`]+`)*)(?: of `(?P<group>[^`]+)`)?(?: named (?P<names>`[^`]+`(?:, `[^`]+`)*))?"
    r"(?: in `(?P<namespace>[^`]+)`)?"
)
PROGRAMS: Final = {
    "berth-operator": "berth-operator",
    "berth-operator/election": "berth-operator",
    "berth-operator/reconcile": "berth-operator",
    "berth-operator/metrics": "berth-operator",
    "berth-operator/visibility": "berth-operator",
    "kopf": "berth-operator",
    "berth-operator/webhook": "berth-webhook",
    "berth-operator/api": "berth-api",
    "berth-operator/cleanup": "berth-cleanup",
    "berth-agent": "berth-agent",
}
"""User-Agent of a program -> its account. Test code has none of these."""


class Right(NamedTuple):
    """A verb for a resource, with its subresource."""

    account: str
    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()
    namespace: str = ""

    @property
    def request(self) -> "Right":
        """Return the right without what it is restricted to, as an audit log shows it."""
        return self._replace(names=(), namespace="")

    def __str__(self) -> str:
        named = f" named {', '.join(self.names)}" if self.names else ""
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.account}: {self.verb} {self.resource} of {self.group or 'the core group'}{named}{place}"


class Row(NamedTuple):
    """One row of a table."""

    rights: tuple[Right, ...]
    why: str
    site: str
    """file:function"""
    test: str
    """file::test, below tests/"""


def rows() -> Iterator[Row]:
    """Yield the rows of the page.

    Raises:
        ValueError: a row has another form.
    """
    account = ""
    for line in PAGE.read_text().splitlines():
        if heading := _ACCOUNT.match(line):
            account = heading[1]
        elif line.startswith("| `"):
            yield _row(account, line)


def _row(account: str, line: str) -> Row:
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    match = _RESOURCES.fullmatch(cells[0])
    if match is None or len(cells) != 5:
        raise ValueError(f"{PAGE.name}: not a row of a right: {line}")
    rights = product(_words(match["resources"]), _words(cells[1]))
    common = {"names": tuple(_words(match["names"] or "")), "namespace": match["namespace"] or ""}
    return Row(
        rights=tuple(
            Right(account=account, group=match["group"] or "", resource=resource, verb=verb, **common)  # type: ignore[arg-type]
            for resource, verb in rights
        ),
        why=cells[2],
        site=cells[3].strip("`"),
        test=cells[4].strip(" |`"),
    )


def _words(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def listed() -> set[Right]:
    """Return the rights of all rows."""
    return {right for row in rows() for right in row.rights}


def granted() -> set[Right]:
    """Return the rights that the roles of the manifests grant to accounts of Berth."""
    roles = {
        (document["kind"], document["metadata"]["name"], document["metadata"].get("namespace", "")): document
        for document in _documents()
        if document["kind"] in ROLES
    }
    bound = {
        right
        for document in _documents()
        if document["kind"].endswith("RoleBinding")
        for role in [roles.get(_role(document))]
        if role is not None
        for right in _rights(role, document["subjects"])
    }
    unbound = [name for _, name, _ in roles if not OF_USERS.fullmatch(name) and name not in _bound_names()]
    if unbound:
        raise ValueError(f"roles without a binding: {unbound}")
    return bound


def _bound_names() -> set[str]:
    return {document["roleRef"]["name"] for document in _documents() if document["kind"].endswith("RoleBinding")}


def _role(binding: dict[str, Any]) -> tuple[str, str, str]:
    kind, namespace = binding["roleRef"]["kind"], binding["metadata"].get("namespace", "")
    return kind, binding["roleRef"]["name"], "" if kind == "ClusterRole" else namespace


def _rights(role: dict[str, Any], subjects: Iterable[dict[str, Any]]) -> Iterator[Right]:
    for subject, rule in product(subjects, (each for each in role["rules"] if "resources" in each)):
        for group, resource, verb in product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            yield Right(
                account=subject["name"],
                group=group,
                resource=resource,
                verb=verb,
                names=tuple(rule.get("resourceNames", ())),
                namespace=role["metadata"].get("namespace", ""),
            )


@functools.cache
def _documents() -> list[dict[str, Any]]:
    texts = (file.read_text() for file in sorted(MANIFESTS.rglob("*.yaml")))
    return [each for text in texts for each in yaml.safe_load_all(text) if each and "kind" in each]


# --- what was asked ---------------------------------------------------------------------------------------------


def asked(folder: Path) -> Counter[Right]:
    """Return how often programs sent each kind of request, by the audit logs in a folder."""
    counts: Counter[Right] = Counter()
    for log in sorted(folder.glob("*.log")):
        with log.open("rb") as lines:
            for line in lines:
                if b'"userAgent":"berth-' in line or b'"userAgent":"kopf' in line:
                    counts.update(_asked(line))
    return counts


def _asked(line: bytes) -> Iterator[Right]:
    try:
        event = json.loads(line)
    except ValueError:
        return  # the last line of a server that was killed
    agent: str = event["userAgent"]
    account = PROGRAMS.get("kopf" if agent.startswith("kopf") else agent)
    target = event.get("objectRef", {})
    if account is None or not target.get("resource"):
        return  # discovery, which every account may read
    resource = "/".join(filter(None, (target["resource"], target.get("subresource", ""))))
    group, verb = target.get("apiGroup", ""), event["verb"]
    yield Right(account=account, group=group, resource=resource, verb=verb)
    if verb == "watch" and "sendInitialEvents=true" in event.get("requestURI", ""):
        # The program lists where the API server streams no lists.
        yield Right(account=account, group=group, resource=resource, verb="list")
    if verb == "patch" and event.get("responseStatus", {}).get("code") == 201:
        yield Right(account=account, group=group, resource=resource, verb="create")


DELEGATED: Final = {
    Right(account=account, group=group, resource=resource, verb="create")
    for account in ("berth-operator", "berth-agent", "berth-api")
    for group, resource in (("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews"))
} | {Right(account=name, group="", resource="configmaps", verb="get") for name in ("berth-api", "berth-operator")}
"""What roles of Kubernetes grant: system:auth-delegator, and extension-apiserver-authentication-reader."""
ON_REQUEST: Final = {
    Right(account="berth-cleanup", group="apiextensions.k8s.io", resource="customresourcedefinitions", verb="delete")
}
"""What the chart grants with `crds.keep=false` alone."""


class Comparison(NamedTuple):
    """What differs between audit logs and the tables."""

    extra: list[str]
    """Requests that no row allows."""
    unused: list[str]
    """Rights of these programs that no request needed."""

    def lines(self, *, with_unused: bool) -> list[str]:
        """Return a line for each difference."""
        extra = [f"a right is not in {PAGE.name}: {line}" for line in self.extra]
        return extra + [f"nothing used a right: {line}" for line in self.unused if with_unused]


@functools.cache
def compared(folder: Path) -> Comparison:
    """Compare the audit logs in a folder with the tables; once, at the end of a session."""
    counts, allowed = asked(folder), {right.request for right in listed()} | DELEGATED | ON_REQUEST
    unused = {right.request for right in listed() if right.account in PROGRAMS.values()} - counts.keys()
    extra = sorted(f"{right} ({count} times)" for right, count in counts.items() if right not in allowed)
    return Comparison(extra, sorted(map(str, unused)))


def main() -> int:
    """Print the comparison; return 1 if a program asked for more than it may, or not for all that it may."""
    lines = compared(Path(sys.argv[1])).lines(with_unused=True)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
