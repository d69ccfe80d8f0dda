"""Output for a terminal: tables, cell widths, full-screen views."""
