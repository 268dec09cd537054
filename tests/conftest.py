"""Fixtures that every test may ask for: the shared development cluster."""

import os

# Read when torch or numpy is first imported, by whichever test comes first. Tests compare losses bit by bit, and with
# several threads the kernel library chooses by the machine's load how many of them to use.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings

from tests.support.cluster import (  # noqa: F401 (fixtures are found by name)
    api_client,
    begin_session,
    control_plane,
    dev_cluster,
    end_session,
    make_node,
    namespace,
    namespace_name,
    object_storage,
    own_control_plane,
    own_storage,
    process_node,
)

# How long an example takes, or the drawing of its input, says more about the machine than about the code: before the
# first input hypothesis reads the source of every module for constants to try.
settings.register_profile("isoloss", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("isoloss")


def pytest_configure() -> None:
    """Choose where this session's cluster lies; it is started only when a test asks for it."""
    begin_session()


def pytest_unconfigure() -> None:
    """Stop it, if it was started and is ours."""
    end_session()
