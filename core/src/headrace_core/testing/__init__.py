"""Test doubles shipped as a product: a manual clock, a file system that crashes. Nothing here runs in production."""
