"""Training of MRP modules for backbones of any family but I-DLM, and the recipe of the demo checkpoint."""
