"""Demo data: real photographs, packed as ImageNet, COCO and LAION are distributed.

images.py     cuts images out of photographs that two packages contain, and makes files that are not plain JPEGs
layouts.py    writes the archives of COCO, with annotations, and ImageNet
make.py       makes all images of a demo in parallel, and packs them; also a LAION table and the files behind its URLs
"""
