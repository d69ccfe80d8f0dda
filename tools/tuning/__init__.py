"""`flettner tune`: tries settings on a spare server and ends in a command line and a report."""
