"""A release is made of the parts of all platforms, and depends on nothing else."""

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from devcluster.building import images as built
from release import archives, images, notes, provenance, sbom
from release.__main__ import main

ROOT = Path(__file__).parents[3]
VERSION = "0.1.0"
PLATFORMS = ("amd64", "arm64")
STATUS = "Package: libc6\nArchitecture: amd64\nVersion: 2.36-9+deb12u13\nDescription: GNU C Library\n more\n"
LOCK = "orjson==3.13.0 \\\n    --hash=sha256:0{zeros} \\\n    --hash=sha256:1{zeros}\n    # via berth\n".format(
    zeros="0" * 63
)
LAYER = {
    "var/lib/dpkg/status.d/libc6": STATUS,
    "opt/berth/lib/orjson-3.13.0.dist-info/METADATA": "Name: orjson\nVersion: 3.13.0\n\nPackage: none\n",
    "opt/berth/lib/berth_operator-0.1.0.dist-info/METADATA": "Name: berth-operator\nVersion: 0.1.0\n",
    "opt/berth/lib/orjson/METADATA": "Name: other\nVersion: 1\n",
}


def tar(files: Mapping[str, str | bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name, content in files.items():
            body = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            layer.addfile(entry, io.BytesIO(body))
    return buffer.getvalue()


def write_image(target: Path, architecture: str = "amd64", layer: Mapping[str, str | bytes] = LAYER) -> None:
    """Write an OCI archive with one layer, as buildah does."""
    blobs: dict[str, bytes] = {}

    def add(body: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(body).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = body
        return {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": f"sha256:{digest}",
            "size": len(body),
        }

    layers = [add(tar(layer))]
    config = add(json.dumps({"architecture": architecture, "os": "linux", "created": "now"}).encode())
    manifest = add(json.dumps({"schemaVersion": 2, "config": config, "layers": layers}).encode())
    index = json.dumps({"schemaVersion": 2, "manifests": [manifest]})
    target.write_bytes(tar({**blobs, "index.json": index, "oci-layout": "{}"}))


def write_parts(folder: Path) -> None:
    folder.mkdir()
    for architecture in PLATFORMS:
        for name in built.IMAGES:
            write_image(folder / f"{name}-{VERSION}-{architecture}.tar", architecture)
            (folder / f"{name}-{VERSION}-{architecture}.cdx.json").write_text(name)
        plugin = f"kubectl-berth_v{VERSION}_linux_{architecture}"
        (folder / f"{plugin}.tar.gz").write_text(plugin)
        (folder / f"{plugin}.pyz").write_text(plugin)
        entry = {"selector": architecture, "uri": f"https://elsewhere/{plugin}.tar.gz"}
        manifest = {"metadata": {"name": "berth"}, "spec": {"version": VERSION, "platforms": [entry]}}
        (folder / f"{plugin}.yaml").write_text(yaml.safe_dump(manifest))


def write_release(folder: Path, name: str, *, version: str = VERSION) -> int:
    options = ["--registry=images.example.com/berth", "--address=https://example.com/v1"]
    return main(["files", version, f"--parts={folder / 'parts'}", f"--target={folder / name}", *options])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with parts, and a release of them."""
    folder = tmp_path_factory.mktemp("release")
    write_parts(folder / "parts")
    assert write_release(folder, "first") == 0
    return folder


def test_the_same_parts_give_the_same_bytes(folder: Path) -> None:
    """The second time, the files of the parts are younger."""
    for path in (folder / "parts").iterdir():
        path.write_bytes(path.read_bytes())
    write_release(folder, "second")
    contents = [{path.name: path.read_bytes() for path in (folder / name).iterdir()} for name in ("first", "second")]
    assert len(contents[0]) == 16
    assert contents[0] == contents[1]


def test_sums_are_those_of_all_other_files(folder: Path) -> None:
    release = folder / "first"
    listed = dict(line.split("  ")[::-1] for line in (release / "SHA256SUMS").read_text().splitlines())
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in release.iterdir()}
    assert listed == {name: digest for name, digest in files.items() if name != "SHA256SUMS"}


def test_chart_manifest_and_notes_name_the_images_of_the_archives(folder: Path) -> None:
    release = folder / "first"
    names = set()
    for name in built.IMAGES:
        with tarfile.open(release / f"{name}-{VERSION}.tar") as archive:
            index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
            [digest] = {manifest["digest"] for manifest in index["manifests"]}
            manifests = json.load(archive.extractfile(f"blobs/{digest.replace(':', '/')}"))["manifests"]  # type: ignore[arg-type]
            described = {manifest["digest"].replace(":", "/") for manifest in manifests}
            assert {f"blobs/{digest}" for digest in described} <= set(archive.getnames())
        assert [manifest["platform"]["architecture"] for manifest in manifests] == list(PLATFORMS)
        imported = {manifest["annotations"][images.NAME] for manifest in index["manifests"]}
        reference = f"images.example.com/berth/{name}@{digest}"
        assert imported == {reference, f"images.example.com/berth/{name}:{VERSION}"}
        names.add(reference)

    with tarfile.open(release / f"berth-{VERSION}.tgz") as chart:
        values = yaml.safe_load(chart.extractfile("berth/values.yaml"))["image"]  # type: ignore[arg-type]
        assert yaml.safe_load(chart.extractfile("berth/Chart.yaml"))["version"] == VERSION  # type: ignore[arg-type]
    assert {f"{values[side]['repository']}@{values[side]['digest']}" for side in ("operator", "agent")} == names
    manifest = (release / f"berth-{VERSION}.yaml").read_text()
    assert set(re.findall(r"image: (\S+)", manifest)) == names
    assert manifest.startswith((release / f"berth-crds-{VERSION}.yaml").read_text())
    assert set(re.findall(r"^    (\S+@\S+)$", (release / "NOTES").read_text(), re.MULTILINE)) == names


def test_krew_finds_each_platforms_archive_at_the_address(folder: Path) -> None:
    platforms = yaml.safe_load((folder / "first" / "krew.yaml").read_text())["spec"]["platforms"]
    assert [platform["uri"] for platform in platforms] == [
        f"https://example.com/v1/kubectl-berth_v{VERSION}_linux_{architecture}.tar.gz" for architecture in PLATFORMS
    ]


def test_another_version_than_that_of_the_files_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_release(folder, "third", version="0.2.0") == 1
    assert capsys.readouterr().err == (
        "release: VERSION is '0.2.0', and pyproject.toml has 0.1.0; leave VERSION out, or change the version in"
        " pyproject.toml and commit it\n"
    )
    assert not (folder / "third").exists()


def test_all_files_have_one_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/berth/Chart.yaml").read_text())
    assert {chart["version"], chart["appVersion"], built.name("berth-agent").rpartition(":")[2]} == {VERSION}
    assert notes.text(VERSION, "r", {}, "")


def test_links_of_the_notes_lead_to_the_files_of_the_version() -> None:
    source = "https://example.com/blob/v0.1.0"
    targets = re.findall(r"\]\(([^)]*)\)", notes.text(VERSION, "r", {}, source))
    assert [target for target in targets if not target.startswith(f"{source}/")] == []


def test_the_sbom_has_exactly_what_the_image_has(tmp_path: Path) -> None:
    write_image(tmp_path / "image.tar")
    image = images.read(tmp_path / "image.tar")
    texts = [sbom.text("berth-agent", VERSION, image.manifest["digest"], images.installed(image), LOCK) for _ in "12"]
    assert texts[0] == texts[1]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(texts[0]) is None
    components = {component["purl"]: component for component in json.loads(texts[0])["components"]}
    assert components.keys() == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12",
        "pkg:pypi/berth-operator@0.1.0",
        "pkg:pypi/orjson@3.13.0",
    }
    [reference] = components["pkg:pypi/orjson@3.13.0"]["externalReferences"]
    assert [entry["content"][0] for entry in reference["hashes"]] == ["0", "1"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"lib/numpy-2.4.dist-info/METADATA": "Name: numpy\nVersion: 2.4\n"}, "numpy 2.4, which requirements.lock"),
        ({"opt/.wh.orjson": ""}, "deletes files: opt/.wh.orjson"),
    ],
)
def test_an_image_whose_packages_are_not_known_has_no_sbom(tmp_path: Path, more: dict[str, str], problem: str) -> None:
    write_image(tmp_path / "image.tar", layer={**LAYER, **more})
    image = images.read(tmp_path / "image.tar")
    with pytest.raises(ValueError, match=problem):
        sbom.text("berth-agent", VERSION, image.manifest["digest"], images.installed(image), LOCK)


def test_archives_have_files_in_order_and_the_commits_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for name in ("a.tgz", "b.tgz"):
        archives.write_tar(tmp_path / name, {"b": b"2", "a": b"1"})
    assert (tmp_path / "a.tgz").read_bytes() == (tmp_path / "b.tgz").read_bytes()
    with tarfile.open(tmp_path / "a.tgz") as archive:
        assert [(entry.name, entry.mtime, entry.uid, entry.uname) for entry in archive] == [
            ("a", 1_700_000_000, 0, ""),
            ("b", 1_700_000_000, 0, ""),
        ]


def test_workflows_use_one_pinned_action_and_give_the_token_to_single_steps() -> None:
    workflows = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").iterdir())]
    jobs = [job for workflow in workflows for job in workflow["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"]]
    actions = {step["uses"] for step in steps if "uses" in step}
    assert all(re.fullmatch(r"actions/checkout@[0-9a-f]{40}", action) for action in actions), actions
    assert [step for step in steps if "uses" in step and step["with"]["persist-credentials"]] == []
    assert [job for job in jobs if "secrets." in str(job) or "github.token" in str({**job, "steps": []})] == []
    assert {str(workflow["permissions"]) for workflow in workflows} == {"{}", "{'contents': 'read'}"}


def test_the_provenance_names_commit_workflow_and_run() -> None:
    variables = {
        "GITHUB_EVENT_NAME": "push",
        "GITHUB_REF": "refs/tags/v0.1.0",
        "GITHUB_REPOSITORY": "o/r",
        "GITHUB_RUN_ATTEMPT": "2",
        "GITHUB_RUN_ID": "7",
        "GITHUB_SERVER_URL": "https://example.com",
        "GITHUB_SHA": "abc",
        "GITHUB_WORKFLOW_REF": "o/r/.github/workflows/release.yaml@refs/tags/v0.1.0",
    }
    predicate = provenance.predicate(variables)
    definition, details = predicate["buildDefinition"], predicate["runDetails"]
    assert definition["externalParameters"]["workflow"] == {
        "ref": "refs/tags/v0.1.0",
        "repository": "https://example.com/o/r",
        "path": ".github/workflows/release.yaml",
    }
    assert definition["resolvedDependencies"] == [
        {"uri": "git+https://example.com/o/r@refs/tags/v0.1.0", "digest": {"gitCommit": "abc"}}
    ]
    assert details["builder"]["id"] == f"https://example.com/{variables['GITHUB_WORKFLOW_REF']}"
    assert details["metadata"]["invocationId"] == "https://example.com/o/r/actions/runs/7/attempts/2"
