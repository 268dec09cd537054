"""Real controllers of other projects beside a real operator; only `make test-controllers` builds and runs them."""

import os

import pytest

from tests.isoloss_operator.conftest import node, operator, place, user  # noqa: F401 (fixtures)

ENABLED = "ISOLOSS_TEST_CONTROLLERS"


@pytest.fixture(scope="session", autouse=True)
def _asked_for() -> None:
    if not os.environ.get(ENABLED):
        pytest.skip(
            "compiles Flux, Kueue and Argo CD, minutes on two cores: make test-controllers"
        )
