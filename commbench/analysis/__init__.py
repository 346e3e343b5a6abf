"""What the records of a run say: one lazy object, and what disturbed the measurement."""
