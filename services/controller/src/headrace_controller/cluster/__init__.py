"""The cluster's state and the rules that change it (pure): a rule decides which records to write, and the replay of the
records changes the state."""
