"""This machine and its processes.

program.py      start of a program: supported machines, its module path, rare garbage collection
processes.py    worker processes and daemon threads, and their end
heartbeat.py    signs of life of workers, so that hangs are noticed
cpu.py          processors, memory and CPU time; measure.py compares programs by them
piped.py        tables on a terminal or in a pipe
versions.py     versions of codecs, which a plan records
"""
