"""Whole rollouts, judged: equal greens must never go back for cause, bad ones always."""
