"""A Google Cloud Storage server (fake-gcs-server) for tests, which `make test-gs` builds."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from devcluster.build import TOOLS

SERVER = TOOLS["fake-gcs-server"].path

needs_gcs_server = pytest.mark.skipif(
    not SERVER.exists(), reason="make test-gs builds fake-gcs-server"
)


@contextmanager
def gcs_server(bucket: str) -> Iterator[str]:
    """A server with that bucket; its address, to which the environment has to lead."""
    import gcsfs  # here, because most processes that import this module start no server

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    host, port = address.split(":")
    command = [SERVER, "-scheme", "http", "-host", host, "-port", port, "-backend", "memory"]
    command += ["-public-host", address, "-external-url", f"http://{address}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://{address}/_internal/healthcheck")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
            gcsfs.GCSFileSystem.clear_instance_cache()
            gcsfs.GCSFileSystem(token="anon", project="lab").mkdir(bucket)
            yield f"http://{address}"
    finally:
        server.terminate()
        server.wait()
        gcsfs.GCSFileSystem.clear_instance_cache()


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the server does not answer")
