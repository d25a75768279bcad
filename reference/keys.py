"""The labels and annotations of `berth.dev/` by kind of object, with their allowed values."""

from collections.abc import Iterator

from berth_api import metadata
from reference.markdown import code, page, section, table

HEAD = ("key", "label or annotation", "allowed values")


def text() -> str:
    """Return the page."""
    kinds = dict.fromkeys(kind for key in metadata.TABLE for kind in key.kinds)
    return page(
        "Keys",
        "For administrators and users: every label and annotation of `berth.dev/` that Berth reads or writes, and the "
        "values that it may have. [Names](names.md) says what each means.",
        "Other names and values have no effect. Berth refuses them on its own pods. On Namespaces, the API server "
        "warns about them (the policy `berth-namespaces`). On other pods, it warns about keys of pods, Namespaces and "
        "Nodes in the wrong place (the policy `berth-warnings`). On Nodes, Namespaces, Devices and waiting pods, "
        "[`kubectl berth doctor`](../doctor.md) reports them as `WithoutEffect`. On other kinds, such as "
        "DeviceClasses, PodGroups and Workloads, Berth reads no names of `berth.dev/`.",
        *(section(kind[0].upper() + kind[1:], *_of_kind(kind)) for kind in kinds),
    )


def _of_kind(kind: str) -> Iterator[str]:
    keys = [key for key in metadata.TABLE if kind in key.kinds]
    for by_berth, introduction in ((False, "You write:"), (True, "Berth writes:")):
        rows = [
            (code(key.name), key.place, ", ".join(map(code, key.values)) or key.form)
            for key in keys
            if key.by_berth == by_berth
        ]
        if rows:
            yield introduction
            yield table(HEAD, rows)
