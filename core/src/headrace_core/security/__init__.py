"""Security: who calls (principal, caller), what a caller may do, and how a caller proves who it is."""
