"""The decisions for one target as one pure function, `step`, with one module for each phase."""
