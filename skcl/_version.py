"""The version of skcl."""

__version__ = "0.1.0"
