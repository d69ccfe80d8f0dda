"""Shared by the engines of one host: /proc, process groups, ownership marks, logs, free memory."""
