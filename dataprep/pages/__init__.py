"""Self-contained HTML pages for `inspect`, `bench` and `diagnose`, and the numbers behind their charts.

page.py    renders a template and writes the file; says what to install where that is missing
charts.py  bars, histograms and areas as shares of their charts; pure

The templates are dataprep/data/page.html.j2 (the frame and its style) and charts.html.j2 (a macro a kind of chart). A
page of one command is a template that extends the frame, and lies in the `data` folder of that command's package.
"""
