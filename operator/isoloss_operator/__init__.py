"""The shell around the core: the only user of kopf, the Kubernetes API and Prometheus."""
