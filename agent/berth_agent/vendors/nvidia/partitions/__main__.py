"""`python -m berth_agent.vendors.nvidia.partitions`: the privileged process that makes and destroys MIG instances."""

import argparse
import contextlib
import signal
import sys
import time
from pathlib import Path

import structlog

from berth_agent.boot import boot_id
from berth_agent.vendors.nvidia.partitions.keeper import PartitionKeeper
from berth_agent.vendors.nvidia.partitions.record import PartitionRecord, wait_for_turn
from berth_agent.vendors.nvidia.partitions.server import PartitionServer
from berth_base import logs, start

NAME = "berth-partitions"


def main() -> None:
    """Roll back what a crash has left, and serve until the process is ended. Calls can be broken off at any point."""
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder of the record; it must outlive the pod")
    parser.add_argument("--socket", type=Path, required=True, help="folder of the socket, which only the agent mounts")
    parser.add_argument("--nvml-library", type=Path, help="path of libnvidia-ml.so.1, if the linker does not find it")
    parser.add_argument("--proc", type=Path, default=Path("/proc"), help="where the host's /proc is")
    options = parser.parse_args()
    # The kernel ignores the signal for the first process of a container unless there is a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    logs.configure(form="json", level="info")
    boot = boot_id(options.proc)
    if not boot:
        start.give_up(
            NAME,
            f"{options.proc}/sys/kernel/random/boot_id is missing, so instances of an earlier boot would count as ours",
        )
    try:
        turn = wait_for_turn(options.state, sleep=time.sleep)
        keeper = PartitionKeeper(
            PartitionRecord(options.state),
            boot=boot,
            library_path=options.nvml_library,
            sleep=time.sleep,
        )
        for key, problem in keeper.recover().items():
            structlog.get_logger().error("a partition that a crash left could not be destroyed", key=key, error=problem)
        server = PartitionServer(keeper, folder=options.socket)
    except OSError as error:
        start.give_up(NAME, str(error))
    while True:
        server.serve_one()
        with contextlib.suppress(OSError):
            # Another program may have removed its file.
            turn.take()


if __name__ == "__main__":
    main()
