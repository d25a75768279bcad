"""All checks, the data that each check needs, and the diagnosis."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from berth_kubectl.doctor import claim_driver, cluster, devices, labels, programs, rejected, reservations, waiting
from berth_kubectl.doctor.facts import Facts, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question about an installation."""

    name: str
    needs: tuple[str, ...]
    """The lists that it reads."""
    find: Callable[[Facts], Iterator[Finding]]


CHECKS: Final = (
    Check(name="NoLeader", needs=("leaderleases",), find=programs.no_leader),
    Check(name="EarlierState", needs=("leaderleases",), find=programs.earlier_state),
    Check(name="LostPlaces", needs=("leaderleases",), find=programs.lost_places),
    Check(name="RefusedWrites", needs=("leaderleases",), find=programs.refused_writes),
    Check(name="RejectedPods", needs=("failed",), find=rejected.rejected_pods),
    Check(name="SilentAgent", needs=("devices", "leases", "nodes", "agents"), find=programs.silent_agent),
    Check(name="FailedDevice", needs=("devices",), find=devices.failed_device),
    Check(name="ExceededShare", needs=("devices",), find=devices.exceeded_share),
    Check(name="CardNotHeld", needs=("devices",), find=devices.card_not_held),
    Check(name="OtherManager", needs=("devices",), find=devices.other_manager),
    Check(name="SlicesOfOneCard", needs=("devices", "sliced"), find=devices.slices_of_one_card),
    Check(name="FalseCondition", needs=("devices",), find=devices.false_condition),
    Check(name="NoAgent", needs=("devices", "nodes", "agents"), find=programs.no_agent),
    Check(name="NoDevice", needs=("devices", "nodes", "agents"), find=programs.no_device),
    Check(name="OldDefinitions", needs=("customresourcedefinitions",), find=cluster.old_definitions),
    Check(
        name="MissingPolicy",
        needs=(
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "mutatingadmissionpolicies",
            "mutatingadmissionpolicybindings",
            "mutatingwebhookconfigurations",
        ),
        find=cluster.missing_policy,
    ),
    Check(
        name="UnreachableWebhook",
        needs=("mutatingwebhookconfigurations", "validatingwebhookconfigurations", "services", "endpointslices"),
        find=cluster.unreachable_webhook,
    ),
    Check(name="UnreachableApi", needs=("apiservices",), find=cluster.unreachable_api),
    Check(name="NoTaintRules", needs=("clusterroles",), find=cluster.no_taint_rules),
    Check(name="SharedPool", needs=("resourceclaims",), find=cluster.shared_pool),
    Check(name="NoClaimDriver", needs=("devices", "nodes"), find=claim_driver.no_claim_driver),
    Check(name="StaleSlices", needs=("devices", "nodes", "resourceslices"), find=claim_driver.stale_slices),
    Check(name="CdiNotRead", needs=("nodes", "starting"), find=claim_driver.cdi_not_read),
    Check(name="OtherDevicePlugin", needs=("devices", "pods"), find=cluster.other_device_plugin),
    Check(name="MissingCapacity", needs=("devices", "nodes"), find=cluster.missing_capacity),
    Check(name="NoMps", needs=("nodes",), find=cluster.no_mps),
    Check(name="WithoutEffect", needs=labels.READ, find=labels.without_effect),
    Check(name="OtherScheduler", needs=("waiting",), find=waiting.other_scheduler),
    Check(name="NoScheduler", needs=("waiting", "bound"), find=waiting.no_scheduler),
    Check(name="OtherVendor", needs=("waiting",), find=waiting.other_vendor),
    Check(name="UncountedGpus", needs=("resourcequotas",), find=cluster.uncounted_gpus),
    Check(name="KeptPlaces", needs=("leaderleases",), find=reservations.kept_places),
    Check(name="IdleReservation", needs=("leaderleases", "waiting"), find=reservations.idle_reservation),
    Check(name="VersionSkew", needs=("deployments", "daemonsets"), find=programs.version_skew),
    Check(name="ClockSkew", needs=("leaderleases", "leases"), find=programs.clock_skew),
    Check(name="MissingRights", needs=("clusterroles", "clusterrolebindings"), find=programs.missing_rights),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is wrong, and what could not be checked."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    not_checked: dict[str, str]
    """Name of a check -> why."""

    @property
    def body(self) -> dict[str, Any]:
        """Return the diagnosis for JSON and YAML."""
        listed = [
            {"check": finding.check, "object": finding.object, "message": finding.message, "fix": finding.fix}
            for finding in self.findings
        ]
        not_checked = [{"check": name, "reason": why} for name, why in self.not_checked.items()]
        return {"kind": "Diagnosis", "findings": listed, "checked": list(self.checked), "notChecked": not_checked}


def diagnose(facts: Facts) -> Diagnosis:
    """Return what is wrong with what was read."""
    not_checked = {
        check.name: "; ".join(dict.fromkeys(facts.unread[name] for name in check.needs if name in facts.unread))
        for check in CHECKS
        if any(name in facts.unread for name in check.needs)
    }
    done = [check for check in CHECKS if check.name not in not_checked]
    return Diagnosis(
        findings=tuple(finding for check in done for finding in check.find(facts)),
        checked=tuple(check.name for check in done),
        not_checked=not_checked,
    )
