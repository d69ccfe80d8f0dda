"""An autopilot for vLLM servers; the packages are links to the folders beside this one."""
