"""The journal: one hash-chained file that is both the audit trail and the memory of a restart."""
