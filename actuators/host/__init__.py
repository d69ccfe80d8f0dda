"""What is shared by the engines of one host: /proc, process groups, marks of ownership, logs."""
