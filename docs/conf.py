"""How `make docs` makes HTML of these pages (Sphinx, MyST). They are plain Markdown, readable without it."""

project = "flettner"
author = "the authors of flettner"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = "flettner"
html_copy_source = False
