"""The order of all rules, of lint and of policies: which one is followed first, and the slug of each."""
