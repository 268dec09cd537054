"""The operator's process: queue, leader election, probes, metrics, logs."""
