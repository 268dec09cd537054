"""A Google Cloud Storage server (fake-gcs-server) for tests, which `make test-gs` builds."""

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from devcluster.build import TOOLS
from devcluster.ports import free_ports
from tests.support.cluster import wait_until

SERVER = TOOLS["fake-gcs-server"].path

needs_gcs_server = pytest.mark.skipif(
    not SERVER.exists(), reason="make test-gs builds fake-gcs-server"
)


@contextmanager
def gcs_server(bucket: str) -> Iterator[str]:
    """A server with that bucket; its address, to which the environment has to lead."""
    import gcsfs  # here, because most processes that import this module start no server

    host, (port,) = "127.0.0.1", free_ports(1)
    address = f"{host}:{port}"
    command = [SERVER, "-scheme", "http", "-host", host, "-port", str(port), "-backend", "memory"]
    command += ["-public-host", address, "-external-url", f"http://{address}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        health = f"http://{address}/_internal/healthcheck"
        wait_until(lambda: _answers(health), "the server to answer", 30)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://{address}")
            gcsfs.GCSFileSystem.clear_instance_cache()
            gcsfs.GCSFileSystem(token="anon", project="lab").mkdir(bucket)
            yield f"http://{address}"
    finally:
        server.terminate()
        server.wait()
        gcsfs.GCSFileSystem.clear_instance_cache()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True
