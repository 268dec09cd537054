"""A real S3 server (versitygw) over a folder, for tests and the demo."""

import dataclasses
import functools
import json
import os
import secrets
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster.build import tool_path
from devcluster.daemon import Daemon
from devcluster.files import write_private
from devcluster.ports import is_free, reserved_ports, start_on_free_ports

REGION = "us-east-1"
START_SECONDS = 30


@functools.cache
def _session() -> Any:
    """Reads a megabyte of descriptions of S3 once for all clients."""
    # Slow to import, and not installed where tools are only built.
    import botocore.session

    return botocore.session.get_session()


@dataclass(frozen=True)
class _Settings:
    port: int
    access_key: str
    secret_key: str


class ObjectStorage:
    """An S3 server whose buckets are the folders under `directory`/buckets.

    It listens on `address`: by default this machine's own processes alone reach it. Port and credentials are chosen
    at the first start and kept, so that clients find a restarted server again.

    Note: objects are files, so `a` and `a/b` cannot both exist.
    """

    def __init__(self, directory: Path, address: str = "127.0.0.1") -> None:
        """Nothing is started yet."""
        self.directory = Path(directory).absolute()
        self.address = address
        self.daemon = Daemon("versitygw", self.directory)

    def start(self) -> None:
        """Start it unless it is running; returns when it answers."""
        start_on_free_ports(self._start)

    def _start(self) -> None:
        program = tool_path("versitygw")
        settings = self._settings_for_start()
        self.buckets.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [
            program,
            "--port",
            f"{self.address}:{settings.port}",
            "--quiet",
        ]
        command += ["--keep-alive", "--region", REGION, "--health", "/health"]
        command += ["posix", *self._attribute_options(), self.buckets]
        environment = {
            "PATH": os.defpath,
            "ROOT_ACCESS_KEY_ID": settings.access_key,
            "ROOT_SECRET_ACCESS_KEY": settings.secret_key,
        }
        self.daemon.start(command, environment)
        self.daemon.wait_until(self._answers, START_SECONDS)

    def stop(self) -> None:
        """Stop it; buckets, port and credentials are kept."""
        self.daemon.stop()

    def is_running(self) -> bool:
        """Whether the server process is running."""
        return self.daemon.pid() is not None

    @property
    def has_started(self) -> bool:
        """Whether it was ever started, and has a port and credentials."""
        return self._settings_file.exists()

    @property
    def buckets(self) -> Path:
        """The folder that holds one folder per bucket: read it, but write through S3."""
        return self.directory / "buckets"

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://{self.address}:{self._settings().port}"

    def environment(self) -> dict[str, str]:
        """Environment of a client (read by botocore, s3fs and the AWS tools)."""
        settings = self._settings()
        return {
            "AWS_ACCESS_KEY_ID": settings.access_key,
            "AWS_SECRET_ACCESS_KEY": settings.secret_key,
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def create_bucket(self, name: str) -> None:
        """Create a bucket unless it exists."""
        settings = self._settings()
        client = _session().create_client(
            "s3",
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=settings.access_key,
            aws_secret_access_key=settings.secret_key,
        )
        try:
            client.create_bucket(Bucket=name)
        except client.exceptions.BucketAlreadyOwnedByYou:
            pass
        finally:
            client.close()

    def _attribute_options(self) -> list[str | Path]:
        """Store objects' attributes elsewhere if the file system has no extended attributes."""
        try:
            os.setxattr(self.buckets, "user.devcluster", b"1")
        except OSError:
            attributes = self.directory / "attributes"
            attributes.mkdir(exist_ok=True)
            return ["--sidecar", attributes]
        return []

    def _settings(self) -> _Settings:
        if self._settings_file.exists():
            return _Settings(**json.loads(self._settings_file.read_text()))
        key = secrets.token_hex(8)
        (port,) = reserved_ports(1, self.directory)
        return self._save(_Settings(port, f"devcluster{key}", secrets.token_urlsafe(24)))

    def _settings_for_start(self) -> _Settings:
        """The saved settings, with a new port only if another process has taken ours."""
        settings = self._settings()
        if self.is_running() or is_free(settings.port):
            return settings
        (port,) = reserved_ports(1, self.directory)
        return self._save(dataclasses.replace(settings, port=port))

    def _save(self, settings: _Settings) -> _Settings:
        write_private(self._settings_file, json.dumps(dataclasses.asdict(settings)))
        return settings

    @property
    def _settings_file(self) -> Path:
        return self.directory / "s3.json"

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False
