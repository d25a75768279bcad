"""Programs are downloaded from a registry only as they are pinned; otherwise they are built."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from devcluster.__main__ import main
from devcluster.building import downloads, programs, versions
from tests.stand_ins.image_registry import (
    Answer,
    ImageRegistry,
    break_off,
    damage,
    hang,
    lengthen,
    miss,
    redirect,
    stall,
)

DOWNLOADED = "#!/bin/sh\necho etcd Version: 3.6.0 downloaded\n"
BUILT = "#!/bin/sh\necho etcd Version: 3.6.0 built\n"
GO = f"""#!/bin/sh
if [ "$1" = version ]; then echo go version go1.99.0; exit; fi
while [ "$1" != -o ]; do shift; done
printf '%s' '{BUILT}' > "$2"
/bin/chmod +x "$2"
"""
"""A Go that builds a program which says so."""


@pytest.fixture
def registry() -> Iterator[ImageRegistry]:
    with ImageRegistry({"etcd": DOWNLOADED.encode()}) as running:
        yield running


@pytest.fixture(autouse=True)
def pins(registry: ImageRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that has no program but Go, and empty caches; the pins of the registry."""
    for variable in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.upper(), raising=False)
    go = tmp_path / "path" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "downloads.yaml"
    registry.write_pins(file)
    monkeypatch.setenv(downloads.VARIABLE, str(file))
    return file


def test_a_pinned_program_is_downloaded_once_and_announced_with_its_size(
    registry: ImageRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    path = programs.ensure(["etcd"], download=True)["etcd"]

    assert path.read_text() == DOWNLOADED
    announced = (
        f"devcluster: downloading etcd {versions.text(programs.PROGRAMS['etcd'].version)} from {registry.url}: 0 MB"
    )
    assert announced in capsys.readouterr().err.splitlines()
    count = len(registry.headers)
    assert programs.ensure(["etcd"], download=True)["etcd"] == path
    assert len(registry.headers) == count


def test_who_does_not_download_builds_and_does_not_use_what_was_downloaded(registry: ImageRegistry) -> None:
    programs.ensure(["etcd"], download=True)
    count = len(registry.headers)

    assert programs.ensure(["etcd"])["etcd"].read_text() == BUILT
    assert programs.ensure(["etcd"], download=True)["etcd"].read_text() == BUILT
    assert len(registry.headers) == count


@pytest.mark.parametrize(
    ("part", "answer", "said"),
    [
        ("/manifests/", damage, "has the digest sha256:"),
        ("/blobs/", damage, "has the digest sha256:"),
        ("/blobs/", break_off, "has the digest sha256:"),
        ("/blobs/", lengthen, "is longer than expected"),
        ("/manifests/", miss, "HTTP Error 404: Not Found"),
        ("/blobs/", miss, "HTTP Error 404: Not Found"),
        ("/blobs/", redirect(""), "HTTP Error 307"),
    ],
    ids=["manifest", "layer", "half a layer", "more", "no image", "no layer", "a circle of redirects"],
)
def test_what_is_not_as_pinned_is_refused_and_built_and_said(
    registry: ImageRegistry, capsys: pytest.CaptureFixture[str], part: str, answer: Answer, said: str
) -> None:
    registry.answers[part] = answer

    assert programs.ensure(["etcd"], download=True)["etcd"].read_text() == BUILT

    [line] = [line for line in capsys.readouterr().err.splitlines() if "built instead" in line]
    assert line.startswith("devcluster: etcd is built instead of downloaded: ")
    assert said in line


def test_a_program_that_does_not_run_or_has_another_version_is_built(
    pins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ImageRegistry({"etcd": DOWNLOADED.replace("3.6", "3.5").encode()}) as other:
        other.write_pins(pins)
        assert programs.ensure(["etcd"], download=True)["etcd"].read_text() == BUILT
    assert "has another version than go.mod pins" in capsys.readouterr().err


@pytest.mark.parametrize("change", ["version", "absent", "empty"])
def test_a_program_without_a_pin_of_its_minor_version_is_built(
    registry: ImageRegistry, pins: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "version":
        registry.pins["etcd"]["version"] = "3.5.0"
    else:
        registry.pins.clear()
    registry.write_pins(pins)
    if change == "empty":
        monkeypatch.setenv(downloads.VARIABLE, "")

    assert programs.ensure(["etcd"], download=True)["etcd"].read_text() == BUILT
    assert registry.headers == []


def test_a_redirect_is_followed_without_the_credentials_of_the_proxy(
    registry: ImageRegistry, pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ImageRegistry({}) as proxy:
        proxy.answers["registry.test"] = redirect(registry.url)
        registry.write_pins(pins, registry="http://registry.test")
        monkeypatch.setenv("http_proxy", proxy.url.replace("//", "//user:password@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert programs.ensure(["etcd"], download=True)["etcd"].read_text() == DOWNLOADED

    assert {"Proxy-Authorization"} <= set(proxy.headers[0])
    assert not [headers for headers in registry.headers if "Proxy-Authorization" in headers]


@pytest.mark.parametrize("is_there", [True, False], ids=["hanging server", "no network"])
def test_no_answer_is_known_within_three_seconds(
    registry: ImageRegistry, pins: Path, capsys: pytest.CaptureFixture[str], *, is_there: bool
) -> None:
    registry.answers["/v2/"] = hang
    # An address of the documentation's network, to which no route leads; or a machine says so at once.
    registry.write_pins(pins, registry="" if is_there else "http://192.0.2.1:9")
    started = time.monotonic()

    programs.ensure(["etcd"], download=True)

    assert time.monotonic() - started < 4.5
    [line] = [line for line in capsys.readouterr().err.splitlines() if "does not answer" in line]
    assert line.endswith("the programs are built instead of downloaded")


@pytest.mark.parametrize(
    "limits",
    [downloads.Limits(pause=0.2), downloads.Limits(total=0.4)],
    ids=["for the next bytes", "for all programs"],
)
def test_a_server_that_stops_in_the_middle_is_not_waited_for(
    registry: ImageRegistry, capsys: pytest.CaptureFixture[str], limits: downloads.Limits
) -> None:
    registry.answers["/blobs/"] = stall
    image = downloads.image("etcd")
    assert image is not None
    started = time.monotonic()

    downloads.fetch({"etcd": image}, programs.has_pinned_version, limits)

    assert time.monotonic() - started < 3
    assert not downloads.cached("etcd", image).exists()
    assert "etcd is built instead of downloaded: " in capsys.readouterr().err


def test_a_maintainer_pins_the_digest_of_a_tag(
    registry: ImageRegistry, pins: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = registry.pins["etcd"]["digest"]
    tag = f"v{registry.pins['etcd']['version']}"
    pins.write_text(f"# Why.\nregistry: {registry.url}\nimages: {{}}\n")

    assert main(["pin", "etcd", tag, "--repository", "images/etcd"]) == 0
    assert capsys.readouterr().out == f"etcd {tag[1:]}: {digest}\n"
    assert pins.read_text().startswith("# Why.\n")
    assert yaml.safe_load(pins.read_text())["images"] == registry.pins
    assert main(["pin", "etcd", "v9", "--repository", "images/etcd"]) == 1
    assert "images/etcd:v9 cannot be read from" in capsys.readouterr().err


def test_the_pins_of_the_repository_are_of_the_versions_of_go_mod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(downloads.VARIABLE)
    pinned = {name: image.version for name in programs.PROGRAMS if (image := downloads.image(name))}

    expected = {name: versions.text(programs.PROGRAMS[name].version) for name in programs.CLUSTER}
    assert pinned == {**expected, "etcd": "3.6.10"}  # of 3.6.16 no digest is known
