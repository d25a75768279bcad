"""Macros: calls whose arguments are terms with their own variables, not values."""

from typing import Final

from berth_operator.core.claims.selectors.errors import SelectorError
from berth_operator.core.claims.selectors.terms import Bind, Call, Comprehension, Ident, Select, Term

_COMPREHENSIONS: Final = {
    ("all", 2): ("all", 1),
    ("exists", 2): ("exists", 1),
    ("exists_one", 2): ("exists_one", 1),
    ("map", 2): ("map", 1),
    ("map", 3): ("map", 1),
    ("all", 3): ("all", 2),
    ("exists", 3): ("exists", 2),
    ("exists_one", 3): ("exists_one", 2),
    ("existsOne", 3): ("exists_one", 2),
    ("transformList", 3): ("map", 2),
    ("transformList", 4): ("map", 2),
    ("transformMap", 3): ("transformMap", 2),
    ("transformMap", 4): ("transformMap", 2),
    ("transformMapEntry", 3): ("transformMapEntry", 2),
    ("transformMapEntry", 4): ("transformMapEntry", 2),
}
"""Name and number of arguments -> kind, number of variables."""

_SORTED: Final = "@sorted"
_OPTIONAL: Final = "@optional"
"""Variables that no expression can name."""


def expand(call: Call) -> Term:
    """Return the expansion of the macro with this name and number of arguments; the call itself if it is no macro."""
    if call.target is None:
        if (call.function, len(call.args)) != ("has", 1):
            return call
        operand = call.args[0]
        if isinstance(operand, Select) and not (operand.optional or operand.test):
            return Select(operand.operand, operand.name, test=True)
        raise SelectorError("has() takes a field, such as has(device.attributes.name)")
    comprehension = _COMPREHENSIONS.get((call.function, len(call.args)))
    if comprehension is not None:
        return _comprehension(call.target, call.args, *comprehension)
    match call.function, len(call.args), call.target:
        case "filter", 2, _:
            variables = _variables(call.args[:1])
            return Comprehension("map", call.target, variables, call.args[1], Ident(variables[0]))
        case "bind", 3, Ident("cel"):
            return Bind(_variables(call.args[:1], hides=True)[0], call.args[1], call.args[2])
        case (("optMap" | "optFlatMap"), 2, _):
            optional, name = Ident(_OPTIONAL), _variables(call.args[:1], hides=True)[0]
            body: Term = Bind(name, Call("value", optional, []), call.args[1])
            if call.function == "optMap":
                body = Call("optional.of", None, [body])
            choice = Call("_?_:_", None, [Call("hasValue", optional, []), body, Call("optional.none", None, [])])
            return Bind(_OPTIONAL, call.target, choice)
        case "sortBy", 2, _:
            keys = _comprehension(Ident(_SORTED), call.args, "map", 1)
            return Bind(_SORTED, call.target, Call("@sortByAssociatedKeys", Ident(_SORTED), [keys]))
    return call


def _comprehension(target: Term, args: list[Term], kind: str, variables: int) -> Comprehension:
    rest = args[variables:]
    return Comprehension(kind, target, _variables(args[:variables]), rest[0] if rest[1:] else None, rest[-1])


def _variables(terms: list[Term], *, hides: bool = False) -> tuple[str, ...]:
    """Return the names of variables; `hides` is whether they may have the name that CEL once gave to results."""
    names = tuple(term.name for term in terms if isinstance(term, Ident) and (hides or term.name != "__result__"))
    if len(set(names)) < len(terms):
        raise SelectorError("the variables of a macro are different simple names")
    return names
