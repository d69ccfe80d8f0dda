"""One record for each request, from the access log of Envoy."""
