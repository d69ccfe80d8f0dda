"""A gateway for tests: HTTPRoutes of the test cluster, carried out by a real Envoy."""
