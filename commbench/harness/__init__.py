"""Run launches and measure them."""
