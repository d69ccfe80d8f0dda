"""`flettner demo`: a demonstration on this machine with the real daemon, proxy, journal and API."""
