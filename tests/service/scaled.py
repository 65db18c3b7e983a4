"""`python -m tests.service.scaled serve …`: `mrp-serve`, but it also runs services that scale, as clusters do."""

from __future__ import annotations

from service import app
from service.cli import preflight
from service.cli.main import main

if __name__ == "__main__":
    preflight._check_settings = lambda settings: None
    app.UPSCALE_DELAY_S, app.DOWNSCALE_DELAY_S = 0.0, 2.0
    main()
