"""What is computed or exchanged while the clock runs."""
