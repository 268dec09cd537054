"""A whole operator that serves two tenants."""

from tests.isoloss_operator.conftest import (  # noqa: F401 (fixtures are found by name)
    node,
    place,
    second_namespace,
    user,
)
