"""A node with a real kubelet, containerd and a pod network. Linux, root."""
