"""The verdict on values that take turns on the same running servers, in blocks of time."""
