"""The console in Chromium."""
