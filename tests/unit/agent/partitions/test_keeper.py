"""The keeper on the simulated NVML: killed between each two calls, with foreign instances, in use, over its socket."""

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from berth_agent.vendor import Placement, RefusedError
from berth_agent.vendors.nvidia.nvml import library, mig
from berth_agent.vendors.nvidia.nvml.library import NvmlError
from berth_agent.vendors.nvidia.partitions.keeper import IN_USE_TRIES, PartitionKeeper
from berth_agent.vendors.nvidia.partitions.record import LOCK, PartitionRecord, wait_for_turn
from berth_agent.vendors.nvidia.partitions.server import NAME, PartitionServer
from tests.nvml import mig_profiles
from tests.nvml.fixture import Gpu, NvmlFixture, Process, a100, h100, with_profiles
from tests.nvml.probe import Machine
from tests.unit.agent.dra.test_preparation import no_room

KEY: Final = "claim-1/gpu"
HALF: Final = Placement(profile=9, start=4, size=4)
SMALL: Final = Placement(profile=19, start=1, size=1)
MAKING: Final = 3
"""Calls that change something: the mode, the GPU instance, the compute instance."""
DESTROYING: Final = 2


def card() -> Gpu:
    return with_profiles(h100(), mig_profiles.H100_80)


def keeper(
    fixture: NvmlFixture, *, boot: str = "boot-1", sleep: Callable[[float], object] = lambda _: None
) -> PartitionKeeper:
    record = PartitionRecord(fixture.folder / "record")
    return PartitionKeeper(record, boot=boot, library_path=fixture.library, sleep=sleep)


def make(fixture: NvmlFixture, placement: Placement = HALF, key: str = KEY, **settings: Any) -> str:
    return keeper(fixture, **settings).make(key, card=fixture.gpus[0].uuid, placement=placement)


def foreign(fixture: NvmlFixture, placement: Placement, *, complete: bool = True) -> None:
    """Make an instance as nvidia-smi does."""
    library.load(fixture.library)
    library.open_session()
    handle = library.card(0)
    if not library.mig_enabled(handle):
        mig.set_mode(handle, on=True)
    mig.create_gpu_instance(handle, placement.profile, start=placement.start, size=placement.size)
    (profile,) = (profile for profile in mig.profiles(handle) if profile.id == placement.profile)
    if complete:
        mig.create_whole_compute_instance(mig.gpu_instances(handle, profile)[0], slices=profile.slices)
    library.close_session()


def places(fixture: NvmlFixture) -> list[tuple[int, int, int]]:
    """Return profile, start and number of compute instances of what is on the card."""
    return sorted((made.profile, made.start, len(made.computes)) for made in fixture.gpu_instances(0))


def killed(work: Callable[[], object], crash: str) -> bool:
    """Run a function in another process that is killed at a call, and return whether it was."""
    child = os.fork()
    if not child:
        try:
            os.environ["BERTH_NVML_CRASH"] = crash
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


CRASHES: Final = [f"{number}{when}" for number in range(1, MAKING + 1) for when in ("", "+")]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_partition_that_was_not_complete_is_rolled_back(machine: Machine, crash: str) -> None:
    fixture = machine(card())
    assert killed(lambda: make(fixture), crash)
    assert keeper(fixture).recover() == {}
    assert places(fixture) == []
    assert make(fixture).startswith("MIG-")
    assert places(fixture) == [(9, 4, 1)]


@pytest.mark.parametrize("crash", CRASHES)
def test_a_partition_that_was_not_complete_is_completed_by_the_next_call(machine: Machine, crash: str) -> None:
    fixture = machine(card())
    assert killed(lambda: make(fixture), crash)
    assert make(fixture) == make(fixture)
    assert places(fixture) == [(9, 4, 1)]


@pytest.mark.parametrize("crash", CRASHES[: 2 * DESTROYING])
def test_a_partition_that_was_not_destroyed_is_destroyed_at_the_next_start(machine: Machine, crash: str) -> None:
    fixture = machine(card())
    foreign(fixture, SMALL)
    make(fixture)
    assert killed(lambda: keeper(fixture).destroy(KEY), crash)
    assert keeper(fixture).recover() == {}
    assert places(fixture) == [(19, 1, 1)]
    keeper(fixture).destroy(KEY)


def test_foreign_instances_are_refused_and_never_destroyed(machine: Machine) -> None:
    fixture = machine(card())
    foreign(fixture, Placement(profile=14, start=4, size=2), complete=False)
    with pytest.raises(RefusedError, match="GPU instance 5 occupies memory slice 4"):
        make(fixture)
    assert len(PartitionRecord(fixture.folder / "record")) == 0
    with pytest.raises(RefusedError, match=r"has GPU instances: \[5\]"):
        keeper(fixture).clear(fixture.gpus[0].uuid)
    with pytest.raises(RefusedError, match="no GPU instances like"):
        make(fixture, replace(HALF, start=2))
    keeper(fixture).destroy("another")
    assert places(fixture) == [(14, 4, 0)]


def test_a_whole_card_is_one_without_mode_and_partitions(machine: Machine) -> None:
    fixture = machine(card())
    make(fixture)
    make(fixture, SMALL, key="claim-2/gpu")
    (described,) = keeper(fixture).list()["cards"]
    owners = {instance["start"]: instance["key"] for instance in described["instances"]}
    assert (described["mig"], owners) == (True, {4: KEY, 1: "claim-2/gpu"})
    for key in (KEY, "claim-2/gpu"):
        keeper(fixture).destroy(key)
    keeper(fixture).clear(fixture.gpus[0].uuid)
    (described,) = keeper(fixture).list()["cards"]
    assert (described["mig"], described["instances"], len(described["profiles"])) == (False, [], 7)


def test_what_is_in_use_is_tried_again_and_its_holder_is_named(machine: Machine) -> None:
    fixture = machine(card())
    make(fixture)
    fixture.gpus[0].processes = [Process(pid=4711, used=1, gpu_instance=2, compute_instance=0)]
    fixture.write()
    with pytest.raises(RefusedError, match=r"GPU instance 2 of .* is in use by the processes \[4711\]"):
        keeper(fixture).destroy(KEY)
    # Another pod may have the claim by now, so the next start must not destroy it.
    fixture.gpus[0].processes = []
    fixture.write()
    assert keeper(fixture).recover() == {}
    assert places(fixture) == [(9, 4, 1)]
    fixture.gpus[0].processes = [Process(pid=4711, used=1, gpu_instance=2, compute_instance=0)]
    fixture.write()
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            fixture.gpus[0].processes = []
            fixture.write()

    keeper(fixture, sleep=sleep).destroy(KEY)
    assert (len(pauses), places(fixture)) == (3, [])


@pytest.mark.parametrize("is_making", [True, False])
def test_a_mode_that_is_in_use_is_tried_again_and_its_holder_is_named(machine: Machine, *, is_making: bool) -> None:
    fixture = machine(card())
    uuid = fixture.gpus[0].uuid
    if not is_making:
        make(fixture)
        keeper(fixture).destroy(KEY)

    def use(*processes: Process) -> None:
        fixture.gpus[0].processes = list(processes)
        fixture.write()

    def change(sleep: Callable[[float], object]) -> None:
        if is_making:
            make(fixture, sleep=sleep)
        else:
            keeper(fixture, sleep=sleep).clear(uuid)

    use(Process(pid=4711, used=1))
    pauses: list[float] = []
    with pytest.raises(RefusedError, match=rf"^{uuid} is in use by the processes \[4711\]$"):
        change(pauses.append)
    assert 0 < len(pauses) <= IN_USE_TRIES
    change(lambda _: use())
    (described,) = keeper(fixture).list()["cards"]
    assert (described["mig"], len(described["instances"])) == (is_making, is_making)


def test_a_card_that_is_lost_or_removed_keeps_no_other_from_its_partitions(machine: Machine) -> None:
    fixture = machine(card(), with_profiles(h100(1), mig_profiles.H100_80))
    first, second = (gpu.uuid for gpu in fixture.gpus)
    make(fixture)
    fixture.lose(0)
    keeper(fixture).make("claim-2/gpu", card=second, placement=HALF)
    listed = keeper(fixture).list()
    assert [described["card"] for described in listed["cards"]] == [second]
    assert listed["problems"] == ["card 0: GPU is lost"]
    keeper(fixture).destroy("claim-2/gpu")
    with pytest.raises(RefusedError, match=rf"^{first} is not on this node, does not answer, or has no MIG$"):
        keeper(fixture).clear(first)
    keeper(fixture).destroy(KEY)
    assert len(PartitionRecord(fixture.folder / "record")) == 1
    fixture.reboot()
    fixture.remove(0)
    assert keeper(fixture, boot="boot-2").recover() == {}
    assert len(PartitionRecord(fixture.folder / "record")) == 0


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_partition_of_a_lost_card_is_destroyed_when_the_card_answers_again(
    machine: Machine, *, is_lost: bool
) -> None:
    """The card has fallen off the bus, or answers only some calls."""
    fixture = machine(card())
    make(fixture)
    if is_lost:
        fixture.lose(0)
    else:
        fixture.fail(0, "nvmlDeviceGetGpuInstances")
    keeper(fixture).destroy(KEY)
    listed = keeper(fixture).list()
    assert (listed["cards"], len(listed["problems"])) == ([], 1)
    fixture.restore(0)
    fixture.gpus[0].fails.clear()
    fixture.write()
    (described,) = keeper(fixture).list()["cards"]
    assert [instance["key"] for instance in described["instances"]] == [KEY]
    keeper(fixture).destroy(KEY)
    assert (places(fixture), len(PartitionRecord(fixture.folder / "record"))) == ([], 0)


def test_a_partition_that_a_reset_ended_does_not_pass_for_the_next_one_there(machine: Machine) -> None:
    fixture = machine(card())
    make(fixture)
    fixture.lose(0)
    # Its pod must be able to end.
    keeper(fixture).destroy(KEY)
    fixture.reset(0)
    fixture.restore(0)
    later = "claim-2/gpu"
    device = make(fixture, key=later)
    assert keeper(fixture).recover() == {}
    assert places(fixture) == [(9, 4, 1)]
    keeper(fixture).destroy(KEY)
    assert make(fixture, key=later) == device
    (listed,) = keeper(fixture).list()["cards"]
    assert [instance["key"] for instance in listed["instances"]] == [later]


def test_one_process_has_the_record(tmp_path: Path) -> None:
    first = wait_for_turn(tmp_path, sleep=lambda _: pytest.fail("the lock is free"))
    pauses = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            first.release()

    second = wait_for_turn(tmp_path, sleep=sleep)
    assert (len(pauses), [file.name for file in tmp_path.iterdir()]) == (2, [LOCK])
    second.release()


def test_after_a_boot_partitions_are_made_again_whatever_the_minors(machine: Machine) -> None:
    fixture = machine(card(), with_profiles(h100(1), mig_profiles.H100_80))
    make(fixture)
    make(fixture, SMALL, key="claim-2/gpu")
    fixture.reboot(minors=[1, 0])
    foreign(fixture, HALF)
    after = keeper(fixture, boot="boot-2")
    assert after.recover() == {}
    assert places(fixture) == [(9, 4, 1)]
    make(fixture, SMALL, key="claim-2/gpu", boot="boot-2")
    assert places(fixture) == [(9, 4, 1), (19, 1, 1)]


def test_what_was_made_before_a_boot_is_forgotten_without_the_driver(machine: Machine) -> None:
    fixture = machine(card())
    make(fixture)
    fixture.reboot()
    record = PartitionRecord(fixture.folder / "record")
    absent = fixture.folder / "absent.so"
    assert PartitionKeeper(record, boot="boot-2", library_path=absent, sleep=lambda _: None).recover() == {}
    assert len(PartitionRecord(fixture.folder / "record")) == 0


def test_before_hopper_the_administrator_turns_the_mode_on(machine: Machine) -> None:
    fixture = machine(with_profiles(a100(), mig_profiles.A100_80))
    with pytest.raises(RefusedError, match="needs a reset"):
        make(fixture)
    machine(replace(fixture.gpus[0], mig_mode=True, mig_pending=True))
    make(fixture)
    keeper(fixture).destroy(KEY)
    with pytest.raises(RefusedError, match="to turn it off, the card needs a reset"):
        keeper(fixture).clear(fixture.gpus[0].uuid)


def test_a_damaged_record_makes_nothing_ours(machine: Machine) -> None:
    fixture = machine(card())
    make(fixture)
    (fixture.folder / "record/partitions.json").write_text("{")
    assert keeper(fixture).recover() == {}
    keeper(fixture).destroy(KEY)
    assert places(fixture) == [(9, 4, 1)]
    assert (fixture.folder / "record/partitions.json.rejected").read_text() == "{"


@pytest.mark.parametrize("content", [None, "", "{"])
def test_a_record_that_another_program_removed_or_damaged_is_written_again(
    machine: Machine, content: str | None
) -> None:
    """After the next start, the instances would be foreign, and stay on their card."""
    fixture = machine(card())
    record = fixture.folder / "record/partitions.json"
    running = keeper(fixture)
    running.make(KEY, card=fixture.gpus[0].uuid, placement=HALF)
    shutil.rmtree(record.parent)
    if content is not None:
        record.parent.mkdir()
        record.write_text(content)
    with no_room():
        assert any("the record of partitions is not on the disk" in problem for problem in running.list()["problems"])
    assert running.list()["problems"] == []
    keeper(fixture).destroy(KEY)
    assert places(fixture) == []


@pytest.mark.parametrize(
    ("function", "left"),
    [
        ("nvmlDeviceSetMigMode", []),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", []),
        ("nvmlGpuInstanceCreateComputeInstance", [(9, 4, 0)]),
    ],
)
def test_a_call_that_fails_is_named_with_its_card_and_profile(
    machine: Machine, function: str, left: list[tuple[int, int, int]]
) -> None:
    """NVML itself says no more than "Unknown Error"."""
    fixture = machine(card())
    fixture.fail(0, function)
    uuid = fixture.gpus[0].uuid
    with pytest.raises(NvmlError, match=f"^{function} failed for 3g.40gb at memory slice 4 of {uuid}: Unknown Error$"):
        make(fixture)
    assert places(fixture) == left
    fixture.gpus[0].fails.clear()
    fixture.write()
    make(fixture)
    for destroying in ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"):
        fixture.fail(0, destroying)
        with pytest.raises(NvmlError, match=f"^{destroying} failed for 3g.40gb at memory slice 4 of {uuid}: Unknown"):
            keeper(fixture).destroy(KEY)
        fixture.gpus[0].fails.clear()
        fixture.write()
    keeper(fixture).destroy(KEY)
    fixture.fail(0, "nvmlDeviceSetMigMode")
    with pytest.raises(NvmlError, match=f"^nvmlDeviceSetMigMode failed for {uuid}: Unknown Error$"):
        keeper(fixture).clear(uuid)


def test_a_full_disk_makes_no_instance_that_is_not_recorded(machine: Machine) -> None:
    fixture = machine(card())
    with no_room(), pytest.raises(OSError, match="too large"):
        make(fixture)
    assert places(fixture) == []
    make(fixture)
    with no_room(), pytest.raises(OSError, match="too large"):
        keeper(fixture).destroy(KEY)
    keeper(fixture).destroy(KEY)
    assert places(fixture) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_may_not_call_even_if_the_socket_is_open(machine: Machine, tmp_path: Path) -> None:
    fixture = machine(card())
    server = PartitionServer(keeper(fixture), folder=tmp_path / "socket")
    (tmp_path / "socket").chmod(0o755)
    (tmp_path / "socket" / NAME).chmod(0o666)
    reader, writer = os.pipe()
    if not os.fork():
        try:
            os.chdir(tmp_path / "socket")  # the folders above it are closed to others
            os.seteuid(65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(NAME)
                client.sendall(b'{"call": "list"}\n' * 500)
                client.shutdown(socket.SHUT_WR)
                os.write(writer, b"".join(iter(lambda: client.recv(4096), b"")))
        finally:
            os._exit(0)
    os.close(writer)
    try:
        server.serve_one()
        assert json.loads(os.read(reader, 4096)) == {"error": "user 65534 may not call"}
    finally:
        server.close()
        os.wait()
        os.close(reader)


def test_the_socket_answers_each_call(machine: Machine, tmp_path: Path) -> None:
    fixture = machine(card())
    server = PartitionServer(keeper(fixture), folder=tmp_path / "socket")

    def ask(line: bytes) -> dict[str, Any]:
        thread = threading.Thread(target=server.serve_one)
        thread.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(tmp_path / "socket" / NAME))
            client.sendall(line)
            if not line.endswith(b"\n"):
                client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        thread.join()
        return dict(json.loads(answer))

    def call(**fields: Any) -> dict[str, Any]:
        return ask(json.dumps(fields).encode() + b"\n")

    try:
        made = call(call="make", key=KEY, card=fixture.gpus[0].uuid, profile=9, start=4, size=4)
        assert made["device"].startswith("MIG-")
        assert [instance["key"] for instance in call(call="list")["cards"][0]["instances"]] == [KEY]
        assert "has GPU instances" in call(call="clear", card=fixture.gpus[0].uuid)["error"]
        assert call(call="destroy", key=KEY) == {}
        assert "error" in call(call="destroy", key="../x y")
        assert "error" in call(call="make", key=KEY, card="GPU-1", profile=9, start=4, size=4)
        assert "no whole line" in ask(b"{")["error"]
        assert "at most 4096" in ask(b"x" * 5000 + b"\n")["error"]
        assert places(fixture) == []
    finally:
        server.close()
