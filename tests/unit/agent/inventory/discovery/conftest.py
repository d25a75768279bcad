from pathlib import Path

import pytest

from tests.objects.sysfs_tree import SysfsTree


@pytest.fixture
def sysfs(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys")
