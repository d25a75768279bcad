"""The text of an explanation."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from berth_api.objects.visibility import (
    ClaimDevices,
    PodExplanation,
)
from berth_kubectl.printing import amounts, tables
from berth_kubectl.printing.report import Column
from berth_kubectl.printing.tables import clean

LABEL: Final = 13
SHOWN_NODES: Final = 5
"""Names of nodes that a row lists without `-o wide`."""
SHOWN_CAUSES: Final = 3
"""Reasons why devices are left out that a row lists without `-o wide`."""
SHOWN_REASON: Final = 60
"""Columns of a reason in a row without `-o wide`, if the message has the whole reason."""
_POD: Final = re.compile(r'\bpods "[^"]*"')


def text(
    explanation: PodExplanation,
    events: Sequence[Mapping[str, Any]] = (),
    *,
    wide: bool = False,
    subject: str = "Pod",
    width: int = 0,
) -> list[str]:
    """Return the lines for people.

    `subject` is the kind that is explained, and `width` how many columns a terminal has, 0 for one line per field.
    """
    metadata, state, others = explanation["metadata"], explanation["state"], []
    queue = explanation.get("queue")
    if queue and queue["position"]:
        backoff = f", backs off for {queue['backoffSeconds']:.0f} s" if queue["backoffSeconds"] else ""
        state += f" (position {queue['position']} of {queue['of']} in the queue{backoff})"
    if gang := explanation.get("gang"):
        counts = f": {gang['members']} members, {gang['required']} required" if "required" in gang else ""
        first = f"; the first without a place is {name}" if (name := gang["firstWithoutPlace"]) else ""
        others.append(("Gang", f"{gang['name']}{counts}{first}."))
    if reservation := explanation.get("reservation"):
        others.append(("Reserved", f"{reservation['node']}: {reservation['message']}"))
    if refusal := explanation.get("refusal"):
        others.append(("Refused", refusal))
    if queue and queue["wakesOn"]:
        others.append(("Wakes on", ", ".join(queue["wakesOn"])))
    head = [
        (subject, f"{metadata.get('namespace', '')}/{metadata['name']}"),
        ("State", state),
        ("Message", explanation["message"]),
        *((answer["title"], answer["message"]) for answer in explanation.get("outlook", ())),
        *others,
    ]
    said = explanation["message"]
    lines = [
        line
        for label, value in head
        if value
        for line in _wrapped(f"{f'{clean(label)}:':<{LABEL}}{clean(value)}", LABEL, width)
    ]
    if changes := explanation.get("changes"):
        sentences = [clean(answer["message"]) for answer in changes["answers"]]
        lines += _section(
            f"{clean(changes['title'])}:", [part for line in sentences for part in _wrapped(line, 2, width)]
        )
    if claims := explanation.get("claims"):
        lines += _claims(claims, wide=wide, width=width)
    lacking = []
    for node in explanation.get("nearest", []):
        lacks = [amounts.requests(node["resources"])] if node["resources"] else []
        # Without amounts no other pod may use the card.
        lacks += [
            f"{card['type']} {card['minor']}: {amounts.requests(card['amounts']) or 'must become free'}"
            for card in node["cards"]
        ]
        lacking.append((node["node"], "; ".join(lacks) or "-"))
    lines += _section("Nodes that lack amounts alone, the nearest first:", _table(("NODE", "LACKS"), lacking, width))
    groups = []
    for group in explanation.get("groups", []):
        shown = group["nodes"] if wide else group["nodes"][:SHOWN_NODES]
        more = f",+{group['count'] - len(shown)}" if group["count"] > len(shown) else ""
        reasons = group["reasons"] if wide else [_shortened(reason, said) for reason in group["reasons"]]
        groups.append((str(group["count"]), ",".join(shown) + more, "; ".join(reasons)))
    lines += _section("All nodes, by what they lack:", _table(("COUNT", "NODES", "REASONS"), groups, width))
    if bind := explanation.get("bind"):
        if not bind["kept"]:
            scores = [f"not kept for the bind to {bind['node']}: {bind['message']}"]
        else:
            terms = list(dict.fromkeys(term for score in bind["scores"] for term in score["terms"]))
            columns = (Column(title="NODE"), Column(title="TOTAL"), *(Column(title=term.upper()) for term in terms))
            rows = [
                (score["node"], str(score["total"]), *(str(score["terms"].get(term, 0)) for term in terms))
                for score in bind["scores"]
            ]
            scores = tables.lines(columns, rows)
        lines += _section("Scores of the chosen node and of the runners-up:", scores)
    seen = [
        (event["time"], event["type"], event["reason"], str(event["count"]), _once(event["message"], said))
        for event in events
    ]
    return lines + _section("Events:", _table(("LAST", "TYPE", "REASON", "COUNT", "MESSAGE"), seen, width))


def _wrapped(line: str, indent: int, width: int) -> list[str]:
    """Return a line as lines of at most this width, of which all but the first are indented; as it is if it is 0."""
    if not width:
        return [line]
    return textwrap.wrap(
        line,
        max(width, indent + LABEL),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _once(message: str, said: str) -> str:
    """Return the message of an Event, unless the explanation's message has it already.

    A controller's Events and condition name different pods that it could not create.
    """
    known, event = _POD.sub("pods", said), _POD.sub("pods", message)
    is_said = any(part and part in known for part in (event, event.partition(": ")[2]))
    return "as the message above" if is_said else message


def _shortened(reason: str, said: str) -> str:
    """Return the beginning of a long reason that the explanation's message has."""
    return textwrap.shorten(reason, SHOWN_REASON, placeholder=" …") if reason in said else reason


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", title, "", *lines] if lines else []


def _table(titles: Sequence[str], rows: Sequence[tuple[str, ...]], width: int) -> list[str]:
    """Return a table whose last column is wrapped."""
    if not rows:
        return []
    lines = tables.lines(tuple(Column(title=title) for title in titles), rows)
    indent = lines[0].rindex(titles[-1])
    return [part for line in lines for part in _wrapped(line, indent, width)]


def _claims(claims: ClaimDevices, *, wide: bool, width: int) -> list[str]:
    stopped = "" if claims["complete"] else "first "
    title = f"Devices for its ResourceClaims on the {stopped}{claims['nodes']} node(s) that they keep it from:"
    rows = []
    for request in claims["requests"]:
        causes = request["leftOut"] if wide else request["leftOut"][:SHOWN_CAUSES]
        others = [f"{cause['devices']} {cause['why']}" for cause in causes]
        if (left := len(request["leftOut"]) - len(causes)) > 0:
            others.append(f"{left} more reason(s)")
        nodes = ",".join(request["nodes"] if wide else request["nodes"][:1]) or "-"
        needed, most = str(request["needed"] or "all"), str(request["most"])
        rows.append((request["claim"], request["request"], needed, most, nodes, "; ".join(others) or "-"))
    titles = ("CLAIM", "REQUEST", "NEEDED", "FOUND", "ON", "OTHERS")
    together = ["", *_wrapped(clean(claims["together"]), 0, width)] if claims["together"] else []
    return [*_section(title, _table(titles, rows, width)), *together]
