"""Keys and certificates of one development cluster: a CA, and one server certificate with its key."""

from pathlib import Path

from devcluster.files import write_private

NAMES = (
    *("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"),
    *("127.0.0.1", "10.96.0.1", "10.231.0.1"),
)


class KeyFiles:
    """The paths of the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = folder / "ca.crt"
        """Certificate of the CA that clients trust."""
        self.certificate, self.key = folder / "server.crt", folder / "server.key"
        """Of the API server and of the node's log endpoint. The key also signs service account tokens."""

    def ensure(self) -> None:
        """Create the files unless they exist; the key, written last, marks the set as complete."""
        if self.key.exists():
            return
        import trustme  # here, because a cluster needs it once and every test imports this module

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = trustme.CA(organization_name="devcluster")
        server = authority.issue_cert(*NAMES)
        authority.cert_pem.write_to_path(self.ca)
        server.cert_chain_pems[0].write_to_path(self.certificate)
        # As OpenSSL has always written it: of that an API server takes the public half, too.
        write_private(self.key, server.private_key_pem.bytes().decode())
