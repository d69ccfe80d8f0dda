"""The daemon's own telemetry: logs, self-metrics, notifications to systemd."""
