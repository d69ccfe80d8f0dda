"""Complete sites: daemon, proxy, servers, traffic."""
