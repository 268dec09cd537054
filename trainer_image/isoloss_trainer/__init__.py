"""The trainer: prepares data, trains proxies, evaluates checkpoints. Of Kubernetes it knows SIGTERM,
exit codes and the termination message."""
