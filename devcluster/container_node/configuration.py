"""Configuration files of containerd and kubelet on a machine that lends itself as a node."""

from pathlib import Path
from typing import Any

from devcluster.container_node.network import GATEWAY
from devcluster.container_node.requirements import CNI_FOLDER

PAUSE_IMAGE = "localhost/isoloss/pause:1"

CONTAINERD = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Where the machine itself is a container or a small virtual machine, it may forbid lowering
  # oom_score_adj; runc then dies with "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def containerd_configuration(folder: Path, *, images: Path, socket: Path, cni: Path) -> str:
    """containerd's config.toml: state in `folder`, images in `images`."""
    return CONTAINERD.format(
        root=images,
        state=folder / "containerd",
        socket=socket,
        pause=PAUSE_IMAGE,
        plugins=CNI_FOLDER,
        cni=cni,
    )


def kubelet_configuration(folder: Path, *, socket: Path, key: Path, certificate: Path) -> Any:
    """A KubeletConfiguration: no eviction, no image collection, no iptables, either cgroup version."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": GATEWAY,
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        # The API server of the development cluster shows no client certificate.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "resolvConf": "",
        "makeIPTablesUtilChains": False,
        "podLogsDir": str(folder / "pod-logs"),
        "healthzPort": 0,
        # The machine's other work must not have pods evicted or images deleted.
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
    }
