"""The files of the web console; flettner.agent.api.routes.console serves them."""
