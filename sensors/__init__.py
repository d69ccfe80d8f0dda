"""Sources of samples, one module or package a source."""
