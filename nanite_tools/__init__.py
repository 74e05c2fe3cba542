"""Measure a PC, place a mixture-of-experts model on it, build the runtime, launch it, prove the answer."""

__version__ = "0.1.0"
