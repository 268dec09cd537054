"""Whom the operator serves."""

from tests.isoloss_operator.conftest import user  # noqa: F401 (a fixture is found by name)
