"""The trainer: prepare data, train proxies, evaluate checkpoints. Knows nothing of Kubernetes
beyond SIGTERM, exit codes and a termination message."""
