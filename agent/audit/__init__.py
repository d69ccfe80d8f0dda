"""The journal: one hash-chained log that is both the audit trail and the source of recovery."""
