"""Rollouts under load, with faults at random moments."""
