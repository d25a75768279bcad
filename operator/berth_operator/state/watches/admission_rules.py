"""Apply API events of what admission knows: LimitRanges, ResourceQuotas and PriorityClasses."""

from collections.abc import Callable
from typing import Any, Final

from berth_api.values import keys
from berth_client.reflector import Source
from berth_operator.state.cache.admission_rules import AdmissionRules
from berth_operator.state.objects import pod_admission
from berth_operator.state.watches.sinks import Table

Object = dict[str, Any]

PRIORITY_CLASSES: Final = "priority classes"
KINDS: Final = ("limit ranges", "resource quotas", PRIORITY_CLASSES)


def sources(rules: AdmissionRules) -> dict[str, tuple[Source, Table]]:
    """Return {name of the kind: (source, table)}. Without the rights, the state goes on without the kinds."""

    def put_limit_range(raw: Object) -> None:
        rules.put_limit_range(*keys.split(keys.of(raw)), pod_admission.read_limit_range(raw))

    def put_quota(raw: Object) -> None:
        rules.put_quota(raw["metadata"]["namespace"], pod_admission.read_quota(raw))

    def put_class(raw: Object) -> None:
        rules.put_priority_class(keys.name_of(raw), pod_admission.read_priority_class(raw))

    def split(remove: Callable[[str, str], None]) -> Callable[[str], None]:
        return lambda key: remove(*keys.split(key))

    tables = (
        (
            "/api/v1/limitranges",
            Table(kind="limitranges", key=keys.of, put=put_limit_range, remove=split(rules.remove_limit_range)),
        ),
        (
            "/api/v1/resourcequotas",
            Table(kind="resourcequotas", key=keys.of, put=put_quota, remove=split(rules.remove_quota)),
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            Table(kind="priorityclasses", key=keys.name_of, put=put_class, remove=rules.remove_priority_class),
        ),
    )
    return {
        name: (Source(path=path, may_be_forbidden=True), table)
        for name, (path, table) in zip(KINDS, tables, strict=True)
    }
