"""The group and transaction coordinator: the room is here, nothing in it is built yet (see docs/architecture.md)."""
