"""The handlers of the REST API, one module for each resource."""
