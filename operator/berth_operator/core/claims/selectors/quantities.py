"""Quantities and semantic versions, Kubernetes' additions to CEL."""

from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any, Final

from berth_api.resources import quantity
from berth_operator.core.claims.selectors import version
from berth_operator.core.claims.selectors.errors import EvaluationError
from berth_operator.core.claims.selectors.overloads import functions, methods
from berth_operator.core.claims.selectors.values import MAX_INT, MAX_UINT, MIN_INT, Sum
from berth_operator.core.claims.selectors.version import Version

_EXACT: Final = Context(prec=1_000)


def _quantity(text: str) -> Decimal:
    try:
        return quantity.exact(text)
    except quantity.QuantityError as error:
        raise EvaluationError(str(error)) from error


def _is_whole(amount: Decimal) -> bool:
    return amount == amount.to_integral_value() and MIN_INT <= amount <= MAX_INT


def _as_integer(amount: Decimal) -> int:
    if not _is_whole(amount):
        raise EvaluationError("cannot convert value to integer")
    return int(amount)


def _order(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _plus(left: Decimal, right: Decimal | int) -> Sum:
    return Sum(_EXACT.add(left, Decimal(right)))


def _minus(left: Decimal, right: Decimal | int) -> Sum:
    return Sum(_EXACT.subtract(left, Decimal(right)))


def _semver(text: str, tolerant: bool = False) -> Version:  # noqa: FBT001, FBT002 - as CEL passes it
    try:
        return version.parse_tolerant(text) if tolerant else version.parse(text)
    except version.VersionError as error:
        raise EvaluationError(str(error)) from error


def _wrapped(number: int) -> int:
    """Return the number of a version as Kubernetes does: from 2**63 on it is negative."""
    return number if number <= MAX_INT else number - MAX_UINT - 1


def _succeeds(parse: Callable[..., Any]) -> Callable[..., bool]:
    def does(*args: Any) -> bool:
        try:
            parse(*args)
        except EvaluationError:
            return False
        return True

    return does


_QUANTITY, _SEMVER = "kubernetes.Quantity", "kubernetes.Semver"
functions(
    {
        f"quantity(string) {_QUANTITY}": _quantity,
        "isQuantity(string) bool": _succeeds(_quantity),
        f"sign({_QUANTITY}) int": lambda amount: _order(amount, 0),
        f"semver(string) {_SEMVER}": _semver,
        f"semver(string, bool) {_SEMVER}": _semver,
        "isSemver(string) bool": _succeeds(_semver),
        "isSemver(string, bool) bool": _succeeds(_semver),
    }
)
for _type in (_QUANTITY, _SEMVER):
    methods(
        {
            f"isGreaterThan({_type}, {_type}) bool": lambda left, right: bool(left > right),
            f"isLessThan({_type}, {_type}) bool": lambda left, right: bool(left < right),
            f"compareTo({_type}, {_type}) int": _order,
        }
    )
methods(
    {
        f"asApproximateFloat({_QUANTITY}) double": float,
        f"asInteger({_QUANTITY}) int": _as_integer,
        f"isInteger({_QUANTITY}) bool": _is_whole,
        f"add({_QUANTITY}, {_QUANTITY}) {_QUANTITY}": _plus,
        f"add({_QUANTITY}, int) {_QUANTITY}": _plus,
        f"sub({_QUANTITY}, {_QUANTITY}) {_QUANTITY}": _minus,
        f"sub({_QUANTITY}, int) {_QUANTITY}": _minus,
        f"major({_SEMVER}) int": lambda semver: _wrapped(semver.major),
        f"minor({_SEMVER}) int": lambda semver: _wrapped(semver.minor),
        f"patch({_SEMVER}) int": lambda semver: _wrapped(semver.patch),
    }
)
