"""Parsers of Kueue's objects."""

import copy
from typing import Any, Final

from hypothesis import strategies as st

from berth_operator.core.claims.objects.fields import FieldError
from berth_operator.core.values.pod_admission import PriorityClass
from berth_operator.state.objects import pod_sets, workloads
from berth_operator.state.objects.pod_sets import Templates, UnknownFlavorError
from tests.fuzz import inputs
from tests.fuzz.target import Target
from tests.objects.kueue_objects import CHECK, assignment, check_state, condition, flavor, pod_set, workload

_SLICES: Final = [
    {
        "domainCount": 2,
        "podCounts": {"individual": [1, 2]},
        "valuesPerLevel": [{"universal": "a"}, {"individual": {"prefix": "b-", "roots": ["1", "2"]}}],
    },
    {"domainCount": 1, "podCounts": {"universal": 1}, "valuesPerLevel": [{"universal": "c"}, {"universal": "d"}]},
]
_TOLERATION: Final = {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}
_WORKLOAD: Final = workload(
    "job",
    pod_set(
        "main",
        count=4,
        metadata={"labels": {"app": "a"}, "annotations": {"gpu-fraction": "0.5"}},
        nodeSelector={"zone": "a"},
        tolerations=[_TOLERATION],
        volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        priorityClassName="high",
    ),
    checks=[check_state(retryCount=1, podSetUpdates=[{"name": "main", "annotations": {"a": "b"}}])],
    assigned=[assignment(count=4, topologyAssignment={"levels": ["block", "rack"], "slices": _SLICES})],
    conditions=[condition("Evicted", status="False")],
)
_FLAVOR: Final = flavor(labels={"model": "A100"}, tolerations=[_TOLERATION])


def _parse(drawn: tuple[dict[str, Any], dict[str, Any]]) -> object:
    raw, other = drawn
    kept = workloads.transform({**copy.deepcopy(raw), "metadata": {"namespace": "ns", "name": "job", "uid": "u"}})
    templates = Templates(
        flavors={"any": pod_sets.read_flavor(other)}, priority_classes={"high": PriorityClass(value=7)}
    )
    view = workloads.read(kept, (CHECK,), lambda root: pod_sets.read(root, templates))
    return None if view is None else sum(1 for _ in view.workload.pods)


TARGETS: Final = (
    Target(
        name="quota workload",
        inputs=st.tuples(inputs.objects(_WORKLOAD), inputs.objects(_FLAVOR)),
        parse=_parse,
        errors=(FieldError, UnknownFlavorError),
    ),
)
