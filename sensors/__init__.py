"""What trimtab hears: one file a source."""
