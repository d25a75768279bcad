"""Fixtures for tests of the operator's scheduling."""

from tests.integration.operator.conftest import module_world, shared, world

__all__ = ["module_world", "shared", "world"]
