"""Write how Kueue counts what pods request of devices: `python -m reference.kueue [--check]`.

Kueue counts the templates of workloads, by a linear rule for each resource (`resources.transformations` of its
Configuration). No rule counts less than Berth charges. docs/kueue.md shows by how much a rule may count more. In the
namespaces that Kueue manages, the policy (`kueue.yaml`) refuses requests that no linear rule can count.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from berth_api import names
from berth_api.allocation import mig
from berth_api.request import CARD, mig_cards
from berth_api.request.amounts import (
    AMD_GPU,
    AMD_PARTITIONS,
    DCU_GPU,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    NVIDIA_GPU,
    NVIDIA_SHARED,
)
from berth_api.words import AMOUNTS, TABLE, Role, Row, System, Word, WordPlace
from reference import writing

COMPONENT: Final = Path(__file__).parent.parent / "manifests/components/kueue"
TEMPLATE: Final = Path(__file__).parent / "kueue.yaml"
HEADER: Final = "# Generated from the table of other systems' words by `make generate`; do not edit.\n"
GPU: Final = "quota.berth.dev/gpu"
"""What queues count in hundredths of a card."""
GPU_MEMORY: Final = "quota.berth.dev/gpu-memory"
"""What they count in bytes: memory that pods request as such."""
NAMESPACES: Final = {"kueue-managed": "true"}
"""The label of namespaces whose workloads Kueue manages."""
ACCOUNT: Final = "system:serviceaccount:kueue-system:kueue-controller-manager"
"""The account of Kueue's controller."""

Outputs = Mapping[str, str]
Transformation = dict[str, Any]
ONE_PERCENT: Final[Outputs] = {GPU: "1"}
ONE_CARD: Final[Outputs] = {GPU: str(CARD)}
NOTHING: Final[Outputs] = {}


def files() -> dict[Path, str]:
    """Return the text of each file."""
    return {
        COMPONENT / "configuration.yaml": HEADER + yaml.safe_dump(configuration(), sort_keys=False),
        COMPONENT / "policy.yaml": HEADER + Template(TEMPLATE.read_text()).substitute(_in_policy()),
    }


def configuration() -> dict[str, Any]:
    """Return what Kueue's Configuration needs for Berth's quotas."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "manageJobsWithoutQueueName": True,
        "managedJobsNamespaceSelector": {"matchLabels": dict(NAMESPACES)},
        "resources": {"transformations": list(transformations())},
    }


def transformations() -> Iterator[Transformation]:
    """Yield the rule of each resource; Kueue admits no workload with a resource that no rule and no queue has."""
    yield from (_rule(name, outputs) for name, outputs in _own().items())
    yield from (
        _rule(mig.resource(profile), {GPU: str(part)}) for profile, part in sorted(mig_cards.HUNDREDTHS.items())
    )
    for system in TABLE.systems:
        for word in system.words:
            if word.place == WordPlace.RESOURCE and word.role != Role.REFUSED and word.name not in _own():
                yield _of_word(system, word)


def _own() -> Mapping[str, Outputs]:
    """Return Berth's own resources, by both prefixes, and those of device plugins."""
    short = {
        names.GPU: ONE_PERCENT,
        names.GPU_CORE: ONE_PERCENT,
        names.GPU_MEMORY_RATIO: ONE_PERCENT,
        names.GPU_MEMORY: {GPU_MEMORY: "1"},
        names.GPU_SHARED: NOTHING,
    }
    own = {prefix + name: outputs for prefix in (names.PREFIX, names.OTHER_PREFIX) for name, outputs in short.items()}
    whole = dict.fromkeys((NVIDIA_GPU, NVIDIA_SHARED, AMD_GPU, *AMD_PARTITIONS, DCU_GPU), ONE_CARD)
    return own | whole | dict.fromkeys((NPU_CORE, NPU_CPU, NPU_DVPP), NOTHING)


def _of_word(system: System, word: Word) -> Transformation:
    """Return the rule of another system's resource; amounts of each card are multiplied by the number of cards."""
    cards = next((each.name for each in system.words if each.role == Role.CARDS), "")
    is_of_each = word.role in (Role.MEMORY, Role.PERCENT, Role.CORES) and not system.total
    return _rule(word.name, _outputs(system, word), multiply_by=cards if is_of_each else "")


def _outputs(system: System, word: Word) -> Outputs:
    if word.role == Role.CARDS:
        return NOTHING if system.needs_memory else ONE_CARD
    if word.role == Role.MEMORY:
        return {GPU_MEMORY: str(word.unit)}
    return ONE_PERCENT if word.role in (Role.PERCENT, Role.CORES, Role.HUNDREDTHS) else NOTHING


def _rule(name: str, outputs: Outputs, *, multiply_by: str = "") -> Transformation:
    rule: Transformation = {"input": name, "strategy": "Replace"}
    if multiply_by:
        rule["multiplyBy"] = multiply_by
    return {**rule, "outputs": dict(outputs)}


def _in_policy() -> Mapping[str, str]:
    """Return what the template of the policy names."""
    rows = [row for row in TABLE.rows() if row.word.role in AMOUNTS]
    by_place = {
        place: [row.word.name for row in rows if row.word.place == place and row.word.role != Role.CONTAINER]
        for place in WordPlace
    }
    # Next to a resource of its system, a number of cards as a label is part of a request that counts as a total.
    labels = [row.word.name for row in rows if row.word.place == WordPlace.LABEL and not row.system.total]
    texts = {
        "namespaces": NAMESPACES,
        "labels": [names.GENIUS_NUMBER, names.GENIUS_MEMORY_EACH, names.GENIUS_MEMORY_TOTAL, *labels],
        "annotations": by_place[WordPlace.ANNOTATION],
        # `nvidia.com/gpu: 0` alone requests nothing.
        "resources": [name for name in by_place[WordPlace.RESOURCE] if name in TABLE.telling],
        "cores": [_cores(system) for system in TABLE.systems if _is_whole_by_cores(system)],
        "renamed": [[name, *_next_to(rows)] for name, rows in TABLE.renamed.items()],
    }
    own = {"ratio": names.GPU_MEMORY_RATIO, "shared": names.GPU_SHARED, "memory": names.GPU_MEMORY}
    return (
        {name: json.dumps(text) for name, text in texts.items()}
        | {name: f"{names.PREFIX}{text}" for name, text in own.items()}
        | {"account": ACCOUNT}
    )


def _is_whole_by_cores(system: System) -> bool:
    """Return whether a request for cores alone is one for all memory of a card."""
    roles = {word.role for word in system.words if word.place == WordPlace.RESOURCE}
    return Role.CORES in roles and bool(system.cards) and not system.needs_memory


def _cores(system: System) -> list[str]:
    """Return the resource for cores, and those next to which it counts."""
    by_role = {word.role: word.name for word in system.words if word.place == WordPlace.RESOURCE}
    others = (Role.MEMORY, Role.PERCENT, Role.CARDS)
    return [by_role[Role.CORES], *(by_role[role] for role in others if role in by_role)]


def _next_to(rows: Iterable[Row]) -> list[str]:
    """Return the resources next to which a renamed one is read as a number of cards."""
    words = (word for row in rows for word in row.system.words if word.place == WordPlace.RESOURCE)
    return [word.name for word in words if word.name in TABLE.telling and word.role != Role.REFUSED]


def main() -> int:
    """Write the files, or with --check report which differ; return 1 if one does."""
    options = writing.parser(__doc__).parse_args()
    return writing.write(files(), "the table of words", check=options.check)


if __name__ == "__main__":
    sys.exit(main())
