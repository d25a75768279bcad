"""The controllers that are not built: each creates from an object of its kind what the real one creates.

Names, labels and owners are those of the projects' sources in November 2026.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Manifest = dict[str, Any]
Labels = Mapping[str, str]


def created(obj: Manifest) -> Iterator[Manifest]:
    """Yield what the controller of an object creates; nothing if the controller is not played here.

    The caller creates each object before it takes the next one, and writes the API server's answer into it.
    """
    if play := PLAYED.get((obj["apiVersion"], obj["kind"])):
        yield from play(obj)


def definition(api_version: str, kind: str) -> Manifest:
    """Return the definition of a kind, which accepts any fields."""
    group, version = api_version.split("/")
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Groups that end with `k8s.io` need it.
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    }


def _owned(owner: Manifest, api_version: str, kind: str, name: str, labels: Labels, **fields: Any) -> Manifest:
    reference = {key: owner["metadata"][key] for key in ("name", "uid")}
    reference |= {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    metadata = {"name": name, "labels": dict(labels), "ownerReferences": [reference]}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _pod(owner: Manifest, name: str, spec: Manifest, labels: Labels, **annotations: str) -> Manifest:
    pod = _owned(owner, "v1", "Pod", name, labels, spec=spec)
    pod["metadata"]["annotations"] = annotations
    return pod


def _replicated(
    kind: str, owner: Manifest, name: str, spec: Manifest, labels: Labels, *, replicas: int = 1
) -> Manifest:
    body = {
        "replicas": replicas,
        "selector": {"matchLabels": dict(labels)},
        "template": {"metadata": {"labels": dict(labels)}, "spec": spec},
    }
    return _owned(owner, "apps/v1", kind, name, labels, spec=body)


def _pytorch_job(job: Manifest) -> Iterator[Manifest]:
    name, prefix = job["metadata"]["name"], "training.kubeflow.org"
    for kind, replica in job["spec"]["pytorchReplicaSpecs"].items():
        for index in range(replica["replicas"]):
            labels = {
                f"{prefix}/job-name": name,
                f"{prefix}/operator-name": "pytorchjob-controller",
                f"{prefix}/replica-type": kind.lower(),
                f"{prefix}/replica-index": str(index),
            }
            yield _pod(job, f"{name}-{kind.lower()}-{index}", replica["template"]["spec"], labels)


def _inference_service(service: Manifest) -> Iterator[Manifest]:
    model, name = service["spec"]["predictor"]["model"], f"{service['metadata']['name']}-predictor"
    labels = {
        "app": f"isvc.{name}",
        "component": "predictor",
        "serving.kserve.io/inferenceservice": service["metadata"]["name"],
    }
    container = {"name": "kserve-container", "image": "kserve/huggingfaceserver", "resources": model["resources"]}
    yield _replicated("Deployment", service, name, {"containers": [container]}, labels)


def _nim_service(service: Manifest) -> Iterator[Manifest]:
    name, spec = service["metadata"]["name"], service["spec"]
    image = f"{spec['image']['repository']}:{spec['image']['tag']}"
    container = {"name": f"{name}-ctr", "image": image, "resources": spec["resources"]}
    yield _replicated(
        "Deployment", service, name, {"containers": [container]}, {"app": name}, replicas=spec["replicas"]
    )


def _compute_domain(domain: Manifest) -> Iterator[Manifest]:
    """Yield the template of the claim by which each pod gets a channel between the nodes."""
    name = domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
    exactly = {"deviceClassName": "compute-domain-default-channel.nvidia.com"}
    spec = {"spec": {"devices": {"requests": [{"name": "channel", "exactly": exactly}]}}}
    yield _owned(domain, "resource.k8s.io/v1", "ResourceClaimTemplate", name, {}, spec=spec)


def _dynamo(graph: Manifest) -> Iterator[Manifest]:
    """Yield what the operators of Dynamo and Grove create: a PodGang of each service's cliques, and their pods."""
    name = graph["metadata"]["name"]
    gang, groups, pods = f"{name}-0", [], []
    for service, body in graph["spec"]["services"].items():
        resources, extra = body.get("resources", {}), body["extraPodSpec"]
        container = {"name": "main", "image": extra["mainContainer"]["image"]}
        if cards := resources.get("limits", {}).get("gpu"):
            container |= {"resources": {"limits": {"nvidia.com/gpu": cards}, "claims": resources.get("claims", [])}}
        spec = {"containers": [container], "resourceClaims": extra.get("resourceClaims", [])}
        for clique, replicas in _cliques(gang, service.lower(), body):
            labels = {
                "app.kubernetes.io/managed-by": "grove-operator",
                "app.kubernetes.io/part-of": name,
                "grove.io/podgang": gang,
                "grove.io/podclique": clique,
                "grove.io/podcliqueset-replica-index": "0",
                "nvidia.com/dynamo-graph-deployment-name": name,
            }
            own = [_pod(graph, f"{clique}-{index}", spec, labels) for index in range(replicas)]
            references = [{"namespace": graph["metadata"]["namespace"], "name": pod["metadata"]["name"]} for pod in own]
            groups.append({"name": clique, "podReferences": references, "minReplicas": replicas})
            pods += own
    # Its pods have a scheduling gate until it is there. Here they come after it.
    yield _owned(graph, "scheduler.grove.io/v1alpha1", "PodGang", gang, {}, spec={"podgroups": groups})
    yield from pods


def _cliques(gang: str, service: str, body: Manifest) -> Iterator[tuple[str, int]]:
    """Yield the cliques of a service, and how many pods each has: on several nodes, a leader and its workers."""
    nodes = body.get("multinode", {}).get("nodeCount", 1)
    if nodes == 1:
        yield f"{gang}-{service}", body["replicas"]
        return
    for index in range(body["replicas"]):
        yield f"{gang}-{service}-{index}-{service}-ldr", 1
        yield f"{gang}-{service}-{index}-{service}-wkr", nodes - 1


def _notebook(notebook: Manifest) -> Iterator[Manifest]:
    name = notebook["metadata"]["name"]
    labels = {"statefulset": name, "notebook-name": name}
    yield _replicated("StatefulSet", notebook, name, notebook["spec"]["template"]["spec"], labels)


def _workflow(workflow: Manifest) -> Iterator[Manifest]:
    """Yield the pods of all steps that run a template with a container."""
    name = workflow["metadata"]["name"]
    templates = {template["name"]: template for template in workflow["spec"]["templates"]}
    waits = {"name": "wait", "image": "argoproj/argoexec:v3.7.0"}
    labels = {"workflows.argoproj.io/workflow": name, "workflows.argoproj.io/completed": "false"}
    steps = [step for parallel in templates[workflow["spec"]["entrypoint"]]["steps"] for step in parallel]
    for number, step in enumerate(steps):
        main = {"name": "main", **templates[step["template"]]["container"]}
        spec = {
            "restartPolicy": "Never",
            "initContainers": [{**waits, "name": "init"}],
            "containers": [waits, main],
        }
        yield _pod(workflow, f"{name}-{step['template']}-{1000 + number}", spec, labels)


def _spark_application(application: Manifest) -> Iterator[Manifest]:
    """Yield the driver, and the executors, which the driver creates and owns."""
    name, spec = application["metadata"]["name"], application["spec"]
    executor, gpu = spec["executor"], spec["executor"]["gpu"]
    labels = {"sparkoperator.k8s.io/app-name": name, "spark-app-selector": f"spark-{name}", "spark-app-name": name}
    scheduler, of_driver, of_executors = {}, {}, {}
    if spec.get("batchScheduler") == "yunikorn":
        labels["queue"], scheduler["schedulerName"] = spec["batchSchedulerOptions"]["queue"], "yunikorn"
        minimums = {"spark-driver": 1, "spark-executor": executor["instances"]}
        groups = json.dumps([{"name": group, "minMember": minimum} for group, minimum in minimums.items()])
        of_driver, of_executors = ({"yunikorn.apache.org/task-group-name": group} for group in minimums)
        of_driver["yunikorn.apache.org/task-groups"] = groups
    container = {"name": "spark-kubernetes-driver", "image": spec["image"]}
    own = {**labels, "spark-role": "driver"}
    driver = _pod(application, f"{name}-driver", {"containers": [container], **scheduler}, own, **of_driver)
    yield driver
    container = {
        "name": "spark-kubernetes-executor",
        "image": spec["image"],
        "resources": {"limits": {gpu["name"]: gpu["quantity"]}},
    }
    for number in range(1, executor["instances"] + 1):
        own = {**labels, "spark-role": "executor", "spark-exec-id": str(number)}
        yield _pod(driver, f"{name}-a1b2-exec-{number}", {"containers": [container], **scheduler}, own, **of_executors)


def _volcano_job(job: Manifest) -> Iterator[Manifest]:
    name, spec = job["metadata"]["name"], job["spec"]
    group = f"{name}-{job['metadata']['uid']}"
    api_version = "scheduling.volcano.sh/v1beta1"
    body = {"minMember": spec["minAvailable"], "queue": spec["queue"]}
    yield _owned(job, api_version, "PodGroup", group, {}, spec=body)
    for task in spec["tasks"]:
        for index in range(task["replicas"]):
            labels = {"volcano.sh/job-name": name, "volcano.sh/task-spec": task["name"]}
            annotations = {"scheduling.k8s.io/group-name": group, "volcano.sh/task-spec": task["name"]}
            pod = {**task["template"]["spec"], "schedulerName": spec["schedulerName"]}
            yield _pod(job, f"{name}-{task['name']}-{index}", pod, labels, **annotations)


PLAYED: Final[Mapping[tuple[str, str], Callable[[Manifest], Iterator[Manifest]]]] = {
    ("kubeflow.org/v1", "PyTorchJob"): _pytorch_job,
    ("serving.kserve.io/v1beta1", "InferenceService"): _inference_service,
    ("apps.nvidia.com/v1alpha1", "NIMService"): _nim_service,
    ("nvidia.com/v1alpha1", "DynamoGraphDeployment"): _dynamo,
    ("resource.nvidia.com/v1beta1", "ComputeDomain"): _compute_domain,
    ("kubeflow.org/v1", "Notebook"): _notebook,
    ("argoproj.io/v1alpha1", "Workflow"): _workflow,
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication"): _spark_application,
    ("batch.volcano.sh/v1alpha1", "Job"): _volcano_job,
}
WRITTEN: Final = (("scheduler.grove.io/v1alpha1", "PodGang"), ("scheduling.volcano.sh/v1beta1", "PodGroup"))
"""Further kinds that they create."""
