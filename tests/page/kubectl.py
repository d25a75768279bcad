#!/usr/bin/env python3
"""A stand-in for kubectl, which the variable BERTH_KUBECTL names: it has one context, and a proxy to recorded rows.

`proxy --unix-socket=PATH` makes PATH another name of the socket that BERTH_STAND_IN names, where the test serves them.
"""

import json
import os
import signal
import sys
from pathlib import Path

CONTEXT = {"name": "recorded", "context": {"cluster": "recorded", "namespace": "research", "user": "viewer"}}
CLUSTER = {"name": "recorded", "cluster": {"server": "https://recorded.example:6443"}}
CONFIG = {"current-context": "recorded", "contexts": [CONTEXT], "clusters": [CLUSTER]}


def main(arguments: list[str]) -> int:
    words = [each for each in arguments if not each.startswith("--")]
    sockets = [each.partition("=")[2] for each in arguments if each.startswith("--unix-socket=")]
    if words[:1] == ["proxy"] and sockets:
        Path(sockets[0]).symlink_to(os.environ["BERTH_STAND_IN"])
        signal.pause()  # until a signal ends it
    if words[:1] == ["config"]:
        sys.stdout.write(json.dumps(CONFIG) if "--output=json" in arguments else "research")
        return 0
    sys.stderr.write(f"error: the stand-in for kubectl does not know {arguments}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
