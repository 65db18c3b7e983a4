"""The playground at `/`: one page that shows an answer while it is decoded. `routes.py` serves the files of `page/`."""
