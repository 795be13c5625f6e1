"""The service: composes the engine, the signals and the store behind HTTP and a command line."""

__version__ = "0.1.0"
