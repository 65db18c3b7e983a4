"""Points become pictures and one page that needs nothing else."""
