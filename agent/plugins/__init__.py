"""Discovery, validation and construction of policies, sensors, actuators and notifiers."""
