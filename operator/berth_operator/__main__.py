"""The entry point of `berth-operator`, written for a fast start.

Python's cycle collector would run many times while modules are loaded, find nothing, and take a fifth of the time.
`process` enables it once the program is loaded.
"""

import gc
import sys
from typing import Final

COMMANDS: Final = frozenset({"advise", "simulate", "snapshot"})
"""The commands for users (`berth_operator.commands`)."""


def main() -> None:
    """Start the operator or its webhook, or run a command."""
    gc.disable()
    if COMMANDS.intersection(sys.argv[1:2]):
        from berth_operator.commands import main as commands  # noqa: PLC0415 - only now

        sys.exit(commands.main(sys.argv[1:]))
    if sys.argv[1:2] == ["webhook"]:
        from berth_operator.webhook import main as webhook  # noqa: PLC0415 - only now

        gc.enable()
        sys.exit(webhook.main(sys.argv[2:]))
    from berth_operator import process  # noqa: PLC0415 - only now

    process.main()


if __name__ == "__main__":
    main()
