"""The version of the distribution, client and server alike."""

__version__ = "0.1.0"
