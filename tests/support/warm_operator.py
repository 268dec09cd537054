"""What a forked operator does first. Each process of a fit imports this module, so it imports nothing of weight."""

import functools
import importlib
import multiprocessing.forkserver
import os
from collections.abc import Mapping
from typing import Any

DRAWS = "TEST_DRAWS"
"""In the environment of a forked operator that draws the figures of its pages."""
LOG = "TEST_LOG"
"""The path of its log."""


def take_over() -> None:
    """In the process of an operator that was forked: what reads the environment at an earlier time else.

    Fits are forked from the process that was started for all operators of the session, and so have its environment
    and its output.
    """
    kube_config: Any = importlib.import_module("kubernetes.config.kube_config")
    kube_config.KUBE_CONFIG_DEFAULT_LOCATION = os.environ.get("KUBECONFIG", "")
    _share_what_fits_are_forked_from()
    fitter: Any = importlib.import_module("isoloss_operator.fitting.fitter")
    fitter._main = functools.partial(_fit, dict(os.environ))


def _share_what_fits_are_forked_from() -> None:
    """Until it is gone: an operator that is killed as it asks for a fit takes it along. Then this one makes its own."""
    module: Any = multiprocessing.forkserver
    server = module._forkserver
    make, connect = server.ensure_running, server.connect_to_new_process

    def connect_or_make(descriptors: list[int]) -> Any:
        try:
            return connect(descriptors)
        except ConnectionRefusedError:
            server.ensure_running, server._forkserver_pid = make, None
            return connect(descriptors)

    server.ensure_running = lambda: None
    module.connect_to_new_process = connect_or_make


def _fit(environment: Mapping[str, str], *job: Any) -> None:
    os.environ.clear()
    os.environ.update(environment)
    log = os.open(environment[LOG], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    fitter: Any = importlib.import_module("isoloss_operator.fitting.fitter")
    # On a machine that is busy with other tests it would hardly run at all.
    fitter.NICENESS = 0
    if DRAWS not in environment:
        figures: Any = importlib.import_module("tests.support.pages")
        figures.draw_empty_figures.start()
    fitter._main(*job)
