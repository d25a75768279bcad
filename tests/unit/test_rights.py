"""docs/rights.md has a row for each right that the manifests grant, and for no other."""

import json
from pathlib import Path

import pytest

from tests.harness import rights
from tests.harness.rights import ROOT, Right, Row

ROWS = list(rights.rows())


def test_each_right_has_a_row() -> None:
    assert sorted(map(str, rights.granted() - rights.listed())) == []


def test_each_row_is_granted() -> None:
    assert sorted(map(str, rights.listed() - rights.granted())) == []


def test_no_right_has_two_rows() -> None:
    listed = [str(right) for row in ROWS for right in row.rights]
    assert [each for each in sorted(set(listed)) if listed.count(each) > 1] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.rights[0].account}-{row.rights[0].resource}")
def test_a_row_names_its_reason_code_and_test(row: Row) -> None:
    assert row.why
    for reference, folder in ((row.site, ROOT), (row.test, ROOT / "tests")):
        file, _, name = reference.replace("::", ":").partition(":")
        assert f"def {name}(" in (folder / file).read_text(), reference


def test_no_account_has_every_verb_or_resource() -> None:
    assert [right for right in rights.granted() if "*" in (right.group, right.resource, right.verb)] == []


def event(agent: str, verb: str, resource: str, code: int = 200, **target: str) -> str:
    uri = "/x?watch=true&sendInitialEvents=true" if verb == "watch" else "/x"
    log = {"userAgent": agent, "verb": verb, "requestURI": uri, "objectRef": {"resource": resource, **target}}
    return json.dumps({**log, "responseStatus": {"code": code}}, separators=(",", ":"))


def test_requests_of_programs_are_compared_with_the_rows(tmp_path: Path) -> None:
    lines = [
        event("berth-agent", "patch", "nodes"),
        event("berth-agent", "watch", "pods"),
        event("berth-agent", "patch", "devices", 201, apiGroup="berth.dev"),
        event("berth-agent", "delete", "nodes", 403),
        event("kopf/1.45.2", "list", "secrets"),
        event("berth-test/admin", "delete", "namespaces"),
        event("kubectl/v1.36", "delete", "namespaces"),
        '{"userAgent":"berth-agent","verb":"get","requestURI":"/version"}',
        '{"userAgent":"berth-agent","ver',
    ]
    (tmp_path / "cluster.audit.log").write_text("\n".join(lines))
    extra, unused = rights.compared(tmp_path)
    assert extra == [
        "berth-agent: delete nodes of the core group (1 times)",
        "berth-operator: list secrets of the core group (1 times)",
    ]
    used = [
        Right(account="berth-agent", group="berth.dev", resource="devices", verb=verb) for verb in ("patch", "create")
    ]
    # A list that was streamed would be a list elsewhere.
    used += [Right(account="berth-agent", group="", resource="pods", verb=verb) for verb in ("list", "watch")]
    assert not {*map(str, used)} & {*unused}
    assert "berth-agent: list nodes of the core group" in unused
