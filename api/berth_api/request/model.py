"""The GPU models that a pod accepts, by two older protocols and by Berth's own. A card must pass all of them."""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from berth_api import names

MAX_LENGTH: Final = 1024
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9._-]{0,63}")
"""All of these are regular expressions, too; only dots have a meaning."""
NONE_OF: Final = "!"
"""Before a glob: no card whose model it matches."""


ModelAliases = Mapping[str, tuple[str, ...]]
"""Another name of models, in lower case -> globs on the model's full name."""
NO_ALIASES: Final[ModelAliases] = MappingProxyType({})


class ModelError(ValueError):
    """A constraint cannot be parsed; the message names the annotation or label and the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConstraint:
    """Constraints on the full model name of a card, not case-sensitive; an empty field accepts all models.

    Each is kept as the user wrote it, for messages.
    """

    exact: str = ""
    """`nvidia-gpu-scheduler/gpu.model`."""
    regex: str = ""
    """`genius/gpu-model`, matched anywhere in the name."""
    globs: tuple[str, ...] = ()
    """`berth.dev/gpu-model`, any of these."""
    excluded: tuple[str, ...] = ()
    """`berth.dev/gpu-model` after `!`, none of these."""

    def __bool__(self) -> bool:
        return bool(self.exact or self.regex or self.globs or self.excluded)

    def __str__(self) -> str:
        excluded = f"not {' or '.join(self.excluded)}" if self.excluded else ""
        return " and ".join(filter(None, (self.exact, self.regex, " or ".join(self.globs), excluded)))

    def accepts(self, model: str, aliases: ModelAliases = NO_ALIASES) -> bool:
        """Return whether a card of this model passes, by its name or by its aliases."""
        full_name = model.strip().lower()
        known_as = (full_name, *(alias for alias, globs in aliases.items() if _matches(full_name, globs)))
        return (
            (not self.exact or self.exact.lower() in known_as)
            and (not self.regex or any(re.search(self.regex, name, re.IGNORECASE) for name in known_as))
            and (not self.globs or any(_matches(name, self.globs) for name in known_as))
            and not any(_matches(name, self.excluded) for name in known_as)
        )

    def hint(self, models: Collection[str]) -> str:
        """Return what to write instead of a part of one of these models, or of another kind of pattern."""
        if any(map(self.accepts, models)):
            return ""
        if self.exact and any(self.exact.lower() in model.lower() for model in models):
            return f'{names.MODEL_EXACT} is the whole name; for a part of it use {names.MODEL_GLOBS}: "*{self.exact}*"'
        if _REGEX.search(self.exact) or "*" in self.exact:
            return (
                f"{names.MODEL_EXACT} is the whole name; for a pattern use {names.MODEL_GLOBS}: {_as_globs(self.exact)}"
            )
        return next(filter(None, (_hint(glob, models) for glob in self.globs)), "")


def _hint(glob: str, models: Collection[str]) -> str:
    """Return what to write instead of a glob that matches none of these models."""
    if _REGEX.search(glob):
        return f'"{glob}" looks like a regular expression; {names.MODEL_GLOBS} takes globs: {_as_globs(glob)}'
    wider = f"*{glob.strip('*')}*"
    if any(_matches(model.lower(), (wider,)) for model in models):
        return f'"{glob}" must match the whole name; for a part of it use "{wider}"'
    return ""


_REGEX: Final = re.compile(r"\.[*+]|[|^$\\]")
"""What only regular expressions have: no model's name and no useful glob."""


def _as_globs(regex: str) -> str:
    """Return the globs that match the same models as a simple regular expression; an example if it is not simple."""
    branches = (re.sub(r"\.?[*+]+", "*", branch).strip("^$*") for branch in regex.strip("^$()").split("|"))
    globs = [f"*{branch}*" for branch in branches]
    simple = all(re.fullmatch(r"\*[\w *-]*\w[\w *-]*\*", glob) for glob in globs)
    return f'"{", ".join(globs)}"' if simple else 'such as "*A100*, *H100*"'


ANY_MODEL: Final = ModelConstraint()


def of_pod(annotations: Mapping[str, str], labels: Mapping[str, str]) -> ModelConstraint:
    """Parse the constraints of a pod.

    Raises:
        ModelError: a pattern is not valid.
    """
    listed = _bounded(annotations, names.MODEL_GLOBS)
    globs = tuple(filter(None, (glob.strip() for glob in listed.split(","))))
    if names.MODEL_GLOBS in annotations and not globs:
        raise ModelError(f'{names.MODEL_GLOBS}: "{listed}" names no model; allowed is a list such as "*A100*, *H100*"')
    text = _bounded(labels, names.MODEL_REGEX)
    if not _LABEL_VALUE.fullmatch(text):
        # Pods never have one. But the API server does not check labels in templates, and a match may take forever.
        allowed = "allowed are up to 63 letters, digits, dashes, underscores and dots"
        raise ModelError(f'{names.MODEL_REGEX}: "{text}" is not the value of a label; {allowed}')
    return ModelConstraint(
        exact=_bounded(annotations, names.MODEL_EXACT),
        regex=text,
        globs=tuple(glob for glob in globs if not glob.startswith(NONE_OF)),
        excluded=tuple(glob.removeprefix(NONE_OF).strip() for glob in globs if glob.startswith(NONE_OF)),
    )


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob.lower()) for glob in globs)


def _bounded(source: Mapping[str, str], key: str) -> str:
    value = source.get(key, "").strip()
    if len(value) > MAX_LENGTH:
        raise ModelError(f"{key}: {len(value)} characters; allowed are {MAX_LENGTH}")
    return value
