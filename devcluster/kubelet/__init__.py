"""The process node's agent: a test double of a kubelet that runs containers as local processes.

It talks to a real API server as a kubelet does (node, lease, pod status, deletion), but has no
images, isolation or limits. README.md lists what it does and does not do.
"""
