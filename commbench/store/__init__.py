"""A run's directory: its formats, each with its writer and reader."""
