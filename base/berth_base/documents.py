"""Parse YAML, and report every mistake as one error. PyYAML also raises Python's errors for numbers, dates and depth.

With aliases and merge keys, a few hundred bytes can stand for more values than a machine can hold. So the size of a
document is checked before it is constructed.
"""

from collections.abc import Iterator
from typing import Any, Final

import yaml

MAX_VALUES: Final = 2**20
"""Values of a document, including values that aliases repeat."""
_PYTHON: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


_FAST: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C, ten times as fast, where PyYAML was built with it."""


class DocumentError(ValueError):
    """A text is not YAML. The message is one line. It names the place, as far as PyYAML reports it."""

    def __init__(self, problem: str, *, line: int = 0, column: int = 0) -> None:
        """Create the error; line and column are counted from 1, and 0 if PyYAML does not report them."""
        super().__init__(f"line {line}, column {column}: {problem}" if line else problem)
        self.problem, self.line, self.column = problem, line, column


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


def read_with_nodes(content: str) -> list[tuple[yaml.Node, Any]]:
    """Return all documents of a text, each with its node, which has the places of all values in the text.

    Raises:
        DocumentError: the text is not YAML, or a document stands for too many values.
    """
    return _pairs(content, _FAST)


def _read(content: bytes | str, loader: type[yaml.SafeLoader]) -> list[Any]:
    return [document for _, document in _pairs(content, loader)]


def _pairs(content: bytes | str, loader: type[yaml.SafeLoader]) -> list[tuple[yaml.Node, Any]]:
    try:
        return list(_documents(loader(content)))
    except (yaml.YAMLError, *_PYTHON) as error:
        raise _error(error) from error


def _documents(loader: yaml.SafeLoader) -> Iterator[tuple[yaml.Node, Any]]:
    try:
        while loader.check_node():
            if (node := loader.get_node()) is not None:
                _size(node, {})
                yield node, loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Return how many values a node stands for. `sizes` has the counts of earlier nodes, by their ids."""
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


def _error(error: Exception) -> DocumentError:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = {"line": mark.line + 1, "column": mark.column + 1} if mark else {}
        return DocumentError(str(error.problem or error.context), **place)
    text = " ".join(str(error).split())
    return DocumentError(text if isinstance(error, yaml.YAMLError) else f"{type(error).__name__}: {text}")
