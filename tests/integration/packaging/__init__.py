"""The Debian package, the container image and the Helm chart."""
