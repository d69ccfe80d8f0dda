"""An allow-listing proxy for the Docker Engine's socket, because write access to it is root access."""
