"""Pods by name and by claim on one node while its programs are killed, upgraded and rebooted, audited from outside.

`make driver-chaos PODS=300 SEED=1` runs long, and prints its findings as JSON. `make e2e` runs a short part, whose seed
is the date. The second test injects what the audit must find.
"""

import json
import os
import random
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from berth_api.names import DRA_DRIVER
from devcluster import Arena
from devcluster.real_node import RealNode
from devcluster.real_node.node import Daemon
from devcluster.waiting import WaitError
from tests.chaos import device_auditor
from tests.chaos.node_faults import NodeFaults
from tests.node.boxes import START_SECONDS, box
from tests.node.driver_audit import Findings, audit, claim_of, has_started, leftovers, listed, real, sockets
from tests.node.stage import GPU, NULL, Stage
from tests.node.test_own_driver import by_claim, classes, give_by, own_pools, submit_by_claim
from tests.nvml.fixture import a100
from tests.programs.processes import Process

PODS: Final = int(os.environ.get("BERTH_PODS", "6"))
SEED: Final = int(os.environ.get("BERTH_SEED") or datetime.now(UTC).strftime("%Y%m%d"))
"""Of all that is drawn; printed with the findings."""
CARDS: Final = 12
"""Twice as many as pods. The card of a pod by class is withheld from the device plugin, and kubelet counts the pod as a
user of one of the other cards."""
BATCH: Final = 3
"""Pods of a round. As many may stay from earlier rounds."""
NEXT_TRY: Final = 90.0
"""Seconds after which kubelet prepares a claim again."""
REFUSED: Final = "FailedPrepareDynamicResources"
"""The Event of a pod for which kubelet's call failed."""
STUCK: Final = NEXT_TRY + 30 + START_SECONDS
ADMISSION: Final = "UnexpectedAdmissionError"
"""The reason of a pod that kubelet refused because its device plugin did not answer, or had not registered yet."""
FAILS_PODS: Final = ("agent", "checkpoint", "kubelet", "reboot")
"""What may fail a pod by name: kubelet admits a pod once, and needs the device plugin at that moment."""


class Chaos:
    """One run."""

    on_demand: frozenset[str] = frozenset()
    """UUIDs of the cards whose instances come and go with claims."""

    def __init__(self, stage: Stage, boot: Path) -> None:
        self.stage, self._boot = stage, boot
        self.patience = STUCK
        """Seconds after which what does not happen is stuck."""
        self.random = random.Random(SEED)
        self._node_faults = NodeFaults(
            stage.arena, stage.node.name, stage.machine, cdi=stage.node.cdi, draws=self.random
        )
        self.findings = Findings()
        self.counts: dict[str, int] = {}
        self._failed: set[str] = set()
        self._before = ""
        """What happened in the round before."""
        self.pods = 0
        self.faults: dict[str, Callable[[], None]] = {
            "agent": self._kill_agent,
            "checkpoint": self._damage_checkpoint,
            "kubelet": lambda: self._restart("kubelet"),
            "containerd": lambda: self._restart("containerd"),
            **self._node_faults.kinds,
            "CDI files": self._remove_cdi_files,
        }

    def round(self, what: str) -> None:
        """Start pods while something happens, compare what runs, and end some."""
        stage, old = self.stage, self.stage.agent
        mode = "claims" if what == "upgrade" else self.random.choice(["name", "claims", "both"])
        give_by(stage, None if mode == "name" else mode)
        names = [f"pod-{self.pods + number}" for number in range(BATCH)]
        ways = {name: self.random.choice(["name", "claims"]) if mode == "both" else mode for name in names}
        self.pods += BATCH
        refused = len(stage.events(REFUSED))
        if what == "upgrade":
            stage.start_agent()
            stage.agent.logged("another agent serves this node")
        stage.arena.create([self._pod(name, way) for name, way in ways.items()])
        time.sleep(self.random.uniform(0, 2))
        self.happen(what, old)
        for name in names:
            self.within(partial(self.runs, name), f"{name} ({ways[name]} of {mode}, {what}) does not run")
        self._count_failed(what)
        if what == "upgrade" and len(stage.events(REFUSED)) > refused:
            self.findings.stuck.append(f"round {self.pods // BATCH}: a call failed during an upgrade")
        audit(stage, self.findings, f"round {self.pods // BATCH} ({mode}, {what})")
        self.end(self.random.sample(sorted(stage.names()), max(0, len(stage.names()) - BATCH)))
        self.be_quiet(f"round {self.pods // BATCH} ({mode}, {what})")

    def be_quiet(self, when: str) -> None:
        """Compare the Device with what is true. Then let a card fail that no pod has, and recover."""
        self._compare(when)
        facts = real(self.stage, on_demand=self.on_demand)
        used = {card for card, what in facts if what in ("held", "claimed")}
        gpu = self.random.choice([gpu for gpu in self.stage.machine.gpus if gpu.uuid not in used])
        for has_failed in (True, False):
            self._node_faults.set(gpu, has_failed=has_failed)
            self._compare(f"{when}, {gpu.uuid} {'failed' if has_failed else 'recovered'}")

    def _compare(self, when: str) -> None:
        facts = real(self.stage, on_demand=self.on_demand)
        lies = device_auditor.lasting(lambda: device_auditor.lies(self.stage.device(), facts))
        self.findings.untrue += [f"{when}: {lie}" for lie in lies]

    def happen(self, what: str, old: Process) -> None:
        """Do what a round tests: a fault, a reboot, or the end of the old agent, for which the next one waits."""
        self.counts[what] = self.counts.get(what, 0) + 1
        if what in self.faults:
            self.faults[what]()
        elif what == "upgrade":
            assert old.stop() == 0
        elif what == "reboot":
            self._reboot()

    def end(self, names: list[str]) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            self.stage.arena.delete("pods", name)
        self.within(lambda: not set(names) & self.stage.names(), f"{names} do not go")

    def _pod(self, name: str, mode: str) -> dict[str, object]:
        stage = self.stage
        if mode == "name":
            return stage.pod(name, {GPU: "1"}, restartPolicy="Always")
        pod = box(stage.arena, name, scheduler_name=stage.arena.scheduler_name, restartPolicy="Always")
        pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
        pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
        return pod

    def runs(self, name: str) -> bool:
        """Return whether a pod runs, or has failed for good."""
        pod = self.stage.read(name)
        if pod["status"].get("phase") == "Failed" and not claim_of(pod):
            # kubelet does not admit a failed pod again.
            return True
        statuses = pod["status"].get("containerStatuses", [])
        return bool(statuses) and all("running" in status["state"] for status in statuses)

    def _count_failed(self, what: str) -> None:
        """Count pods by name that kubelet refused, and report those that nothing in this round explains."""
        for pod in self.stage.arena.list("pods"):
            name, status = pod["metadata"]["name"], pod["status"]
            if status.get("phase") != "Failed" or name in self._failed:
                continue
            self._failed.add(name)
            text = f"{name} failed ({what}): {status.get('reason')}: {status.get('message')}"
            sys.stderr.write(f"{text}\n")
            # A device plugin may register only after the pods with claims of the same round run.
            is_explained = not {what, self._before}.isdisjoint(FAILS_PODS) and status.get("reason") == ADMISSION
            if claim_of(pod) or not is_explained:
                self.findings.stuck.append(text)
            else:
                self.counts["failed"] = self.counts.get("failed", 0) + 1
        self._before = what

    def within(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, and record in the findings that it was not met in time."""
        try:
            self.stage.wait(condition, what=what, deadline=self.patience)
        except WaitError as error:
            self.findings.stuck.append(f"{what}: {error}"[:2000])

    def _kill_agent(self) -> None:
        self.stage.agent.kill()
        self.stage.start_agent()

    def _damage_checkpoint(self) -> None:
        """Kill the agent, and leave it half of its record of claims."""
        self.stage.agent.kill()
        record = self.stage.checkpoint.with_name("claims.json")
        if record.exists():
            record.write_bytes(record.read_bytes()[: record.stat().st_size // 2])
        self.stage.start_agent()

    def _remove_cdi_files(self) -> None:
        """Remove all CDI files. Containers that crash afterwards must start again."""
        stage = self.stage
        pods = {pod["metadata"]["name"]: pod for pod in stage.arena.list("pods") if has_started(pod)}
        restarts = {name: stage.restarts(name) for name in pods}
        self._node_faults.remove_cdi_files()
        time.sleep(self.random.uniform(0, 2))
        for pod in pods.values():
            os.kill(stage.node.container(pod).pid, signal.SIGKILL)
        for name, count in restarts.items():
            has_restarted = partial(self._has_restarted, name, count)
            self.within(has_restarted, f"{name} does not start again after its CDI file was removed")

    def _has_restarted(self, name: str, count: int) -> bool:
        return self.stage.restarts(name) > count and self.runs(name)

    def _restart(self, daemon: Daemon) -> None:
        """Kill kubelet or containerd, and start it again."""
        self.stage.node.kill_daemon(daemon)
        self.stage.node.start_daemon(daemon)

    def _reboot(self) -> None:
        """End all containers, empty what a reboot empties, and give the cards other minors."""
        stage = self.stage
        stage.agent.kill()
        stage.node.kill_daemon("kubelet")
        for container in stage.node.ctr("tasks", "ls", "-q").split():
            stage.node.ctr("tasks", "kill", "--all", f"--signal={signal.SIGKILL.name}", container)
        stage.node.kill_daemon("containerd")
        for file in (*stage.node.cdi.iterdir(), *(stage.node.root / "plugins_registry").iterdir()):
            file.unlink()
        self._boot.write_text(f"boot-{self.pods}")
        self.renumber()
        stage.node.start_daemon("containerd")
        stage.start_agent()
        stage.node.start_daemon("kubelet")

    def renumber(self) -> None:
        """Assign other minors to the cards, while no container runs."""
        gpus = self.stage.machine.gpus
        gpus.append(gpus.pop(0))
        for minor, gpu in enumerate(gpus):
            gpu.minor = minor
        self.stage.machine.write()


def plan(chaos: Chaos, rounds: int) -> Iterator[str]:
    """Yield what happens in each round: two upgrades and a reboot, and else the faults in turn."""
    fixed = {rounds // 4: "upgrade", rounds // 2: "reboot", 3 * rounds // 4: "upgrade"} if rounds > BATCH else {}
    faults = in_turn(chaos)
    for number in range(rounds):
        yield fixed.get(number) or next(faults)


def in_turn(chaos: Chaos) -> Iterator[str]:
    """Yield each fault once in a random order, then all again without end."""
    while True:
        yield from chaos.random.sample([*chaos.faults], len(chaos.faults))


@pytest.fixture
def stage(node: RealNode, arena: Arena, tmp_path: Path) -> Iterator[Stage]:
    """Return a node with its cards, the driver, the operator with its pools, and the files of a boot id."""
    boot = boot_file(tmp_path)
    boot.parent.mkdir(parents=True)
    boot.write_text("boot-0")
    options = {"dra": True, "dra_own_pools": True, "kubelet_folder": node.root, "resync_interval": 1.0}
    gpus = [a100(index) for index in range(CARDS)]
    with Stage(node, arena, tmp_path, gpus=gpus, proc_root=tmp_path / "proc", **options) as made, classes(arena):
        made.operator.stop()
        made.start_operator(config=own_pools(arena, tmp_path), scheduler_names=None)
        yield made
        give_by(made, None)
        made.wait(lambda: listed(made) == [], what="the slices to go")


def boot_file(folder: Path) -> Path:
    """Return the file from which the agent reads which boot this is."""
    return folder / "proc/sys/kernel/random/boot_id"


@pytest.mark.safety
@pytest.mark.timeout(240 + 30 * PODS)
def test_no_card_has_two_owners_and_nothing_is_left_whatever_is_killed(stage: Stage, tmp_path: Path) -> None:
    chaos = Chaos(stage, boot_file(tmp_path))
    sys.stderr.write(f"BERTH_SEED={SEED}\n")
    for what in plan(chaos, max(2, PODS // BATCH)):
        chaos.round(what)
        sys.stderr.write(f"{chaos.pods} pods, {what}: {chaos.findings}\n")
    if PODS > 2 * BATCH:
        # Renumbered once more, without a reboot of kubelet: an update of the GPU driver on a drained node.
        chaos.end(sorted(stage.names()))
        stage.agent.stop()
        chaos.renumber()
        stage.start_agent()
        chaos.round("nothing")
    else:
        chaos.round("upgrade")
    chaos.end(sorted(stage.names()))
    give_by(stage, "claims")
    stage.wait(lambda: len(listed(stage)) == CARDS, what="all cards in slices")
    chaos.findings.leftover += leftovers(stage)
    if PODS > 2 * BATCH:
        # As in an uninstall: the agent removes its sockets, and kubelet the slices of a driver that is gone.
        stage.agent.stop()
        assert sockets(stage) == []
        stage.wait(lambda: listed(stage) == [], what="kubelet to delete the slices")
    findings = chaos.findings
    counts = {"seed": SEED, "pods": chaos.pods, "happened": chaos.counts}
    found = {kind: len(texts) for kind, texts in vars(findings).items()}
    sys.stdout.write(
        "\n".join([*(text for texts in vars(findings).values() for text in texts), json.dumps(counts | found)]) + "\n"
    )
    assert not any(found.values()), findings


@pytest.mark.timeout(240)
def test_the_audit_finds_what_is_injected(stage: Stage, tmp_path: Path) -> None:
    chaos = Chaos(stage, boot_file(tmp_path))
    give_by(stage, "claims")
    stage.wait(lambda: len(listed(stage)) == CARDS, what="all cards in slices")
    pods = [by_claim(stage, name, stage.arena.scheduler_name) for name in ("one", "two")]
    uids = [stage.arena.get("resourceclaims", claim_of(pod))["metadata"]["uid"] for pod in pods]
    findings = chaos.findings
    audit(stage, findings, "before")
    assert findings == Findings()

    # A container gets the device node of another pod's card.
    first, second = (stage.node.container(pod) for pod in pods)
    [card] = second.devices - first.devices
    os.mknod(f"/proc/{first.pid}/root/dev/{card}", stat.S_IFCHR | 0o666, NULL)
    audit(stage, findings, "injected")
    assert [text for text in findings.double if "both have" in text]
    assert [text for text in findings.double if "one has" in text]

    # What pods that run have is left over when they have gone: CDI files, and the records of agent and kubelet.
    left = leftovers(stage)
    assert [sum(uid in text for text in left) for uid in uids] == [3, 3]
    files = {path: path.read_bytes() for path in stage.node.cdi.iterdir() if DRA_DRIVER in path.name}
    chaos.end(["one", "two"])
    assert (leftovers(stage), findings.stuck) == ([], [])
    forgotten, content = files.popitem()
    forgotten.write_bytes(content)
    assert leftovers(stage) == [forgotten.name]
    forgotten.unlink()

    # Without its driver, a pod does not start.
    stage.agent.kill()
    submit_by_claim(stage, "three", stage.arena.scheduler_name)
    chaos.patience = 3
    chaos.within(lambda: chaos.runs("three"), "three does not run")
    chaos.patience = STUCK
    stage.start_agent()
    assert [text for text in findings.stuck if "three does not run" in text]
    chaos.end(["three"])
