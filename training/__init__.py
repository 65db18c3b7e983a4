"""Training of MRP modules for any SDAR backbone, and the recipe of the demo checkpoint."""
