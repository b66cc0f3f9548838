"""torch's op_db."""
