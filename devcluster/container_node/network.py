"""The pod network of a container node: one bridge, and the Service address of the API server on it.

Nothing is forwarded or masqueraded: pods reach each other and this machine, and no iptables rule
is written. There is no kube-proxy, so the one Service that pods need is answered by a process
that listens on its address (forwarder.py).
"""

import json
import subprocess
from pathlib import Path

BRIDGE = "isoloss0"
GATEWAY = "10.231.0.1"
SUBNET = "10.231.0.0/24"
API_SERVICE = "10.96.0.1"
"""First address of the control plane's service range: the Service `kubernetes`."""


def create_bridge() -> None:
    """Create the bridge with both addresses, or take over one left behind."""
    delete_bridge()
    _ip("link", "add", BRIDGE, "type", "bridge")
    for address in (f"{GATEWAY}/24", f"{API_SERVICE}/32"):
        _ip("address", "add", address, "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")


def delete_bridge() -> None:
    """Delete the bridge; one that is not there is fine."""
    if bridge_exists():
        _ip("link", "delete", BRIDGE)


def bridge_exists() -> bool:
    """Whether the machine has the bridge."""
    return Path("/sys/class/net", BRIDGE).exists()


def write_cni_configuration(folder: Path) -> None:
    """The bridge and loopback plugins, as containerd reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    # As a gateway the plugin would switch on IP forwarding for the whole machine.
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": False, "ipMasq": False}
    addresses = {
        "type": "host-local",
        "dataDir": str(folder / "addresses"),
        "ranges": [[{"subnet": SUBNET, "gateway": GATEWAY}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [{**bridge, "ipam": addresses}]
    network = {"cniVersion": "0.4.0", "name": "isoloss", "plugins": plugins}
    (folder / "10-isoloss.conflist").write_text(json.dumps(network, indent=1))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
