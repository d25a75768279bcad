"""Convert a pod's request in another system's words: cards for its containers, in Berth's resources.

In other systems, each container has its own cards and requests an amount of each card. Berth's resources are totals,
spread evenly over the cards of the pod. So all containers must request the same amount of each card, or one card each,
which they then share.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from berth_api import allocation, names, request
from berth_api.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED
from berth_api.request import CARD, RequestError
from berth_api.resources import quantity
from berth_api.words.systems import TABLE
from berth_api.words.table import AMOUNTS, Role, Row, System, WordPlace

Object = Mapping[str, Any]
Units = Mapping[str, int]
"""Word -> bytes of its unit, where it is not the table's."""
Where = tuple[str, int]
"""(name of a list of containers, index in the list)."""

DEFAULT_UNITS: Final[Units] = {}
_DIGITS: Final = 10
"""Maximum number of digits of numbers that are read without the quantity parser."""
KINDS: Final = ("initContainers", "containers")
_ANY_WITH: Final = (names.RDMA, names.FPGA)
"""Devices that may be requested in addition."""
_SUFFIXES: Final = ("k", "M", "G")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCard:
    """The amounts that a container takes of each of its cards. The memory is either in bytes or in hundredths."""

    memory: int = 0
    percent: int = 0
    cores: int = 0

    @property
    def is_whole(self) -> bool:
        """Return whether it is the whole card."""
        return self.percent == CARD and self.cores in (0, CARD)

    def __str__(self) -> str:
        memory = f"{GPU_MEMORY} {quantity.format_bytes(self.memory)}" if self.memory else f"{self.percent} % of memory"
        return f"{memory}, {self.cores} % of cores" if self.cores else memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The cards of one container."""

    where: Where
    container: str
    cards: int
    each: OfCard


@dataclass(frozen=True, slots=True)
class _Written:
    """A word as a pod has it."""

    row: Row
    value: str

    @property
    def title(self) -> str:
        return self.row.word.title

    def wrong(self, allowed: str) -> RequestError:
        return RequestError(f"{self.title}: {self.value}; allowed are {allowed}")


_Words = Mapping[Role, _Written]


def amounts(container: Object) -> dict[str, str]:
    """Return what a container requests: its limits, where it has no requests, as the API server completes them."""
    resources = container.get("resources") or {}
    return {
        name: str(value)
        for name, value in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items()
    }


def is_used(spec: Object) -> bool:
    """Return whether a container requests by a word of another system."""
    return any(
        not TABLE.telling.isdisjoint(held)
        for kind in KINDS
        for container in spec.get(kind) or ()
        for held in (container.get("resources") or {}).values()
        if isinstance(held, Mapping)
    )


def asking(spec: Object, annotations: Mapping[str, str], labels: Mapping[str, str]) -> frozenset[Where]:
    """Return the containers that request cards by other systems' words, whether or not these are valid."""
    of_containers = frozenset(where for where, _, _ in _of_containers(spec))
    if of_containers:
        return of_containers
    words = {word.row.word.role: word for word in (*_of(TABLE.annotations, annotations), *_of(TABLE.labels, labels))}
    try:
        return frozenset((_chosen(spec, words)[0],)) if words else frozenset()
    except RequestError:  # no container has the name
        return frozenset()


def asks(spec: Object, annotations: Mapping[str, str], labels: Mapping[str, str], units: Units) -> tuple[Ask, ...]:
    """Return the cards of each container that requests by other systems' words; none if no container does.

    Raises:
        RequestError: the words contradict each other, or a value is not allowed.
    """
    of_pod = [*_of(TABLE.annotations, annotations), *_of(TABLE.labels, labels)]
    of_containers = list(_of_containers(spec))
    all_words = [*of_pod, *(word for _, _, words in of_containers for word in words)]
    if not all_words:
        return ()
    systems = list({id(word.row.system): word for word in all_words}.values())
    if len(systems) > 1:
        first, second, *_ = sorted(word.title for word in systems)
        raise RequestError(f"{first} and {second}; request devices by one of the two")
    system = systems[0].row.system
    _check_alone(spec, system, all_words[0])
    if not of_containers:
        words_of_pod = _by_role(of_pod)
        where, container = _chosen(spec, words_of_pod)
        return (_ask(system, words_of_pod, where, container, units),)
    cards = [_ask(system, _by_role([*words, *of_pod]), where, name, units) for where, name, words in of_containers]
    return tuple(_in_turn(spec, cards))


def _in_turn(spec: Object, cards: Sequence[Ask]) -> Iterator[Ask]:
    """Yield the cards of each container. An init container gets whole cards if the containers after it do.

    The pod holds whole cards anyway, and a part of a card cannot be requested together with whole cards.
    """
    later = [ask for ask in cards if ask.where[0] == "containers"]
    is_whole = later and all(ask.each == later[0].each for ask in later) and later[0].each.is_whole
    for ask in cards:
        kind, number = ask.where
        ends = kind == "initContainers" and spec[kind][number].get("restartPolicy") != "Always"
        is_held = ends and is_whole and ask.cards <= sum(other.cards for other in later)
        yield replace(ask, each=later[0].each) if is_held else ask


def _of(rows: Mapping[str, Row], written: Mapping[str, str]) -> Iterator[_Written]:
    """Yield the words about amounts among annotations or labels."""
    # In the order of the table, so that messages do not change.
    for name, row in rows.items():
        if name in written and row.word.role in AMOUNTS:
            yield _Written(row, written[name])


def _of_containers(spec: Object) -> Iterator[tuple[Where, str, list[_Written]]]:
    """Yield the containers that request by words, with these."""
    held = [
        ((kind, number), container.get("name", ""), amounts(container))
        for kind in KINDS
        for number, container in enumerate(spec.get(kind) or ())
    ]
    systems = {id(TABLE.resources[name].system) for _, _, requests in held for name in TABLE.telling & requests.keys()}
    for where, container, requests in held:
        words = [
            _Written(row, _number_as_written(requests[name]))
            for name in requests
            if (row := _row(name, systems)) and row.word.role in AMOUNTS
        ]
        # 0 cards, and 0 of all else, requests no card.
        is_of_no_card = any(word.row.word.role == Role.CARDS for word in words) and all(
            word.value == "0" for word in words
        )
        if words and not is_of_no_card:
            yield where, container, words


def _number_as_written(value: str) -> str:
    """Return 3000 for `3k`, as the API server stores it."""
    return str(quantity.parse(value)) if value.endswith(_SUFFIXES) and value[:-1].isdecimal() else value


def _row(name: str, systems: Collection[int]) -> Row | None:
    """Return the row of a resource, if the pod uses its system: some names are Berth's, too."""
    row = TABLE.resources.get(name)
    rows = (row,) if row else TABLE.renamed.get(name, ())
    return next((row for row in rows if id(row.system) in systems), None)


def _by_role(words: Sequence[_Written]) -> _Words:
    by_role: dict[Role, _Written] = {}
    for word in words:
        other = by_role.setdefault(word.row.word.role, word)
        if other is not word and other.value != word.value:
            raise RequestError(f"{other.title}: {other.value} and {word.title}: {word.value}; allowed is one of them")
    return by_role


def _check_alone(spec: Object, system: System, word: _Written) -> None:
    """Check that the pod requests no cards by Berth's own resources as well."""
    for kind in KINDS:
        for container in spec.get(kind) or ():
            for name, value in amounts(container).items():
                is_card = request.is_device(name) and allocation.short(name) not in _ANY_WITH
                if is_card and value != "0" and _row(name, {id(system)}) is None:
                    raise RequestError(f"{word.title} and resource {name}; request devices by one of the two")


def _chosen(spec: Object, words: _Words) -> tuple[Where, str]:
    """Return the container to which the annotations' request applies."""
    named = words.get(Role.CONTAINER)
    containers = [
        ((kind, number), container) for kind in KINDS for number, container in enumerate(spec.get(kind) or ())
    ]
    if named is None:
        where = next(where for where, _ in containers if where[0] == "containers")
        return where, spec["containers"][0].get("name", "")
    for where, container in containers:
        if container.get("name") == named.value:
            return where, named.value
    all_names = ", ".join(container.get("name", "") for _, container in containers)
    raise named.wrong(f"the names of the pod's containers: {all_names}")


# --- the amounts of one container -----------------------------------------------------------------------------


def _ask(system: System, words: _Words, where: Where, container: str, units: Units) -> Ask:
    if Role.HUNDREDTHS in words:
        # A part of one card, or whole cards. The memory has no effect on whole cards.
        core = words[Role.HUNDREDTHS]
        amount = _number(core)
        if amount >= CARD:
            if amount % CARD:
                raise core.wrong(f"1 to {CARD} (part of a card) or multiples of {CARD}")
            return Ask(where=where, container=container, cards=amount // CARD, each=OfCard(percent=CARD, cores=CARD))
        if Role.MEMORY not in words:
            raise RequestError(_lacks(core.row.system, words, Role.MEMORY))
        memory = _memory(words[Role.MEMORY], 1, units)
        return Ask(where=where, container=container, cards=1, each=OfCard(memory=memory, cores=amount))
    cards = _number(words[Role.CARDS]) if Role.CARDS in words else system.cards
    if not cards:
        raise RequestError(_lacks(system, words, Role.CARDS))
    divisor = cards if system.total else 1
    if Role.MEMORY in words and Role.FRACTION in words:
        first, second = words[Role.FRACTION].title, words[Role.MEMORY].title
        raise RequestError(f"{first} and {second}; request memory by one of the two")
    memory = _memory(words[Role.MEMORY], divisor, units) if Role.MEMORY in words else 0
    percent = 0 if memory else _percent(words)
    if not memory and not percent and system.needs_memory:
        raise RequestError(_lacks(system, words, Role.MEMORY))
    cores = _hundredths(words[Role.CORES], divisor) if Role.CORES in words else 0
    each = OfCard(memory=memory, percent=0 if memory else percent or CARD, cores=cores)
    return Ask(where=where, container=container, cards=cards, each=each)


def _lacks(system: System, words: _Words, role: Role) -> str:
    """Return which words are missing in addition to the existing words."""
    roles = (Role.MEMORY, Role.FRACTION) if role == Role.MEMORY else (role,)
    missing = [word.title for word in system.words if word.role in roles]
    written = next(iter(words.values()))
    return f"{written.title}: {written.value}; it needs {' or '.join(dict.fromkeys(missing))}, too"


def _number(word: _Written) -> int:
    text = word.value.strip()
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else _quantity(word)
    if number < 1:
        raise word.wrong("whole numbers from 1")
    return number


def _quantity(word: _Written) -> int:
    """Return a whole quantity such as `3k`. Annotations and labels have no quantities."""
    if word.row.word.place != WordPlace.RESOURCE:
        raise word.wrong("whole numbers from 1")
    try:
        milli = quantity.parse_milli(word.value)
    except quantity.QuantityError as error:
        raise RequestError(f"{word.title}: {error}") from error
    if milli % 1000 and milli < quantity.MAX:
        raise word.wrong("whole numbers from 1")
    return quantity.parse(word.value)


def _memory(word: _Written, divisor: int, units: Units) -> int:
    """Return the bytes of each card."""
    unit = units.get(word.row.word.name, word.row.word.unit)
    if word.value.endswith("i") and word.row.word.place == WordPlace.RESOURCE:
        size = _quantity(word)
        meant = "" if size % unit else f"; did you mean {size // unit}?"
        raise word.wrong(f"whole numbers from 1, each of {quantity.format_bytes(unit)}{meant}")
    number = 0 if word.value == "0" else _number(word)
    memory, rest = divmod(number * unit, divisor)
    if rest or memory > quantity.MAX:
        raise word.wrong(f"multiples of {divisor}, up to {quantity.MAX // unit}")
    return memory


def _percent(words: _Words) -> int:
    """Return the hundredths of each card's memory; 0 if nothing names them."""
    if Role.FRACTION in words:
        word = words[Role.FRACTION]
        try:
            hundredths = Decimal(word.value.strip()) * CARD
        except ArithmeticError:
            hundredths = Decimal(0)
        if not (hundredths.is_finite() and 1 <= hundredths <= CARD and hundredths == int(hundredths)):
            raise word.wrong("hundredths of a card, such as 0.25, up to 1")
        return int(hundredths)
    return _hundredths(words[Role.PERCENT], 1) if Role.PERCENT in words else 0


def _hundredths(word: _Written, divisor: int) -> int:
    """Return the hundredths of each card; 0 is the systems' default for a missing amount."""
    number = 0 if word.value == "0" else _number(word)
    if number % divisor or number // divisor > CARD:
        raise word.wrong(f"1 to {CARD}" if divisor == 1 else f"multiples of {divisor}, up to {CARD * divisor}")
    return number // divisor


# --- Berth's resources ----------------------------------------------------------------------------------------


def resources(cards: Sequence[Ask]) -> dict[Where, dict[str, str]]:
    """Return the requests of each container in Berth's resources.

    Raises:
        RequestError: the containers request differently of several cards.
    """
    alike = len({ask.each for ask in cards}) == 1
    if not alike:
        # Containers which request differently must fit one card together.
        first, second = cards[0], next(ask for ask in cards if ask.each != cards[0].each)
        fits = (
            all(ask.cards == 1 and bool(ask.each.memory) == bool(first.each.memory) for ask in cards)
            and sum(ask.each.percent for ask in cards) <= CARD
            and sum(ask.each.cores for ask in cards) <= CARD
        )
        if not fits:
            raise RequestError(
                f"containers {first.container} ({first.cards} x {first.each}) and {second.container} "
                f"({second.cards} x {second.each}) request differently of cards; allowed is the same of each card, "
                "or parts of one card: put them into two pods"
            )
    spread = alike and (len(cards) > 1 or cards[0].cards > 1)
    return {ask.where: dict(_resources(ask, spread=spread)) for ask in cards}


def _resources(ask: Ask, *, spread: bool) -> Iterator[tuple[str, str]]:
    each, count = ask.each, ask.cards
    if each.cores:
        yield _name(GPU_CORE), str(each.cores * count)
    if each.memory:
        yield _name(GPU_MEMORY), allocation.text(GPU_MEMORY, each.memory * count)
    else:
        yield _name(GPU_MEMORY_RATIO), str(each.percent * count)
    if spread and not each.is_whole:
        yield _name(GPU_SHARED), str(count)


def _name(short: str) -> str:
    return allocation.long(short, names.PREFIX)
