"""The files of the web console; agent.api.routes_console serves them."""
