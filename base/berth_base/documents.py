"""YAML, every mistake in which is one error: PyYAML also raises Python's own errors, for numbers, dates and depth.

Aliases and merge keys let a few hundred bytes stand for more values than a machine can hold, so the size of a document
is checked before it is constructed.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml

MAX_VALUES: Final = 2**20
"""Values of a document, with those that aliases repeat."""
_PYTHON: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class DocumentError(ValueError):
    """A text is not YAML; the message names the place, as far as PyYAML reports it, and is one line."""


def read(content: bytes, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Return the only document of a file, read by a kind of SafeLoader; None if it is empty.

    Raises:
        DocumentError: the content is not YAML, has several documents, or stands for too many values.
    """
    documents = _read(content, loader)
    if len(documents) > 1:
        raise DocumentError(f"{len(documents)} documents; allowed is one")
    return documents[0] if documents else None


def read_all(content: str) -> list[Any]:
    """Return all documents of a text.

    Raises:
        DocumentError: the text is not YAML, or a document stands for too many values.
    """
    return _read(content, yaml.SafeLoader)


def _read(content: bytes | str, loader: type[yaml.SafeLoader]) -> list[Any]:
    try:
        return list(_documents(loader(content)))
    except (yaml.YAMLError, *_PYTHON) as error:
        raise DocumentError(_text(error)) from error


def _documents(loader: yaml.SafeLoader) -> Iterator[Any]:
    try:
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                _size(node, {})
                yield loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a node stands for; `sizes` has those of nodes that were counted before, by their ids."""
    known = sizes.get(id(node))
    if known is None:
        # Without an entry for the time being, a node that contains itself would be counted without end.
        sizes[id(node)] = MAX_VALUES
        known = sizes[id(node)] = 1 + sum(_size(part, sizes) for part in _parts(node))
    if known > MAX_VALUES:
        problem = f"aliases and merge keys repeat more than {MAX_VALUES} values"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return known


def _parts(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _text(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return f"{where}{error.problem or error.context}"
    text = " ".join(str(error).split())
    return text if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {text}"
