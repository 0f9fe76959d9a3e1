"""The metadata quorum: one voter today; the rooms are laid out for many."""
