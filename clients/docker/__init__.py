"""The client of the Docker Engine that the docker actuator and the docker_events sensor share."""
