"""A real S3 server (versitygw) over a folder, for tests and the demo."""

import os
import urllib.request
from pathlib import Path

from devcluster.build import tool_path
from devcluster.daemon import Daemon
from devcluster.files import kept_secrets
from devcluster.ports import KEPT, kept_ports, start_on_free_ports

REGION = "us-east-1"
START_SECONDS = 30


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
        (port,) = kept_ports(1, self.directory, replace_taken=not self.is_running())
        self.buckets.mkdir(parents=True, exist_ok=True)
        command: list[str | Path] = [program, "--port", f"{self.address}:{port}", "--quiet"]
        command += ["--keep-alive", "--region", REGION, "--health", "/health"]
        command += ["posix", *self._attribute_options(), self.buckets]
        root = {f"ROOT_{name}": value for name, value in self._credentials().items()}
        self.daemon.start(command, {"PATH": os.defpath, **root})
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
        return (self.directory / KEPT).exists()

    @property
    def buckets(self) -> Path:
        """The folder that holds one folder per bucket: read it, but write through S3."""
        return self.directory / "buckets"

    @property
    def url(self) -> str:
        """The endpoint."""
        (port,) = kept_ports(1, self.directory)
        return f"http://{self.address}:{port}"

    def environment(self) -> dict[str, str]:
        """Environment of a client (read by botocore, s3fs and the AWS tools)."""
        return {f"AWS_{name}": value for name, value in self._credentials().items()} | {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
        }

    def create_bucket(self, name: str) -> None:
        """Create a bucket unless it exists."""
        (self.buckets / name).mkdir(parents=True, exist_ok=True)

    def _attribute_options(self) -> list[str | Path]:
        """Store objects' attributes elsewhere if the file system has no extended attributes."""
        try:
            os.setxattr(self.buckets, "user.devcluster", b"1")
        except OSError:
            attributes = self.directory / "attributes"
            attributes.mkdir(exist_ok=True)
            return ["--sidecar", attributes]
        return []

    def _credentials(self) -> dict[str, str]:
        names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
        return kept_secrets(self.directory / "credentials.json", names)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
