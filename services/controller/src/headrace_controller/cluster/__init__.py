"""The cluster's state and the rules that change it (pure): a rule decides on records, and replaying the records changes
the state."""
