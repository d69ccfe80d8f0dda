"""Traffic: the weights of an HTTPRoute of the Gateway API, and the guard that ends a dead daemon's lease."""
