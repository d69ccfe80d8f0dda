"""One module for each kind of service that holds git repositories and their pull requests."""
