"""The cluster's state and the rules by which it changes, pure: decide, then replay."""
