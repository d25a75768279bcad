"""The known results of selectors: a byte for each expression and device.

Evaluating selectors takes longer than everything else. Their results are the same for all nodes and pods, so results
are cached, including failures. Expressions that compare attributes with constants are looked up in an index. If there
is a worker process (`Offload`), an expression that takes long is not evaluated here. The search then continues when the
worker has answered.
"""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from berth_operator.core.claims.bounds.errors import ClaimError, NodeError, NoWorkError
from berth_operator.core.claims.bounds.kept import Kept
from berth_operator.core.claims.bounds.work import Work
from berth_operator.core.claims.matching.attribute_index import FAILED, NO, UNKNOWN, YES, AttributeIndex
from berth_operator.core.claims.matching.device_numbers import DeviceNumbers
from berth_operator.core.claims.matching.offload import BATCH, Offload
from berth_operator.core.claims.objects import near_names
from berth_operator.core.claims.objects.slices import Device
from berth_operator.core.claims.selectors import LIMITED_STEPS, SelectorError, StepsError, compile_selector
from berth_operator.core.claims.selectors.equality import Equality
from berth_operator.core.claims.selectors.work import MAX_WORK

Selectors = tuple[tuple[str | None, ...], tuple[str | None, ...]]
"""CEL expressions of a class and of a request."""
MAX_BYTES: Final = 32 * 2**20
"""Memory for the known matches."""
MIN_EXPRESSIONS: Final = 1_024
"""Expressions that are kept in any case."""
MAX_RECENT: Final = 32
"""Selections that count as requested recently."""
NO_NUMBER: Final = 2**62
MAX_REASONS: Final = 250
"""Reasons of failures that are kept for an expression."""
OTHER_REASON: Final = "CEL runtime error: it fails in too many ways to keep the reasons"
EVALUATION: Final = 4
"""Work for an evaluation, in addition to its steps: about as many microseconds."""
COMPILED: Final = 4
"""Work for compiling a character."""


class Matches:
    """What an expression is for each device."""

    def __init__(self, expression: str, *, is_kept: bool = True) -> None:
        self.expression = expression
        self.states = bytearray()
        """States by the number of a device."""
        self.seen = 0
        """The changes of devices that it knows of."""
        self.reasons: list[str] = []
        """Why it failed, for states from FAILED on."""
        self.invalid = ""
        """Why it does not compile, if the worker process has found that."""
        self.equalities: tuple[Equality, ...] | None = None
        """The equalities, if the expression has nothing else, so that it is looked up in the index."""
        self.is_compiled = False
        self.is_slow = False
        """Whether the worker process evaluates it."""
        self.is_unfinished = False
        """Whether the last evaluation was put off."""
        self.is_kept = is_kept
        """Whether there is memory for new results."""

    def fail(self, reason: str) -> int:
        """Return the state of devices for which the expression fails with a reason."""
        if reason not in self.reasons:
            if len(self.reasons) >= MAX_REASONS:
                reason = OTHER_REASON
            if reason not in self.reasons:
                self.reasons.append(reason)
        return FAILED + self.reasons.index(reason)


class SelectorPair:
    """The expressions of a class and of a request."""

    def __init__(self, selected: "Selected", selectors: Selectors) -> None:
        self._selected = selected
        self._numbers = selected.devices.numbers
        self._of_class = len(selectors[0])
        self.expressions = tuple(expression or "" for part in selectors for expression in part)
        self._known: list[Matches] = []

    def refresh(self) -> None:
        """Update the known matches, and count them as used."""
        self._known = [self._selected.use(expression) for expression in self.expressions]

    def update(self) -> None:
        """Forget devices that are gone."""
        for known in self._known:
            self._selected.update(known)

    def get(self, device: Device) -> bool | None:
        """Return whether all expressions are true for a device; None if that is unknown, or if one fails."""
        number = self._numbers.get(device, NO_NUMBER)
        for known in self._known:
            state = known.states[number] if number < len(known.states) else UNKNOWN
            if state != YES:
                return False if state == NO else None
        return True

    def matches(self, device: Device, of_class: str, of_request: str) -> bool:
        """Return whether all expressions are true for a device; `of_class` and `of_request` name them in messages.

        Raises:
            ClaimError: one does not compile.
            NodeError: one cannot be evaluated for the device.
            NoWorkError: one would have to be evaluated, and there is no work left, or the worker process does it.
        """
        known = self.get(device)
        if known is not None:
            return known
        for place, expression in enumerate(self._known):
            try:
                state = self._selected.state(expression, device, self._known[:place])
            except SelectorError as error:
                raise ClaimError(f"{self._owner(place, of_class, of_request)}: CEL compile error: {error}") from error
            if state == NO:
                return False
            if state >= FAILED:
                owner = self._owner(place, of_class, of_request)
                reason = expression.reasons[state - FAILED]
                raise NodeError(f"{owner} on device {device.id}: {reason}{near_names.of_error(reason, device)}")
        return True

    def _owner(self, place: int, of_class: str, of_request: str) -> str:
        owner, first = (of_class, 0) if place < self._of_class else (of_request, self._of_class)
        return f"{owner}: selector #{place - first}"


class Selected:
    """What all selectors match."""

    def __init__(self, *, memory: int = MAX_BYTES, least: int = MIN_EXPRESSIONS) -> None:
        """Create an empty one. `memory` is the bound in bytes; at least `least` expressions are kept in any case."""
        self._memory, self._least = memory, least
        self.devices = DeviceNumbers()
        self.work = Work()
        """Bounds the evaluations."""
        self.offload: Offload | None = None
        """Evaluations for the worker process; None where there is none, as in commands."""
        self._index = AttributeIndex(self.devices)
        self._known: Kept[str, Matches] = Kept(lambda known: known.is_unfinished)
        self._recent: dict[Selectors, SelectorPair] = {}

    def of(self, selectors: Selectors) -> SelectorPair:
        """Return the known matches of selectors, to look up and to extend."""
        selection = self._recent.pop(selectors, None) or SelectorPair(self, selectors)
        if len(self._recent) >= MAX_RECENT:
            del self._recent[next(iter(self._recent))]
        # The least recently used ones come first.
        self._recent[selectors] = selection
        selection.refresh()
        return selection

    def matching(self, device: Device) -> int:
        """Return how many recently requested selections match a device, as far as this is known."""
        return sum(selection.get(device) is True for selection in self._recent.values())

    def matches(self, device: Device, expression: str | None, owner: str) -> bool:
        """Return whether one expression is true for a device; raise the errors of `SelectorPair.matches`."""
        return self.of(((), (expression,))).matches(device, owner, owner)

    def put(self, devices: Iterable[Device]) -> None:
        """Add devices that are listed."""
        for device in devices:
            self.devices.add(device)

    def forget(self, devices: Iterable[Device]) -> None:
        """Forget devices that are no longer listed."""
        for device in devices:
            self.devices.remove(device)
        for selection in self._recent.values():
            selection.update()

    def use(self, expression: str) -> Matches:
        """Return the known matches of an expression, updated."""
        most = max(self._least, self._memory // (self.devices.capacity + len(expression)))
        known = self._known.use(expression, lambda: Matches(expression), most)
        if known is None:
            known = Matches(expression, is_kept=False)
        known.is_unfinished = False
        self.update(known)
        return known

    def learn(self, expression: str, device: Device, state: bool | str) -> None:  # noqa: FBT001 - what it is, or why not
        """Keep the worker process's result for an expression and a device: its value, or why it has none."""
        known, number = self._known.peek(expression), self.devices.numbers.get(device)
        if known is not None and number is not None:
            self.update(known)
            known.states[number] = known.fail(f"CEL runtime error: {state}") if isinstance(state, str) else NO + state

    def refuse(self, expression: str, why: str) -> None:
        """Keep why an expression does not compile, as the worker process has found."""
        if (known := self._known.peek(expression)) is not None:
            known.invalid = why

    def state(self, known: Matches, device: Device, before: Sequence[Matches]) -> int:
        """Return the state of an expression for a device. `before` are the expressions that are true for the device.

        Raises:
            SelectorError: the expression does not compile.
            NoWorkError: it cannot be evaluated now.
        """
        if known.invalid:
            raise SelectorError(known.invalid)
        number = self.devices.add(device)
        self.update(known)
        if known.states[number] != UNKNOWN:
            return known.states[number]
        if not known.is_kept:
            self.work.put_off()
        if self.work.is_over():
            known.is_unfinished = True
            raise NoWorkError("the search is not finished yet")
        # Compiled when it is needed: an expression that no device reaches is never found wrong.
        if not known.is_compiled:
            self.work.spend(COMPILED * len(known.expression))
            try:
                known.equalities = compile_selector(known.expression, limited=self.offload is not None).equalities
            except StepsError:
                known.is_slow = True
            known.is_compiled = True
            if known.equalities:
                known.reasons = [f"CEL runtime error: no such key: {equality.name}" for equality in known.equalities]
                known.seen = -1
                self.update(known)
        if known.states[number] == UNKNOWN:
            known.states[number] = self._evaluate(known, device, before)
        return known.states[number]

    def update(self, known: Matches) -> None:
        """Forget the states of removed devices, or look them up again."""
        changes = self.devices.changes
        if known.seen == changes.now and len(known.states) == self.devices.capacity:
            return
        if known.equalities:
            known.states = self._index.states(known.equalities)
        else:
            known.states.extend(bytes(self.devices.capacity - len(known.states)))
            for number in changes.since(known.seen):
                known.states[number] = UNKNOWN
        known.seen = changes.now

    def _evaluate(self, known: Matches, device: Device, before: Sequence[Matches]) -> int:
        if device.unsupported:
            return known.fail(device.unsupported)
        if not known.is_slow:
            is_limited = self.offload is not None
            selector = compile_selector(known.expression, limited=is_limited)
            try:
                outcome = selector.evaluate(device.view, LIMITED_STEPS if is_limited else MAX_WORK)
            except StepsError as error:
                self.work.learn(EVALUATION + LIMITED_STEPS)
                if not is_limited:
                    return known.fail(f"CEL runtime error: {error}")
                known.is_slow = True
            else:
                self.work.learn(EVALUATION + outcome.steps)
                return known.fail(f"CEL runtime error: {outcome.error}") if outcome.error else NO + outcome.matches
        # The worker process evaluates it, for the driver's other devices that need it as well.
        assert self.offload is not None  # noqa: S101 - only then an expression is slow
        for earlier in before:
            self.update(earlier)
        others = (
            other
            for other, number in self.devices.numbers.items()
            if other.id.driver == device.id.driver
            and other is not device
            and known.states[number] == UNKNOWN
            and not other.unsupported
            and all(earlier.states[number] == YES for earlier in before)
        )
        self.work.spend(len(self.devices.numbers) / 10)
        self.offload.ask(known.expression, (device, *islice(others, BATCH - 1)), self.work.owner)
        known.is_unfinished = True
        self.work.wait()
        raise NoWorkError("the worker process evaluates a selector")
