"""The entry point of `berth-operator`, written for a fast start.

While modules are loaded, Python's cycle collector would run many times, find nothing, and take a fifth of the time.
`operate` enables the collector once the program is loaded.
"""

import gc
import sys
from typing import Final

NAME: Final = "berth-operator"
COMMANDS: Final = ("advise", "defragment", "migrate", "simulate", "snapshot")
"""The commands for users (`berth_operator.commands`)."""
WEBHOOK: Final = "webhook"
API: Final = "api"
CLEANUP: Final = "cleanup"
CRDS: Final = "crds"


def main() -> None:
    """Start the operator, its webhook or its list and watch API, or run a command or the cleanup."""
    gc.disable()
    command = next(iter(sys.argv[1:2]), "")
    if command in COMMANDS:
        from berth_operator.commands import main as commands  # noqa: PLC0415 - only now

        sys.exit(commands.main(sys.argv[1:]))
    if command == WEBHOOK:
        from berth_operator.apis.webhook import main as webhook  # noqa: PLC0415 - only now

        gc.enable()
        sys.exit(webhook.main(sys.argv[2:]))
    if command == API:
        from berth_operator.apis.list_watch import main as api  # noqa: PLC0415 - only now

        gc.enable()
        sys.exit(api.main(sys.argv[2:]))
    if command == CLEANUP:
        from berth_operator.commands.cleanup import main as cleanup  # noqa: PLC0415 - only now

        sys.exit(cleanup.main(sys.argv[2:]))
    if command == CRDS:
        from berth_operator.commands.crds import main as crds  # noqa: PLC0415 - only now

        sys.exit(crds.main(sys.argv[2:]))
    if command and not command.startswith("-"):
        _refuse(command)
    from berth_operator.commands import operate  # noqa: PLC0415 - only now

    operate.main(sys.argv[1:])


def _refuse(command: str) -> None:
    """End the program because there is no such command."""
    from berth_base import start  # noqa: PLC0415 - only now

    known = [*COMMANDS, WEBHOOK, API, CLEANUP, CRDS]
    message = start.with_suggestion(f"unknown command {command}", start.nearest(command, known))
    start.give_up(NAME, f"{message} (allowed are {', '.join(known)}, or none for the operator)")


if __name__ == "__main__":
    main()
