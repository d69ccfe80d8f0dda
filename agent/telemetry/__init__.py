"""What the daemon reports of itself: logs, its own metrics, systemd notifications."""
