"""Read fields of API objects together with their paths, so that an error names the field."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from berth_api.resources.quantity import QuantityError
from berth_operator.core.claims.objects.amounts import ExactQuantity


class FieldError(ValueError):
    """A field of an API object cannot be read. The message has its path, the value and what is allowed."""


@dataclass(slots=True)
class Field:
    """A value in an API object, and its path. `value` is None if the field is absent.

    The class is not frozen, and the path is assembled only for an error, because each event of a claim creates forty
    fields.
    """

    value: Any
    name: str
    """The last part of its path: a key, or an index in brackets."""
    owner: "Field | None" = None

    @property
    def path(self) -> str:
        """Return its path in the object."""
        before = "" if self.owner is None else self.owner.path
        return f"{before}.{self.name}" if before and not self.name.startswith("[") else f"{before}{self.name}"

    def at(self, key: str) -> "Field":
        """Return a field of this object; absent if the object is.

        Raises:
            FieldError: this is not an object.
        """
        return Field(self._mapping().get(key), key, self)

    def text(self, default: str = "") -> str:
        """Return a string, `default` if absent; raise FieldError for anything else."""
        return self._typed(str, "a string") if self.value is not None else default

    def integer(self, default: int = 0) -> int:
        """Return an integer, `default` if absent; raise FieldError for anything else."""
        if isinstance(self.value, bool):
            raise self._wrong("an integer")
        return self._typed(int, "an integer") if self.value is not None else default

    def boolean(self) -> bool:
        """Return a boolean, False if absent; raise FieldError for anything else."""
        return self._typed(bool, "true or false") if self.value is not None else False

    def quantity(self) -> ExactQuantity:
        """Return a quantity; raise FieldError for anything else, or if it is absent."""
        if not isinstance(self.value, str | int) or isinstance(self.value, bool):
            raise self._wrong("a quantity such as 1, 500m or 16Gi")
        try:
            return ExactQuantity.parse(self.value)
        except QuantityError as error:
            raise FieldError(f"{self.path}: {error}") from error

    def items(self) -> Iterator["Field"]:
        """Yield the items of a list, none if it is absent; raise FieldError if it is no list."""
        if self.value is not None:
            for number, item in enumerate(self._typed(list, "a list")):
                yield Field(item, f"[{number}]", self)

    def texts(self) -> tuple[str, ...]:
        """Return a list of strings, empty if absent; raise FieldError for anything else."""
        return tuple(item.text() for item in self.items())

    def entries(self) -> Iterator[tuple[str, "Field"]]:
        """Yield the entries of an object with any keys, none if it is absent; raise FieldError if it is no object."""
        for key, value in self._mapping().items():
            yield key, Field(value, f"[{key:.64}]", self)

    def _mapping(self) -> Mapping[str, Any]:
        return self._typed(dict, "an object") if self.value is not None else {}

    def _typed(self, kind: type, name: str) -> Any:
        if not isinstance(self.value, kind):
            raise self._wrong(name)
        return self.value

    def _wrong(self, name: str) -> FieldError:
        return FieldError(f"{self.path}: {self.value!r:.64} is not {name}")
