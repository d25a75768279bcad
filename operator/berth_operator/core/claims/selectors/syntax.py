"""The grammar of CEL (https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax), without messages."""

import re
from collections.abc import Callable
from typing import Final, TypeVar

from berth_operator.core.claims.selectors import literals
from berth_operator.core.claims.selectors.errors import SelectorError
from berth_operator.core.claims.selectors.macros import expand
from berth_operator.core.claims.selectors.terms import Call, Ident, ListTerm, Literal, MapTerm, Select, Term

T = TypeVar("T")

MAX_DEPTH: Final = 60
"""Levels of parentheses, brackets and arguments. Kubernetes allows 250; Python's stack holds 1,000 calls in all."""

_QUOTED: Final = (
    r"[bB]?(?:[rR](?:\"{3}.*?\"{3}|'{3}.*?'{3}|\"[^\"\n\r]*\"|'[^'\n\r]*')"
    r"|\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}|\"(?:[^\\\"\n\r]|\\.)*\"|'(?:[^\\'\n\r]|\\.)*')"
)
_NUMBER: Final = (
    r"[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|(?:0x[0-9a-fA-F]+|[0-9]+)[uU]?"
)
_TOKEN: Final = re.compile(
    rf"(?P<space>(?:[\t \r\n\f]|//[^\n]*)+)|(?P<string>{_QUOTED})|(?P<number>{_NUMBER})"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<quoted>`[A-Za-z0-9_.\-/ ]+`)|(?P<symbol>==|!=|<=|>=|&&|\|\||[<>\[\]{}().,\-!?:+*/%])",
    re.DOTALL,
)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_KEYWORDS: Final = frozenset({"in", *_CONSTANTS})
_RESERVED: Final = frozenset(
    {"as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "namespace"}
    | {"package", "return", "var", "void", "while", "in"}
)
_LEVELS: Final = {
    **dict.fromkeys(("<", "<=", ">=", ">", "==", "!=", "in"), 1),
    **dict.fromkeys(("+", "-"), 2),
    **dict.fromkeys(("*", "/", "%"), 3),
}
"""Binary operator -> how tightly it binds."""


def parse(text: str) -> Term:
    """Return the term of an expression.

    Raises:
        SelectorError: the text is no expression, or it is nested too deeply.
    """
    parser = _Parser(_tokens(text))
    term = parser.expression()
    parser.expect("")
    return term


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """Return (kind, text, position) of each token, and one without text for the end."""
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise SelectorError(f"syntax error at character {at + 1}: {text[at : at + 10]!r} cannot be read")
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match[0], at))
        at = match.end()
    return [*tokens, ("symbol", "", at)]


class _Parser:
    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    # Tokens

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _text(self) -> str:
        return self._tokens[self._at][1]

    def _take(self) -> str:
        text = self._text
        self._at += 1
        return text

    def _takes(self, symbol: str) -> bool:
        if self._kind == "symbol" and self._text == symbol:
            self._at += 1
            return True
        return False

    def expect(self, symbol: str) -> None:
        """Take this symbol. The empty symbol is the end."""
        if not (self._kind == "symbol" and self._text == symbol):
            raise self._unexpected(symbol or "the end")
        self._at += 1

    def _unexpected(self, wanted: str) -> SelectorError:
        _, text, at = self._tokens[self._at]
        return SelectorError(f"syntax error at character {at + 1}: {wanted} is expected, not {text or 'the end'}")

    # Expressions

    def expression(self) -> Term:
        """Take an expression."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SelectorError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        term = self._any()
        if self._takes("?"):
            when_true = self._any()
            self.expect(":")
            term = Call("_?_:_", None, [term, when_true, self.expression()])
        self._depth -= 1
        return term

    def _any(self) -> Term:
        terms = [self._all()]
        while self._takes("||"):
            terms.append(self._all())
        return terms[0] if len(terms) == 1 else Call("_||_", None, terms)

    def _all(self) -> Term:
        terms = [self._binary(1)]
        while self._takes("&&"):
            terms.append(self._binary(1))
        return terms[0] if len(terms) == 1 else Call("_&&_", None, terms)

    def _binary(self, level: int) -> Term:
        left = self._unary()
        while self._kind == "symbol" or self._text == "in":
            binds = _LEVELS.get(self._text, 0)
            if binds < level:
                break
            operator = self._take()
            left = Call(f"_{operator}_", None, [left, self._binary(binds + 1)])
        return left

    def _unary(self) -> Term:
        for sign in "!-":
            count = 0
            while self._takes(sign):
                count += 1
            if count == 1 and sign == "-" and self._kind == "number" and self._text[-1] not in "uU":
                return self._members(Literal(literals.number("-" + self._take())))
            if count:
                term = self._members(self._primary())
                return Call(f"{sign}_", None, [term]) if count % 2 else term
        return self._members(self._primary())

    def _members(self, term: Term) -> Term:
        while True:
            if self._takes("."):
                optional = self._takes("?")
                if self._kind == "quoted":
                    term = Select(term, self._take()[1:-1], optional)
                    continue
                name = self._name()
                if optional or not self._takes("("):
                    term = Select(term, name, optional)
                else:
                    term = expand(Call(name, term, self._list(")", self.expression)))
            elif self._takes("["):
                index = "_[?_]" if self._takes("?") else "_[_]"
                term = Call(index, None, [term, self.expression()])
                self.expect("]")
            else:
                return term

    def _name(self) -> str:
        if self._kind != "name" or self._text in _KEYWORDS:
            raise self._unexpected("a name")
        return self._take()

    def _primary(self) -> Term:
        kind = self._kind
        if kind == "number":
            return Literal(literals.number(self._take()))
        if kind == "string":
            return Literal(literals.string(self._take()))
        if kind == "name" and self._text in _CONSTANTS:
            return Literal(_CONSTANTS[self._take()])
        if self._takes("("):
            term = self.expression()
            self.expect(")")
            return term
        if self._takes("["):
            return ListTerm(self._list("]", self._element))
        if self._takes("{"):
            return MapTerm(self._list("}", self._entry))
        self._takes(".")
        if self._text in _RESERVED:
            raise SelectorError(f"{self._text} is a reserved word of CEL")
        name = self._name()
        return expand(Call(name, None, self._list(")", self.expression))) if self._takes("(") else Ident(name)

    def _list(self, end: str, item: Callable[[], T]) -> list[T]:
        """Take items between commas up to the end; only literals may have a comma before the end."""
        items: list[T] = []
        while not self._takes(end):
            if items:
                self.expect(",")
                if end != ")" and self._takes(end):
                    break
            items.append(item())
        return items

    def _element(self) -> tuple[Term, bool]:
        optional = self._takes("?")
        return self.expression(), optional

    def _entry(self) -> tuple[Term, Term, bool]:
        optional = self._takes("?")
        key = self.expression()
        self.expect(":")
        return key, self.expression(), optional
