"""`isoloss-operator`: reads the environment and runs the operator until SIGTERM.

Imports are inside functions: the process of a fit starts by importing this module and needs none of them.
"""

import logging
import os
import signal
import sys

BAD_SETTINGS = 2
NOT_INSTALLED = 3


def run() -> int:
    """Run the operator; returns the exit code."""
    from kubernetes.config import ConfigException

    from isoloss_operator.cluster.client import ClusterError
    from isoloss_operator.process import logs
    from isoloss_operator.runtime import NotInstalled, Operator
    from isoloss_operator.settings import BadSettings, read_settings

    logger = logging.getLogger("isoloss_operator")
    try:
        settings = read_settings()
    except BadSettings as error:
        print(error, file=sys.stderr)
        return BAD_SETTINGS
    logs.configure(settings.log_level)
    # Until kopf handles it: PID 1 of a container would otherwise ignore SIGTERM.
    signal.signal(signal.SIGTERM, _end)
    try:
        Operator(settings).run()
    except NotInstalled as error:
        logger.error("%s", error)
        return NOT_INSTALLED
    except ConfigException as error:
        logger.error("No cluster is configured: %s", error)
        return BAD_SETTINGS
    except ClusterError as error:
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("Exiting because of an error")
        return 1
    return 0


def _end(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Entry point of the console script."""
    try:
        code = run()
    except SystemExit:
        code = 0  # SIGTERM before it led
    logging.shutdown()
    # Pool threads that wait for a hanging call must not keep the process alive.
    os._exit(code)


if __name__ == "__main__":
    main()
