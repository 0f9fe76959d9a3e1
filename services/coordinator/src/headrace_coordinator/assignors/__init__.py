"""Who reads what: pure functions from members and topics to an assignment (``spec`` says what they take and give)."""
