"""From a run's frames to text: one format a file."""
