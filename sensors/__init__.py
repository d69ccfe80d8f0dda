"""Sources of samples; each is a module or a package."""
