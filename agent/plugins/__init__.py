"""Finding, checking and building policies, sensors, actuators and notifiers, shipped or third-party."""
