"""The built-in models; a model is one file with a constant `MODEL`."""
