"""The operator's process: settings, watches, queue, probes, metrics, logs."""
