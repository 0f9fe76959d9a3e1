"""The cluster's state and the rules that change it (pure). A rule decides which records to write; the replay of the
records changes the state."""
