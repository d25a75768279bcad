"""Checks of Berth's programs: the leader, the agents, their versions, clocks and rights."""

import re
from collections.abc import Iterator
from typing import Final

from berth_api import names
from berth_api.objects.node_labels import has_devices
from berth_kubectl.doctor.facts import Facts, Finding, pods_of_agent
from berth_kubectl.printing.amounts import age
from berth_kubectl.reading.leases import expired_for, written
from berth_kubectl.reading.objects import Object, condition, name_of, time_of

SKEW: Final = 10.0
"""Seconds by which a clock may differ from the API server's without a finding."""
OLDEST_MINOR: Final = 30
"""Minor version of the oldest Kubernetes that is supported."""
WORKLOADS: Final = "nvidia.com/gpu.workload.config"
"""Label of Nodes by which NVIDIA's GPU Operator knows whose the cards are..."""
VIRTUAL_MACHINES: Final = ("vm-passthrough", "vm-vgpu")
"""...and its values where they are KubeVirt's, which have no driver on the node."""
OPERATOR: Final = "berth-operator"
AGENT: Final = "berth-agent"
STARTING: Final = 60.0
"""Seconds that an agent may take until it has published its Device."""
REFUSED_KEPT: Final = 900.0
"""Seconds after which a leader no longer tries a write that was refused."""
SHOWN: Final = 3
"""Namespaces that a finding names."""
_NEW_RIGHTS: Final = {OPERATOR: ("limitranges", "resourcequotas", "priorityclasses")}
"""Account -> resources that its ClusterRole of earlier versions did not allow to list, and without which it works."""
_VERSION: Final = re.compile(r"v?\d+\.\d+\.\d+([.+-].*)?")


def no_leader(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if no operator leads."""
    place = facts.installation
    lease = facts.by_name("leaderleases").get(place.lease)
    if "leaderleases" in facts.unserved:
        why = "the API server serves no leaderleases.berth.dev"
        fix = "kubectl apply -f crds/"
    else:
        silent = None if lease is None else expired_for(lease, facts.now)
        if lease is None:
            why = f"there is no LeaderLease {place.lease} in the namespace {place.namespace}: no operator has run there"
        elif not lease["spec"].get("holderIdentity"):
            why = "the last leader has released the LeaderLease, and no other has taken it"
        elif silent is not None:
            why = f"the leader has not renewed the LeaderLease for {age(silent)}"
        else:
            hindrance = (lease["metadata"].get("annotations") or {}).get(names.HINDRANCE, "")
            why = f"the API server does not accept the Bindings of the leader ({hindrance})" if hindrance else ""
        fix = f"kubectl logs -n {place.namespace} -l app.kubernetes.io/name={OPERATOR} --prefix --tail=50"
    if why:
        name = f"leaderlease/{place.lease}"
        yield Finding(check="NoLeader", object=name, message=f"{why}: no pod of Berth is bound", fix=fix)


def earlier_state(facts: Facts) -> Iterator[Finding]:
    """Yield a finding if the API server has recently shown an earlier state than before."""
    place = facts.installation
    lease = facts.by_name("leaderleases").get(place.lease, {})
    if times := ((lease.get("metadata") or {}).get("annotations") or {}).get(names.EARLIER_STATES):
        why = "etcd was restored from a copy" if times == "1" else "API servers disagree"
        yield Finding(
            check="EarlierState",
            object=f"leaderlease/{place.lease}",
            message=f"{why}: the API server has recently shown an earlier state ({times} times); Berth binds no pods "
            "until it agrees with itself, and then lists everything again",
            fix="kubectl get --raw /readyz?verbose   # on each API server; all must use one etcd (docs/backup.md)",
        )


def lost_places(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each node where no pods are preempted for someone, because freed places were lost."""
    for lost in facts.record.get("lostPlaces") or ():
        until, takers, node = time_of(lost.get("until", "")), lost.get("takers"), lost.get("node")
        if not lost.get("count") or until is None or until <= facts.now:
            continue
        preemptor = str(lost["preemptor"])
        match preemptor.split("/"):
            case [_, namespace, kind, name]:
                preemptor = f"{kind} {namespace}/{name}"  # without the UID of a controller
        taken, hint = "lost", "see why its victims do not end, or why its pods fail"
        if takers:
            taken, hint = f"taken by pods of {' and '.join(takers)}", "keep the other scheduler off the node"
        yield Finding(
            check="LostPlaces",
            object=f"node/{node}" if node else f"leaderlease/{facts.installation.lease}",
            message=f"{lost['count']} times the place freed for {preemptor} was {taken}: no pods are "
            f"preempted for it {'there' if node else 'anywhere'} before {lost['until']}",
            fix=f"kubectl get events -A --field-selector reason=Preempted   # {hint}",
        )


def refused_writes(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each group of writes of the leader that the API server refuses until a person acts."""
    place = facts.installation
    for refused in facts.record.get("refusedWrites") or ():
        last, since = time_of(refused.get("last", "")), time_of(refused.get("since", ""))
        if last is None or since is None or (facts.now - last).total_seconds() > REFUSED_KEPT:
            continue
        named, refuser = refused.get("namespaces") or (), str(refused.get("refuser") or "")
        kind, _, name = refuser.partition("/")
        where = f", in {', '.join(named[:SHOWN])}" if named else ""
        where += " and more" if len(named) > SHOWN else ""
        shown = f", such as {refused['object']}" if refused.get("object") else ""
        if kind == "webhook":
            configurations = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
            fix = f"kubectl get {configurations} -o yaml | grep -n -B30 {name}   # let it accept this write"
        elif kind == "authorization":
            fix = "kubectl apply -k manifests/base   # or `helm upgrade` of the release"
        elif kind:
            fix = f"kubectl get {kind} {name} -o yaml   # let it accept this write"
        else:
            fix = f"kubectl logs -n {place.namespace} -l app.kubernetes.io/name={OPERATOR} --prefix --tail=50"
        yield Finding(
            check="RefusedWrites",
            object=refuser or "apiserver",
            message=f"for {age((facts.now - since).total_seconds())}, the API server has refused to {refused['verb']} "
            f"{refused['resource']} ({refused['code']}){where}{shown}: {refused['message']}",
            fix=fix,
        )


def silent_agent(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each Device whose agent does not renew its Lease."""
    leases, nodes, agents = facts.by_name("leases"), facts.by_name("nodes"), _running_agents(facts)
    for device in facts.all_of("devices"):
        name = name_of(device)
        lease = leases.get(name)
        silent = 0.0 if lease is None else expired_for(lease, facts.now)
        if silent is None:
            continue
        why = "has no Lease" if lease is None else f"has not been renewed for {age(silent)}"
        node, state = nodes.get(name), ""
        if node is None:
            state = ", and there is no Node of this name"
        elif condition(node, "Ready").get("status") != "True":
            state = ", and the Node is not ready"
        elif name in agents:
            state = f", although its pod {agents[name]} runs; the API server may refuse its writes"
        subject = "the agent of the node" if lease is None else "the Lease of the agent"
        yield Finding(
            check="SilentAgent",
            object=f"node/{name}",
            message=f"{subject} {why}{state}: nothing is allocated there; pods keep what they hold",
            fix=_log_of(facts, agents[name]) if name in agents else pods_of_agent(facts, name),
        )


def no_agent(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each Node that seems to have GPUs, and has no Device and no running agent."""
    agents = _running_agents(facts)
    for name, why in _without_device(facts):
        if name not in agents:
            yield Finding(
                check="NoAgent",
                object=f"node/{name}",
                message=f"the Node {why} and has no Device: no agent has reported its GPUs",
                fix=pods_of_agent(facts, name),
            )


def no_device(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each Node that seems to have GPUs, and whose agent runs and publishes no Device."""
    agents = _running_agents(facts)
    for name, why in _without_device(facts):
        if name in agents:
            yield Finding(
                check="NoDevice",
                object=f"node/{name}",
                message=f"the Node {why} and has no Device, although the agent's pod {agents[name]} runs there: "
                "the API server may refuse its writes",
                fix=_log_of(facts, agents[name]),
            )


def _running_agents(facts: Facts) -> dict[str, str]:
    """Return the pods of agents that have run for a while, by their nodes."""
    agents = {}
    for pod in facts.all_of("agents"):
        status = pod.get("status") or {}
        started = time_of(str(status.get("startTime") or ""))
        is_old = started is not None and (facts.now - started).total_seconds() >= STARTING
        if status.get("phase") == "Running" and is_old and not pod["metadata"].get("deletionTimestamp"):
            agents[str(pod["spec"].get("nodeName") or "")] = name_of(pod)
    return agents


def _log_of(facts: Facts, pod: str) -> str:
    return f"kubectl logs -n {facts.installation.agent_namespace} {pod} --tail=50   # names what refuses its writes"


def _without_device(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield each Node that seems to have GPUs and has no Device, and why it seems so."""
    reported = facts.by_name("devices")
    for node in facts.all_of("nodes"):
        name = name_of(node)
        labels = node["metadata"].get("labels") or {}
        offered = (node.get("status") or {}).get("capacity") or {}
        plugin = next((name for name in offered if name.startswith(names.NVIDIA_PREFIX) and offered[name] != "0"), "")
        if name not in reported and (plugin or has_devices(labels)) and labels.get(WORKLOADS) not in VIRTUAL_MACHINES:
            yield name, f"offers {plugin}" if plugin else "has a label of nodes with GPUs"


def clock_skew(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each leader or agent whose clock differs from the API server's."""
    for kind, prefix in (("leaderleases", "leaderlease"), ("leases", "node")):
        for lease in facts.all_of(kind):
            renewed, moment = time_of(str(lease["spec"].get("renewTime") or "")), written(lease)
            if renewed is None or moment is None or not lease["metadata"].get("managedFields"):
                continue
            skew = (renewed - moment).total_seconds()
            if abs(skew) > SKEW:
                yield Finding(
                    check="ClockSkew",
                    object=f"{prefix}/{name_of(lease)}",
                    message=f"the clock of {lease['spec'].get('holderIdentity') or name_of(lease)} is {age(abs(skew))} "
                    f"{'ahead of' if skew > 0 else 'behind'} the API server's: tokens and certificates may be refused",
                    fix="timedatectl status   # on that machine, and on the API server's",
                )


def version_skew(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each version that does not go with the others."""
    place = facts.installation
    operator = _version(facts.by_name("deployments").get(OPERATOR))
    agent = _version(facts.by_name("daemonsets").get(AGENT))
    if operator and agent and operator != agent:
        fix = f"kubectl rollout status -n {place.agent_namespace} daemonset/{AGENT}   # then upgrade the older program"
        message = f"the operator has the version {operator}, the agents {agent}"
        yield Finding(check="VersionSkew", object=f"daemonset/{AGENT}", message=message, fix=fix)
    if operator and facts.version and operator != facts.version:
        message = f"the operator has the version {operator}, this program {facts.version}"
        fix = f"kubectl krew upgrade berth   # or upgrade the Deployment {OPERATOR}"
        yield Finding(check="VersionSkew", object=f"deployment/{OPERATOR}", message=message, fix=fix)
    if facts.minor is not None and facts.minor < OLDEST_MINOR:
        message = f"Kubernetes 1.{facts.minor} is too old: Berth needs 1.{OLDEST_MINOR}, for the policies of the fence"
        yield Finding(check="VersionSkew", object="apiserver", message=message, fix="kubectl version")


def _version(workload: Object | None) -> str:
    """Return the version in the tag of a workload's image; empty if there is none."""
    if workload is None:
        return ""
    image = str(workload["spec"]["template"]["spec"]["containers"][0].get("image") or "")
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    return tag.removeprefix("v") if _VERSION.fullmatch(tag) else ""


def _may_list(rule: Object, resource: str) -> bool:
    """Return whether a rule allows to list a resource, of whatever group."""
    resources, verbs = rule.get("resources", ()), rule.get("verbs", ())
    return (resource in resources or "*" in resources) and ("list" in verbs or "*" in verbs)


def missing_rights(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for each account of Berth without its ClusterRole, or with one of an earlier version."""
    place, roles = facts.installation, facts.by_name("clusterroles")
    for account, namespace in ((OPERATOR, place.namespace), (AGENT, place.agent_namespace)):
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        bound = [
            binding["roleRef"]["name"]
            for binding in facts.all_of("clusterrolebindings")
            if any(subject.items() <= named.items() for named in binding.get("subjects") or ())
        ]
        if account in bound and account in roles:
            rules = [rule for name in bound if name in roles for rule in roles[name].get("rules") or ()]
            lacking = [
                kind for kind in _NEW_RIGHTS.get(account, ()) if not any(_may_list(rule, kind) for rule in rules)
            ]
            if lacking:
                yield Finding(
                    check="MissingRights",
                    object=f"serviceaccount/{account}",
                    message=f"the ClusterRole {account} is of an earlier version and does not allow to list "
                    f"{', '.join(lacking)}: no pods are evicted for pods that controllers create later",
                    fix="kubectl apply -k manifests/base   # or `helm upgrade` of the release",
                )
            continue
        lacks = (
            f"the ClusterRole {account}"
            if account not in roles
            else f"a ClusterRoleBinding to the ClusterRole {account}"
        )
        yield Finding(
            check="MissingRights",
            object=f"serviceaccount/{account}",
            message=f"the account {namespace}/{account} lacks {lacks}: the API server refuses its requests",
            fix="kubectl apply -k manifests/base   # or `helm upgrade` of the release",
        )
