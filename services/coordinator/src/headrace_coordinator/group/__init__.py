"""Consumer groups (pure): membership and assignments (KIP-848). ``groups.Groups`` is the entry point of this
package."""
