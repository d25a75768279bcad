"""What the shipped admission policies cost the API server, for objects at its limits: `python -m tests.bench.policies`.

Each case makes pods of one shape, in two sizes, on a control plane with the policies of `manifests/base` and on one
without, and counts the processor's time of the API server for each request. `growth` is the cost of the large pod by
that of the one with half as much; `ratio` that with the policies by that without. The last line is one JSON object.
"""

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from devcluster import Cluster, waiting
from devcluster.additions import installation
from devcluster.control_plane.api import ApiError
from tests import policies
from tests.bench import figures
from tests.bench.usage import cpu_seconds

REPEAT: Final = 3
PODS: Final = "/api/v1/namespaces/default/pods"
POLICIES: Final = ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy")
NAMED: Final = "x.devices.berth.dev/visible"
Pod = dict[str, Any]


def main() -> None:
    """Run the benchmark."""
    repeat = figures.number("REPEAT", REPEAT)
    without, under = _measured(repeat, enforced=False), _measured(repeat, enforced=True)
    result = {case: _row(without[case], under[case]) for case in CASES}
    for case, row in result.items():
        print(f"{case:40} {row}")
    print(json.dumps(result))


def _row(without: Mapping[int, float], under: Mapping[int, float]) -> dict[str, float]:
    half, full = sorted(under)
    return {
        "seconds_without": round(without[full], 3),
        "seconds": round(under[full], 3),
        "ratio": round(under[full] / without[full], 2),
        "growth": round(under[full] / under[half], 2),
    }


def _measured(repeat: int, *, enforced: bool) -> dict[str, dict[int, float]]:
    """Return for each case the API server's seconds for a request, by the pod's size."""
    with Cluster() as cluster:
        installation.create_namespaces(cluster)
        with suppress(ApiError):
            cluster.api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        if enforced:
            _enforce(cluster)
        return {name: _sizes(cluster, case, size, repeat) for name, (case, size) in CASES.items()}


def _enforce(cluster: Cluster) -> None:
    """Apply the policies of the base, and wait until one refuses what it has to."""
    with tempfile.TemporaryDirectory() as folder:
        shipped = policies.built(Path(folder))
    for each in shipped:
        if each["kind"].startswith(POLICIES):
            cluster.api.apply(each)
    waiting.until(lambda: _is_refused(cluster), deadline=60, what="the policies to be in force")


def _is_refused(cluster: Cluster) -> bool:
    try:
        cluster.api.post(f"{PODS}?dryRun=All", _pod("probe", annotations={NAMED: "0"}))
    except ApiError:
        return True
    return False


def _sizes(cluster: Cluster, case: Callable[[Cluster, int], None], size: int, repeat: int) -> dict[int, float]:
    process = _process(cluster)

    def seconds(size: int) -> float:
        before = cpu_seconds(process)
        case(cluster, size)
        return cpu_seconds(process) - before

    return {each: statistics.median(seconds(each) for _ in range(repeat)) for each in (size // 2, size)}


def _process(cluster: Cluster) -> int:
    """Return the process of the API server, by its port."""
    port = cluster.server.rpartition(":")[2]
    found = subprocess.run(["pgrep", "-f", f"secure-port={port}"], capture_output=True, text=True, check=True)
    programs = [int(pid) for pid in found.stdout.split()]
    return next(pid for pid in programs if Path(f"/proc/{pid}/exe").resolve().name == "kube-apiserver")


def _pod(name: str, *, annotations: Mapping[str, str] | None = None, **spec: object) -> Pod:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "a", "image": "a"}], **spec},
    }


def _many(size: int) -> Iterator[str]:
    return (f"a{number}" for number in range(size))


def _create(cluster: Cluster, pod: Pod) -> None:
    """Create a pod without keeping it; that it is refused does not matter."""
    with suppress(ApiError):
        cluster.api.post(f"{PODS}?dryRun=All", pod)


def _created_annotations(cluster: Cluster, size: int) -> None:
    _create(cluster, _pod("a", annotations=dict.fromkeys(_many(size), "")))


def _annotations_of_ours(cluster: Cluster, size: int) -> None:
    """Create a pod of Berth whose annotations are searched for names like those that it reads."""
    annotations = dict.fromkeys((f"a.b/gpu-modle-{name}" for name in _many(size)), "")
    pod = _pod("a", annotations=annotations)
    pod["spec"]["schedulerName"] = "berth-scheduler"
    _create(cluster, pod)


def _patched_annotations(cluster: Cluster, size: int) -> None:
    """Patch a pod that has the annotations already."""
    name = f"patched-{size}"
    with suppress(ApiError):
        cluster.api.post(PODS, _pod(name, annotations=dict.fromkeys(_many(size), "")))
    with suppress(ApiError):
        cluster.api.merge(f"{PODS}/{name}?dryRun=All", {"metadata": {"annotations": {"b": ""}}})


def _forged_annotations(cluster: Cluster, size: int) -> None:
    _create(cluster, _pod("a", annotations={**dict.fromkeys(_many(size), ""), NAMED: "0"}))


def _labels(cluster: Cluster, size: int) -> None:
    pod = _pod("a")
    pod["metadata"]["labels"] = dict.fromkeys(_many(size), "")
    _create(cluster, pod)


def _containers(cluster: Cluster, size: int) -> None:
    _create(cluster, _pod("a", containers=[{"name": name, "image": "a"} for name in _many(size)]))


def _requests(cluster: Cluster, size: int) -> None:
    resources = {"limits": {f"a.b/{name}": "1" for name in _many(size)}}
    _create(cluster, _pod("a", containers=[{"name": "a", "image": "a", "resources": resources}]))


def _requests_of_ours(cluster: Cluster, size: int) -> None:
    resources = {"limits": {f"kubernetes.io/gpu-{name}": "1" for name in _many(size)}}
    pod = _pod("a", containers=[{"name": "a", "image": "a", "resources": resources}])
    pod["spec"]["schedulerName"] = "berth-scheduler"
    _create(cluster, pod)


def _environment(cluster: Cluster, size: int) -> None:
    variables = [{"name": name, "value": ""} for name in _many(size)]
    pod = _pod("a", containers=[{"name": "a", "image": "a", "env": variables}])
    pod["spec"]["schedulerName"] = "berth-scheduler"
    _create(cluster, pod)


CASES: Final[Mapping[str, tuple[Callable[[Cluster, int], None], int]]] = {
    "annotations, created": (_created_annotations, 40_000),
    "annotations of a pod of Berth": (_annotations_of_ours, 10_000),
    "annotations, patched": (_patched_annotations, 40_000),
    "annotations, one of them forged": (_forged_annotations, 40_000),
    "labels": (_labels, 40_000),
    "containers": (_containers, 8_000),
    "requests of one container": (_requests, 20_000),
    "requests for devices": (_requests_of_ours, 20_000),
    "environment of one container": (_environment, 20_000),
}
"""Cases with the larger of their two sizes: what an object of 1.5 MiB can hold, and 256 KiB of annotations."""


if __name__ == "__main__":
    main()
