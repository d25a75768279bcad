"""`berth-agent`, or `python -m berth_agent`."""

import asyncio
import os
import sys

from berth_agent import app
from berth_agent.configuration.options import OptionsError
from berth_agent.configuration.settings import Settings
from berth_agent.kubelet.device_plugin.manager import InitError
from berth_agent.kubelet.device_plugin.registration import CrashLoopError
from berth_agent.vendors import choice
from berth_agent.vendors.simulated.fleet import FleetError
from berth_api.plugins import PluginError
from berth_base import logs, start
from berth_base.start import StartError
from berth_client.credentials import CredentialsError
from berth_client.served import NotServedError

NAME = "berth-agent"


def main() -> None:
    """Read the settings and run the agent; a mistake in them ends it with one line and status 2."""
    arguments = sys.argv[1:]
    start.show_version(NAME, arguments)
    try:
        settings = Settings.read(arguments)
        logs.configure(form=settings.log_format, level=settings.log_level)
        inventory = choice.inventory_for(settings)
        logs.started(settings, os.environ)
        asyncio.run(app.run(settings, inventory=inventory))
    except (
        StartError,
        FleetError,
        PluginError,
        OptionsError,
        InitError,
        CrashLoopError,
        CredentialsError,
        NotServedError,
    ) as error:
        start.give_up(NAME, str(error))


if __name__ == "__main__":
    main()
