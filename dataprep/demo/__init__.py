"""Demo data: real photographs, packed as ImageNet, COCO and LAION are distributed.

images.py     cuts images out of photographs that two packages contain
oddities.py   makes files that are not plain JPEGs, with the expected result of a build for each
layouts.py    writes the archives of COCO and ImageNet
make.py       makes all images of a demo in parallel, and packs them
web_table.py  writes a LAION table and the files behind its URLs, and serves them
"""
