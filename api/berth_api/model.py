"""Which GPU models a pod accepts: two older protocols and Berth's own; a card must pass all of them."""

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth_api import names

MAX_LENGTH: Final = 1024


class ModelError(ValueError):
    """A constraint cannot be parsed; the message names the annotation or label and the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConstraint:
    """Constraints on the full model name of a card, not case-sensitive; an empty field accepts all models."""

    exact: str = ""
    """`nvidia-gpu-scheduler/gpu.model`."""
    regex: str = ""
    """`genius/gpu-model`, matched anywhere in the name."""
    globs: tuple[str, ...] = ()
    """`berth.dev/gpu-model`, any of these."""

    def __bool__(self) -> bool:
        return bool(self.exact or self.regex or self.globs)

    def __str__(self) -> str:
        return " and ".join(filter(None, (self.exact, self.regex, " or ".join(self.globs))))

    def accepts(self, model: str) -> bool:
        """Return whether a card of this model passes."""
        name = model.strip().lower()
        return (
            (not self.exact or self.exact == name)
            and (not self.regex or re.search(self.regex, name, re.IGNORECASE) is not None)
            and (not self.globs or any(fnmatch.fnmatchcase(name, glob) for glob in self.globs))
        )


ANY_MODEL: Final = ModelConstraint()


def of_pod(annotations: Mapping[str, str], labels: Mapping[str, str]) -> ModelConstraint:
    """Parse the constraints of a pod.

    Raises:
        ModelError: a pattern is not valid.
    """
    return ModelConstraint(
        exact=_bounded(annotations, names.MODEL_EXACT).lower(),
        regex=_regex(_bounded(labels, names.MODEL_REGEX)),
        globs=_globs(_bounded(annotations, names.MODEL_GLOBS).lower(), present=names.MODEL_GLOBS in annotations),
    )


def _bounded(source: Mapping[str, str], key: str) -> str:
    value = source.get(key, "").strip()
    if len(value) > MAX_LENGTH:
        raise ModelError(f"{key}: {len(value)} characters; allowed are {MAX_LENGTH}")
    return value


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ModelError(f'{names.MODEL_REGEX}: "{text}" is not a regular expression: {error}') from error
    return text


def _globs(text: str, *, present: bool) -> tuple[str, ...]:
    globs = tuple(filter(None, (glob.strip() for glob in text.split(","))))
    if present and not globs:
        raise ModelError(f'{names.MODEL_GLOBS}: "{text}" names no model; allowed is a list such as "*A100*, *H100*"')
    return globs
