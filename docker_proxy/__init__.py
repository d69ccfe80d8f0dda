"""An allow-listing proxy before the Docker Engine's socket, which is root to whoever may write to it."""
