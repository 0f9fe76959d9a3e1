"""Test doubles that are shipped with the product, such as a manual clock and a file system that crashes. Not for
production."""
