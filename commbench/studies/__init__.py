"""What runs and analyses in turns."""
