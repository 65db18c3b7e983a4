"""`mrp_steps: "auto"`: the costs of forwards, the gains of drafts, the number of drafts worth their cost."""
