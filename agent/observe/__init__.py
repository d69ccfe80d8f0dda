"""From samples to readings: aggregation over a window, and a row a minute for the charts."""
