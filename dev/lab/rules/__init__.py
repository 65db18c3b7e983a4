"""Published ways to reveal a block that are no mode of the service, measured beside those that are.

One file a method: frozen classes like the modes' (`service/decode/mode.py`), run by the unchanged engine, and a
`Method` that names the source and the settings that were tried. `methods.py` lists them. What was found stands in
dev/lab/performance-log.md, "Published rules beside each other".

`python -m dev.lab.rules reported --out FILE` measures all of them, and the service's own plans, in turns.
"""
