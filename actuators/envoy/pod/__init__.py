"""The program of an Envoy pod: it follows the published routes and keeps Envoy's files."""
