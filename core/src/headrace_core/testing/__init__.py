"""Test doubles shipped with the product: a manual clock, a file system that crashes. Not for production."""
