"""From samples to readings: aggregation over a window, and the time series of the charts."""
