"""Check of labels and annotations of `berth.dev/` that have no effect."""

from collections.abc import Iterator
from typing import Final

from berth_api import metadata, names
from berth_kubectl.doctor.facts import Facts, Finding
from berth_kubectl.reading.objects import condition, name_of

READ: Final = {"nodes": metadata.NODE, "namespaces": metadata.NAMESPACE, "devices": metadata.DEVICE}
"""List of objects -> their kind."""


def without_effect(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each label and annotation that Berth does not read, or not with its value."""
    devices = facts.by_name("devices")
    for listed, kind in READ.items():
        for obj in facts.all_of(listed):
            # The agent reports some labels of its Node itself.
            served = condition(devices.get(name_of(obj), {}), names.CLAIMS_SERVED) if kind == metadata.NODE else {}
            reported = str(served.get("message") or "")
            for place in metadata.PLACES:
                written = obj["metadata"].get(f"{place}s") or {}
                for name, message in metadata.without_effect(kind, place, written):
                    if f"{place} {name}={written[name]} has no effect" in reported:
                        continue
                    verb = "label" if place == metadata.LABEL else "annotate"
                    yield Finding(
                        check="WithoutEffect",
                        object=f"{kind.lower()}/{name_of(obj)}",
                        message=message,
                        fix=f"kubectl {verb} {kind.lower()} {name_of(obj)} {name}-   # or write what is meant",
                    )
