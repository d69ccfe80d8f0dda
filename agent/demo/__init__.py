"""`trimtab demo`: the whole story on this machine, with the real daemon, proxy, journal and API."""
