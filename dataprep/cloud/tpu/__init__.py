"""Operations on TPU virtual machines through `gcloud`.

command_lines.py  argument lists of gcloud, and the start-up script of a worker (pure)
fleet.py          reaches all workers: shell lines, actions of worker.py, files, code, traces
worker.py         the program that is copied to the workers and acts there
jobs.py           a command on all workers: started once, followed, ended
manifest.py       a JobSet for GKE
"""
