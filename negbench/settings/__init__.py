"""Settings: options of commands, recipes and layers, and the configuration that they make."""
