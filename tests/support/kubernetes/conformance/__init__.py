"""What a cluster must do, whether a real one or the one in memory: the tests of both."""
