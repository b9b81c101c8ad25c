"""Demo data: real photographs, packed as ImageNet, COCO and LAION are distributed.

images.py     cuts images out of photographs that two packages carry
oddities.py   makes files that are no plain JPEGs, and says what a build must do with each
layouts.py    writes the archives of COCO and ImageNet
make.py       makes all images of a demo in parallel, and has them packed
web_table.py  writes a LAION table and the files behind its URLs, and serves them
"""
