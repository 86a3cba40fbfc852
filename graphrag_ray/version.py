"""The version of this package. It is stored here so that a checkout knows it without installation."""

__version__ = "0.1.0"
