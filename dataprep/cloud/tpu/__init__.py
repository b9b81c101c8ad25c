"""Operations on TPU virtual machines through `gcloud`.

command_lines.py  argument lists of gcloud (pure)
find.py           finds a TPU and its workers by name
fleet.py          reaches all workers: lines of shell, actions of worker.py, files
worker.py         the program that is copied to the workers and acts there
jobs.py           a command on all workers: started once, followed, ended
startup.py        the start-up script of a worker (pure)
staging.py        a folder of code as one reproducible archive
profiles.py       traces of all workers as one run (pure)
"""
