"""The files of the web console; agent.api.routes.console serves them."""
