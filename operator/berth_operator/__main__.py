"""`berth-operator`: start fast.

Python's cycle collector runs again and again while modules are loaded, finds nothing, and takes a fifth of the time. It
begins once the program is there (`process`).
"""

import gc
import sys
from typing import Final

COMMANDS: Final = frozenset({"advise", "simulate", "snapshot"})
"""What is not the operator, but a question of somebody's."""


def main() -> None:
    """Start the operator or its webhook, or answer a question."""
    gc.disable()
    if COMMANDS.intersection(sys.argv[1:2]):
        from berth_operator.commands import main as commands  # noqa: PLC0415 - only now

        sys.exit(commands.main(sys.argv[1:]))
    if sys.argv[1:2] == ["webhook"]:
        from berth_operator.injection import main as webhook  # noqa: PLC0415 - only now

        gc.enable()
        sys.exit(webhook.main(sys.argv[2:]))
    from berth_operator import process  # noqa: PLC0415 - only now

    process.main()


if __name__ == "__main__":
    main()
