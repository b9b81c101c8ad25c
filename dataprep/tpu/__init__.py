"""Operations on TPU virtual machines through `gcloud`.

gcloud.py   argument lists (pure)             startup.py  the start-up script (pure)
fleet.py    runs them, on every worker        staging.py  code, as one reproducible archive
worker.py   what runs on the workers          profiles.py traces of all workers as one run
"""
