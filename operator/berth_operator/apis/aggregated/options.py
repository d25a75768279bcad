"""Read and validate the options of a list or a watch as the API server does. Pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from berth_api.values import selectors
from berth_api.values.selectors import EVERYTHING, IN, NOT_IN, LabelSelector, Requirement, SelectorError
from berth_operator.apis.aggregated.continuation import NEWEST, Continuation
from berth_operator.apis.aggregated.kinds import NAME_FIELD, Entry, Kind
from berth_operator.apis.aggregated.statuses import bad_request, invalid

MAX_SELECTOR: Final = 4096
"""Characters of a selector."""
MAX_TERMS: Final = 64
"""Requirements and values of a selector. Each object is compared with all of them, and the loop waits meanwhile."""
MAX_SECONDS: Final = 3600
"""Seconds of a watch at most; clients watch again from their last version."""
EXACT: Final = "Exact"
NOT_OLDER: Final = "NotOlderThan"
TRUE: Final = frozenset({"1", "t", "T", "true", "True", "TRUE"})
FALSE: Final = frozenset({"0", "f", "F", "false", "False", "FALSE"})

_FIELD: Final = re.compile(r"(?P<field>[\w.]+)(?P<operator>==?|!=)(?P<value>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind a request is about."""

    namespace: str = ""
    labels: LabelSelector = EVERYTHING
    fields: LabelSelector = EVERYTHING

    @property
    def is_everything(self) -> bool:
        """Return whether all objects are selected."""
        return not (self.namespace or self.has_selectors)

    @property
    def has_selectors(self) -> bool:
        """Return whether objects are selected by labels or fields."""
        return bool(self.labels.requirements or self.fields.requirements)

    def matches(self, entry: Entry) -> bool:
        """Return whether an object is selected."""
        if self.namespace and entry.key[0] != self.namespace:
            return False
        return self.labels.matches(entry.labels) and self.fields.matches(entry.fields)

    @property
    def name(self) -> str:
        """Return the only name that is selected; empty if there may be several. Rules may allow access to one name."""
        exact = (
            requirement.values[0]
            for requirement in self.fields.requirements
            if (requirement.key, requirement.operator) == (NAME_FIELD, IN)
        )
        return next(exact, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """What a client wants of a list or a watch."""

    selection: Selection
    watch: bool = False
    version: int = 0
    """The resourceVersion; 0 if any will do."""
    match: str = ""
    """The resourceVersionMatch; `EXACT` also for a list that has to have the version for another reason."""
    limit: int = 0
    """Objects of a list at most; 0 for all."""
    continuation: Continuation | None = None
    """Where a list continues; None at its beginning."""
    bookmarks: bool = False
    initial_events: bool | None = None
    """Whether a watch begins with the state and marks its end; None if the version decides about the state."""
    seconds: float = 0.0
    """Length of a watch; 0 if the server chooses."""

    @property
    def begins_with_state(self) -> bool:
        """Return whether a watch begins with the state as additions."""
        return self.version == 0 if self.initial_events is None else self.initial_events


def read(kind: Kind, namespace: str, query: Mapping[str, str]) -> ListOptions:
    """Parse the query of a list or a watch; unknown parameters are ignored, as the API server does.

    Raises:
        StatusError: the query cannot be read, or contradicts itself.
    """
    selection = Selection(
        namespace=namespace,
        labels=label_selector(query.get("labelSelector", "")),
        fields=field_selector(kind, query.get("fieldSelector", "")),
    )
    options = ListOptions(
        selection=selection,
        watch=_boolean(query, "watch") or False,
        version=_number(query, "resourceVersion"),
        match=query.get("resourceVersionMatch", ""),
        limit=_limit(query),
        bookmarks=_boolean(query, "allowWatchBookmarks") or False,
        initial_events=_boolean(query, "sendInitialEvents"),
        seconds=min(_number(query, "timeoutSeconds"), MAX_SECONDS),
    )
    if problem := _contradiction(options, query):
        raise invalid(problem)
    if options.watch:
        return options
    # The chunk of a list has to have a version, as the API server understands it.
    if not (token := query.get("continue", "")):
        is_exact = options.limit and options.version and not options.match
        return replace(options, match=EXACT) if is_exact else options
    continuation = Continuation.decode(token)
    if options.version:
        raise bad_request("specifying resource version is not allowed when using continue")
    if continuation.version == NEWEST:
        return replace(options, continuation=continuation)
    return replace(options, continuation=continuation, version=continuation.version, match=EXACT)


def _contradiction(options: ListOptions, query: Mapping[str, str]) -> str:
    """Return what the API server would refuse, too; empty if it would not."""
    if options.match not in ("", EXACT, NOT_OLDER):
        return f'resourceVersionMatch: "{options.match}"; allowed are {EXACT}, {NOT_OLDER}'
    if options.match and query.get("continue"):
        return "resourceVersionMatch: forbidden when continue is provided"
    if options.watch and options.initial_events is None:
        return "resourceVersionMatch: forbidden for watch unless sendInitialEvents is set" if options.match else ""
    if options.watch:
        return "" if options.match == NOT_OLDER else f"sendInitialEvents: resourceVersionMatch must be {NOT_OLDER}"
    if options.initial_events is not None:
        return "sendInitialEvents: forbidden for list"
    if options.match and not query.get("resourceVersion"):
        return "resourceVersionMatch: forbidden unless resourceVersion is set"
    if options.match == EXACT and options.version == 0:
        return f'resourceVersionMatch: {EXACT} is forbidden with resourceVersion "0"'
    return ""


def _boolean(query: Mapping[str, str], name: str) -> bool | None:
    text = query.get(name)
    if text is None:
        return None
    # Go reads a parameter without a value as true.
    if text in TRUE or text == "":
        return True
    if text in FALSE:
        return False
    raise bad_request(f'{name}: "{text[:80]}" is neither true nor false')


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(2**63))):
        raise bad_request(f'{name}: "{text[:80]}" is not a number')
    return int(text)


def _limit(query: Mapping[str, str]) -> int:
    """Return the limit of a list; as in the API server, there is none below 1, nor for a list of any version."""
    if re.fullmatch(r"-[0-9]{1,19}", query.get("limit", "")):
        return 0
    limit = _number(query, "limit")
    return 0 if query.get("resourceVersion") == "0" else limit


def label_selector(text: str) -> LabelSelector:
    """Parse a label selector of a query.

    Raises:
        StatusError: it cannot be read.
    """
    if len(text) > MAX_SELECTOR:
        raise bad_request(f"labelSelector: more than {MAX_SELECTOR} characters")
    try:
        return _bounded("labelSelector", selectors.parse(text).requirements)
    except SelectorError as error:
        raise bad_request(f"labelSelector: {error}") from error


def field_selector(kind: Kind, text: str) -> LabelSelector:
    """Parse a field selector: `field=value` or `field!=value`, joined by commas; only some fields can be selected by.

    Raises:
        StatusError: it cannot be read, or the field cannot be selected by.
    """
    if len(text) > MAX_SELECTOR:
        raise bad_request(f"fieldSelector: more than {MAX_SELECTOR} characters")
    return _bounded("fieldSelector", [_field_requirement(kind, part) for part in text.split(",") if part])


def _bounded(parameter: str, requirements: Sequence[Requirement]) -> LabelSelector:
    """Return the selector of some requirements, unless there are too many."""
    if sum(max(1, len(requirement.values)) for requirement in requirements) > MAX_TERMS:
        raise bad_request(f"{parameter}: more than {MAX_TERMS} requirements and values")
    return LabelSelector(requirements=tuple(requirements))


def _field_requirement(kind: Kind, text: str) -> Requirement:
    match = _FIELD.fullmatch(text)
    if match is None:
        raise bad_request(f'fieldSelector: cannot read "{text[:80]}"')
    field = match["field"]
    if field not in kind.fields:
        allowed = ", ".join(sorted(kind.fields))
        raise bad_request(f'fieldSelector: "{field}" is not a known field selector; {kind.plural} have {allowed}')
    return Requirement(key=field, operator=NOT_IN if match["operator"] == "!=" else IN, values=(match["value"],))
