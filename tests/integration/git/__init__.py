"""Pull requests, with real git repositories."""
