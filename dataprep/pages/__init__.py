"""Self-contained HTML pages for `inspect` and `diagnose`, and the numbers behind their charts.

page.py    renders a template and writes the file; tells what to install if a package is missing
charts.py  bars, histograms and areas as shares of their charts; pure

The templates are dataprep/data/page.html.j2 (the frame and its style) and charts.html.j2 (a macro for each kind of
chart). The page of a command is a template that extends the frame; it is in the `data` folder of the command's package.
"""
