"""One module for each service that identifies callers of the API by tokens of its own."""
