"""The operator's world, for tests of what it schedules."""

from tests.integration.operator.conftest import module_world, shared, world

__all__ = ["module_world", "shared", "world"]
