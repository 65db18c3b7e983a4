"""The choice of drafts for `mrp_steps: "auto"`: costs of forwards, reliability of drafts, prices."""
