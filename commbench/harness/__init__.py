"""What runs launches and observes them while the clock runs."""
