"""The recipe of the demo checkpoint, and of MRP for any SDAR backbone. Imports service.model, never ray."""
