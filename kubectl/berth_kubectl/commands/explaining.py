"""The text of an explanation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from berth_api.objects.visibility import (
    BindPoints,
    ClaimDevices,
    ExplainedGang,
    LackingNode,
    PodExplanation,
    ReasonGroup,
    RequestedDevices,
    TriedChanges,
)
from berth_kubectl.printing import amounts, tables
from berth_kubectl.printing.report import Column
from berth_kubectl.printing.tables import clean

LABEL: Final = 13
SHOWN_NODES: Final = 5
"""Names of nodes that a row lists without `-o wide`."""
SHOWN_CAUSES: Final = 3
"""Reasons why devices are left out that a row lists without `-o wide`."""


def text(
    explanation: PodExplanation, events: Sequence[Mapping[str, Any]] = (), *, wide: bool = False, subject: str = "Pod"
) -> list[str]:
    """Return the lines for people; `subject` is the kind that is explained."""
    metadata = explanation["metadata"]
    head = [
        (subject, f"{metadata.get('namespace', '')}/{metadata['name']}"),
        ("State", explanation["state"] + _place(explanation)),
        ("Message", explanation["message"]),
        *((each["title"], each["message"]) for each in explanation.get("outlook", ())),
        *_others(explanation),
    ]
    lines = [f"{f'{clean(label)}:':<{LABEL}}{clean(value)}" for label, value in head if value]
    lines += _changes(explanation.get("changes"))
    lines += _claims(explanation.get("claims"), wide=wide)
    lines += _section("Nodes that lack amounts alone, the nearest first:", _nearest(explanation.get("nearest", [])))
    lines += _section("All nodes, by what they lack:", _groups(explanation.get("groups", []), wide=wide))
    lines += _section("Scores of the chosen node and of the runners-up:", _scores(explanation.get("bind")))
    return lines + _section("Events:", _events(events))


def _place(explanation: PodExplanation) -> str:
    queue = explanation.get("queue")
    if not queue or not queue["position"]:
        return ""
    backoff = f", backs off for {queue['backoffSeconds']:.0f} s" if queue["backoffSeconds"] else ""
    return f" (position {queue['position']} of {queue['of']} in the queue{backoff})"


def _others(explanation: PodExplanation) -> Iterator[tuple[str, str]]:
    if gang := explanation.get("gang"):
        yield "Gang", _gang(gang)
    if reservation := explanation.get("reservation"):
        yield "Reserved", f"{reservation['node']}: {reservation['message']}"
    if (queue := explanation.get("queue")) and queue["wakesOn"]:
        yield "Wakes on", ", ".join(queue["wakesOn"])


def _gang(gang: ExplainedGang) -> str:
    counts = f": {gang['members']} members, {gang['required']} required" if "required" in gang else ""
    first = f"; the first without a place is {name}" if (name := gang["firstWithoutPlace"]) else ""
    return f"{gang['name']}{counts}{first}."


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, "", *lines] if lines else []


def _changes(changes: TriedChanges | None) -> list[str]:
    if changes is None:
        return []
    return _section(f"{clean(changes['title'])}:", [clean(each["message"]) for each in changes["answers"]])


def _claims(claims: ClaimDevices | None, *, wide: bool) -> list[str]:
    if claims is None:
        return []
    stopped = "" if claims["complete"] else "first "
    title = f"Devices for its ResourceClaims on the {stopped}{claims['nodes']} node(s) that they keep it from:"
    together = ["", clean(claims["together"])] if claims["together"] else []
    return [*_section(title, _requests(claims["requests"], wide=wide)), *together]


def _requests(requests: Sequence[RequestedDevices], *, wide: bool) -> list[str]:
    titles = ("CLAIM", "REQUEST", "NEEDED", "FOUND", "ON", "OTHERS")
    rows = [
        (
            each["claim"],
            each["request"],
            str(each["needed"] or "all"),
            str(each["most"]),
            ",".join(each["nodes"] if wide else each["nodes"][:1]) or "-",
            "; ".join(_left_out(each, wide=wide)) or "-",
        )
        for each in requests
    ]
    return tables.lines(tuple(Column(title=title) for title in titles), rows)


def _left_out(request: RequestedDevices, *, wide: bool) -> Iterator[str]:
    shown = request["leftOut"] if wide else request["leftOut"][:SHOWN_CAUSES]
    yield from (f"{each['devices']} {each['why']}" for each in shown)
    if (left := len(request["leftOut"]) - len(shown)) > 0:
        yield f"{left} more reason(s)"


def _nearest(nodes: Sequence[LackingNode]) -> list[str]:
    rows = [(node["node"], "; ".join(_lacks(node)) or "-") for node in nodes]
    return tables.lines((Column(title="NODE"), Column(title="LACKS")), rows) if rows else []


def _lacks(node: LackingNode) -> Iterator[str]:
    if node["resources"]:
        yield amounts.requests(node["resources"])
    for card in node["cards"]:
        # Without amounts no other pod may use the card.
        yield f"{card['type']} {card['minor']}: {amounts.requests(card['amounts']) or 'must become free'}"


def _groups(groups: Sequence[ReasonGroup], *, wide: bool) -> list[str]:
    rows = [(str(group["count"]), _nodes(group, wide=wide), "; ".join(group["reasons"])) for group in groups]
    columns = (Column(title="COUNT"), Column(title="NODES"), Column(title="REASONS"))
    return tables.lines(columns, rows) if rows else []


def _nodes(group: ReasonGroup, *, wide: bool) -> str:
    shown = group["nodes"] if wide else group["nodes"][:SHOWN_NODES]
    more = group["count"] - len(shown)
    return ",".join(shown) + (f",+{more}" if more > 0 else "")


def _scores(bind: BindPoints | None) -> list[str]:
    if bind is None:
        return []
    if not bind["kept"]:
        return [f"not kept for the bind to {bind['node']}: {bind['message']}"]
    terms = list(dict.fromkeys(term for score in bind["scores"] for term in score["terms"]))
    columns = (Column(title="NODE"), Column(title="TOTAL"), *(Column(title=term.upper()) for term in terms))
    rows = [
        (score["node"], str(score["total"]), *(str(score["terms"].get(term, 0)) for term in terms))
        for score in bind["scores"]
    ]
    return tables.lines(columns, rows)


def _events(events: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = tuple(Column(title=title) for title in ("LAST", "TYPE", "REASON", "COUNT", "MESSAGE"))
    rows = [(each["time"], each["type"], each["reason"], str(each["count"]), each["message"]) for each in events]
    return tables.lines(columns, rows) if rows else []
