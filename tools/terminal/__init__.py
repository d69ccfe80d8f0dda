"""Output for a terminal: tables, values as text, messages, cell widths, full-screen views."""
