"""Expressions that only compare attributes with constants, for example with a UUID or a model.

An index of the attributes' values answers these expressions, without an evaluation for each device.
"""

from typing import Final, NamedTuple

from berth_operator.core.claims.selectors.terms import Call, Ident, Literal, Select, Term

MAX_EQUALITIES: Final = 16


class Equality(NamedTuple):
    """`device.attributes["domain"].name == value`; without a domain it is `device.driver`."""

    domain: str
    name: str
    value: bool | int | str
    is_optional: bool = False
    """Whether it is false for a device without the attribute, as in `….?name.orValue("") == value`. Otherwise that is
    an error."""


def equalities(term: Term) -> tuple[Equality, ...] | None:
    """Return the operands of an `&&` of equalities, or a single one, in their order; None for other terms."""
    found: list[Equality] = []
    left = [term]
    while left:
        match left.pop():
            case Call("_&&_", _, operands):
                left.extend(reversed(operands))
            # With the constant on the left, a version would be compared in another way.
            case Call("_==_", _, [operand, Literal(value)]) if type(value) in (bool, int, str):
                if (equality := _equality(operand, value=value)) is None:
                    return None
                found.append(equality)
            case _:
                return None
    return tuple(found) if len(found) <= MAX_EQUALITIES else None


def _equality(operand: Term, *, value: bool | int | str) -> Equality | None:
    """Return the equality of a term and a constant; None if the index does not have the term's values."""
    match operand:
        case Call("orValue", Select(attribute, str(name), optional=True, test=False), [Literal(default)]):
            # Where the default is equal to the constant, devices without the attribute are selected.
            is_selected = type(default) not in (bool, int, str) or default == value
            path = None if is_selected else _attribute(attribute, name)
            return None if path is None else Equality(*path, value, is_optional=True)
        case _:
            path = _path(operand)
            return None if path is None else Equality(*path, value)


def _path(term: Term) -> tuple[str, str] | None:
    """Return the domain and name of the attribute that a term reads."""
    match term:
        case Select(Ident("device"), "driver", optional=False, test=False):
            return "", "driver"
        case Select(operand, str(name), optional=False, test=False):
            return _attribute(operand, name)
        case Call("_[_]", None, [operand, Literal(str(name))]):
            return _attribute(operand, name)
    return None


def _attribute(term: Term, name: str) -> tuple[str, str] | None:
    match term:
        case Call("_[_]", None, [Select(Ident("device"), "attributes", optional=False, test=False), Literal(str(at))]):
            return at, name
    return None
