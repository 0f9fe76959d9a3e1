"""Consumer groups, pure: who is in them and who reads what (KIP-848). ``groups.Groups`` is the door."""
