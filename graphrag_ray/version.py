"""The version of this package, known also where it is a folder that was not installed."""

__version__ = "0.1.0"
