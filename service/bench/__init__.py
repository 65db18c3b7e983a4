"""Side-by-side measurements. Nothing of the service imports this."""
