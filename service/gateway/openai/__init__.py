"""OpenAI's completions and chat completions over the same `Work` as POST /generate.

A body goes through `fields` (which names are taken), `schemas` (OpenAI's own fields), `convert` (one `Work`
a choice); what comes back through `dialect` (either route's JSON) and `answers` or `stream`. `routes` is
mounted by the ingress; nothing else of the service knows this package.
"""
