"""A configuration file that changes: valid changes are used, invalid ones change nothing."""

import asyncio
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from berth_operator.core.decision.policy import Policy
from berth_operator.process.reloading import PERIOD, ConfigurationFile
from berth_operator.settings import configuration
from berth_operator.settings.configuration import Configuration

pytestmark = pytest.mark.looptime

NONE = "apiVersion: config.berth.dev/v1alpha1\nkind: BerthSchedulerConfiguration\n"
ONE = NONE + "profiles: [{schedulerName: a}]\n"
TWO = NONE + "profiles: [{schedulerName: a, preemption: false}, {schedulerName: b}]\n"


class Following:
    """A configuration file that is watched, and the policies read from it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "berth.yaml"
        self.path.write_text(ONE)
        self.used: list[Configuration] = []
        self.refused: list[str] = []
        file = ConfigurationFile(
            self.path, first=configuration.load(self.path), use=self.used.append, refused=self.refused.append
        )
        self._task = asyncio.create_task(file.run())

    @classmethod
    async def begun(cls, folder: Path) -> "Following":
        """Start between two polls, so that each poll sees one change."""
        following = cls(folder)
        await asyncio.sleep(PERIOD / 2)
        return following

    async def becomes(self, text: str | None, looks: int = 1) -> list[str]:
        """Change the file, or remove it, and run a poll; return the errors logged meanwhile."""
        if text is None:
            self.path.unlink()
        else:
            self.path.write_text(text)
        with capture_logs() as logs:
            await asyncio.sleep(PERIOD * looks)
        return [each["error"] for each in logs if each["log_level"] == "error"]

    def end(self) -> None:
        self._task.cancel()


def valid() -> float | None:
    return REGISTRY.get_sample_value("berth_configuration_valid")


async def test_a_change_is_used_once(tmp_path: Path) -> None:
    following = await Following.begun(tmp_path)
    assert await following.becomes(ONE, looks=3) == []
    assert following.used == []
    assert await following.becomes(TWO, looks=3) == []
    assert [each.policies for each in following.used] == [{"a": Policy(preemption=False), "b": Policy()}]
    assert await following.becomes(ONE, looks=3) == []
    assert [list(each.policies) for each in following.used] == [["a", "b"], ["a"]]
    following.end()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(NONE, "profiles: is missing", id="a mistake"),
        pytest.param(None, "No such file or directory", id="no file"),
    ],
)
async def test_what_cannot_be_used_changes_nothing_and_is_reported_once(
    text: str | None, error: str, tmp_path: Path
) -> None:
    following = await Following.begun(tmp_path)
    await following.becomes(ONE)
    assert valid() == 1
    assert await following.becomes(text, looks=5) == [f"{following.path}: {error}"]
    assert (following.used, valid()) == ([], 0)
    # It is as it was, so there is nothing to use.
    assert await following.becomes(ONE) == []
    assert (following.used, valid()) == ([], 1)
    assert await following.becomes(text) == [f"{following.path}: {error}"]
    assert await following.becomes(TWO) == []
    assert following.refused == [f"{following.path}: {error}"] * 2
    assert ([list(each.policies) for each in following.used], valid()) == ([["a", "b"]], 1)
    following.end()


async def test_the_links_of_a_mounted_config_map_are_followed(tmp_path: Path) -> None:
    for version, text in (("1", ONE), ("2", TWO)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "berth.yaml").write_text(text)
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "berth.yaml").symlink_to("data/berth.yaml")
    used: list[Configuration] = []
    path = tmp_path / "berth.yaml"
    refused: list[str] = []
    file = ConfigurationFile(path, first=configuration.load(path), use=used.append, refused=refused.append)
    file.check()
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "data")
    file.check()
    assert ([list(each.policies) for each in used], refused) == ([["a", "b"]], [])
