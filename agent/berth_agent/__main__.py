"""`berth-agent`, or `python -m berth_agent`."""

import asyncio
import sys

from pydantic import ValidationError

from berth_agent import app, log
from berth_agent.configuration.options import OptionsError
from berth_agent.configuration.settings import Settings
from berth_agent.inventory import selection
from berth_agent.inventory.simulated.fleet import FleetError
from berth_agent.kubelet.device_plugin.manager import InitError
from berth_agent.kubelet.device_plugin.registration import CrashLoopError
from berth_api.plugins import PluginError
from berth_client.credentials import CredentialsError


def main() -> None:
    """Read the settings and run the agent; a mistake in them ends it with one line and status 2."""
    try:
        settings = Settings.read(sys.argv[1:])
        log.configure(settings)
        asyncio.run(app.run(settings, inventory=selection.inventory_for(settings)))
    except ValidationError as error:
        _give_up("; ".join(_plain(problem["loc"], problem["msg"]) for problem in error.errors()))
    except (FleetError, PluginError, OptionsError, InitError, CrashLoopError, CredentialsError) as error:
        _give_up(str(error))


def _plain(location: tuple[int | str, ...], message: str) -> str:
    option = "".join(f"--{part}: ".replace("_", "-") for part in location[:1])
    return option + message.removeprefix("Value error, ")


def _give_up(reason: str) -> None:
    sys.stderr.write(f"berth-agent: {reason}\n")
    sys.exit(2)


if __name__ == "__main__":
    main()
