"""Print the provenance of a release that a workflow of GitHub builds: `python -m release.provenance`.

It is a predicate of SLSA 1.0 (https://slsa.dev/provenance/v1) with GitHub's type of build. cosign adds the subject, and
signs both.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Final

BUILD_TYPE: Final = "https://actions.github.io/buildtypes/workflow/v1"


def predicate(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the predicate; raise KeyError if a variable of a workflow is missing."""
    server, ref = variables["GITHUB_SERVER_URL"], variables["GITHUB_REF"]
    repository = f"{server}/{variables['GITHUB_REPOSITORY']}"
    workflow = variables["GITHUB_WORKFLOW_REF"]  # owner/repository/path@ref
    path = workflow.partition("@")[0].removeprefix(f"{variables['GITHUB_REPOSITORY']}/")
    run = f"{repository}/actions/runs/{variables['GITHUB_RUN_ID']}/attempts/{variables['GITHUB_RUN_ATTEMPT']}"
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"workflow": {"ref": ref, "repository": repository, "path": path}},
            "internalParameters": {"github": {"event_name": variables["GITHUB_EVENT_NAME"]}},
            "resolvedDependencies": [
                {"uri": f"git+{repository}@{ref}", "digest": {"gitCommit": variables["GITHUB_SHA"]}}
            ],
        },
        "runDetails": {"builder": {"id": f"{server}/{workflow}"}, "metadata": {"invocationId": run}},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(predicate(os.environ), indent=2) + "\n")
