"""Rollouts on Kubernetes, with kills of the daemon in each phase."""
