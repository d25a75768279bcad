"""The workflows of `.github/workflows`: actionlint is silent, and what needs no secret of a workflow runs here.

`make release-check` runs the second part: the steps that build a release run as they stand, in a clone of this commit,
with an empty cache of images. Their files are those that `make release` wrote here.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from devcluster import Cluster
from devcluster.building import cache, images, programs
from tests.programs import released

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".github" / "workflows"
REPOSITORY: Final = "Example/berth"
VERSION: Final = "0.1.0"
JOBS: Final = ("parts", "publish")
BUILT_HERE: Final = ("binaries", "real-node", "wheels")
"""Folders of the cache that no image is built from."""


def test_actionlint_is_silent() -> None:
    actionlint = programs.ensure(programs.WORKFLOWS)["actionlint"]
    done = subprocess.run([actionlint, *FOLDER.glob("*")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def steps() -> Iterator[str]:
    """Yield the scripts of the release's steps that need no token of the workflow."""
    jobs = yaml.safe_load((FOLDER / "release.yaml").read_text())["jobs"]
    for step in (step for job in JOBS for step in jobs[job]["steps"]):
        if "run" in step and "env" not in step:
            yield step["run"]


def variables(home: Path) -> dict[str, str]:
    """Return the variables of a workflow's step, with a home and a cache of its own."""
    links = home / "cache" / "berth"
    links.mkdir(parents=True)
    for name in BUILT_HERE:
        (links / name).symlink_to(cache.root() / name)
    return {
        **os.environ,
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        # Not the environment of the test, but the same Python, whose library is in krew's archive.
        "PATH": f"{Path(sys.executable).resolve().parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "GITHUB_ENV": str(home / "env"),
        "GITHUB_PATH": str(home / "path"),
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_REF": f"refs/tags/v{VERSION}",
        "GITHUB_REF_NAME": f"v{VERSION}",
        "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_RUN_ID": "1",
        "GITHUB_SERVER_URL": "https://github.example.com",
        "GITHUB_SHA": "0" * 40,
        "GITHUB_WORKFLOW_REF": f"{REPOSITORY}/.github/workflows/release.yaml@refs/tags/v{VERSION}",
    }


@pytest.mark.timeout(3600)
def test_the_steps_of_the_release_write_the_bytes_that_were_written_here(tmp_path: Path) -> None:
    released.folder()
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    environment = variables(tmp_path / "home")
    for script in steps():
        subprocess.run(["bash", "-eo", "pipefail", "-c", script], cwd=clone, env=environment, check=True)
        if (file := Path(environment["GITHUB_ENV"])).exists():
            environment |= dict(line.split("=", 1) for line in file.read_text().splitlines())
        if (file := Path(environment["GITHUB_PATH"])).exists():
            environment["PATH"] = ":".join([*file.read_text().splitlines(), environment["PATH"]])

    repository = f"https://github.example.com/{REPOSITORY}"
    names = [
        "REGISTRY=ghcr.io/example/berth",
        f"ADDRESS={repository}/releases/download/v{VERSION}",
        f"SOURCE={repository}/blob/v{VERSION}",
        f"TARGET={tmp_path / 'here'}",
    ]
    subprocess.run(["make", "release-files", *names], cwd=ROOT, check=True)
    here, there = contents(tmp_path / "here"), contents(clone / ".build" / "release")
    assert {name: body == there.get(name) for name, body in here.items()} == dict.fromkeys(there, True)
    assert "refs/tags/v0.1.0" in (clone / ".build" / "provenance.json").read_text()
    for program in ("cosign", "helm"):
        subprocess.run([program, "version"], env=environment, check=True)
    manifest = there["berth-0.1.0.yaml"].decode()
    for name in images.IMAGES:
        pushed = copied(clone / ".build" / "release" / f"{name}-{VERSION}.tar", f"ghcr.io/example/berth/{name}")
        assert pushed in manifest


def copied(archive: Path, name: str) -> str:
    """Copy an image to a folder by the program that pushes it; return the image's name with its digest."""
    digest, target = archive.with_suffix(".digest"), archive.with_suffix(".copy")
    options = ["--all", "--preserve-digests", f"--digestfile={digest}"]
    subprocess.run(["skopeo", "copy", *options, f"oci-archive:{archive}:{name}:{VERSION}", f"dir:{target}"], check=True)
    return f"{name}@{digest.read_text()}"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_manifest_is_applied_and_the_application_runs(tmp_path: Path) -> None:
    """The zip application has all its modules: it runs with another Python environment than that of the tests."""
    application = released.file("kubectl-berth_*.pyz")
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{programs.ensure(['kubectl'])['kubectl'].parent}:/usr/bin:/bin",
    }

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Cluster(folder=tmp_path / "cluster") as cluster:
        environment["KUBECONFIG"] = str(cluster.kubeconfig)
        run("kubectl", "apply", "-f", released.file(released.MANIFEST))
        python = Path(sys.executable).resolve()
        assert "items: []" in run(python, application, "devices", "-o", "yaml")
        workload = tmp_path / "none.yaml"
        workload.write_text("")
        assert "0 of 0 pods would get a place" in run(python, application, "simulate", "-f", workload)
