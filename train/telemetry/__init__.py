"""Reports of a run: log lines, TensorBoard events, profiles, and its diagnosis.

logs.py              JSON lines on stdout and in log.txt, a progress bar, TensorBoard's files, Weights & Biases, traces
goodput.py           time since the first start by cause, over all attempts
diagnosis.py         `diagnose`: what the run would wait for
"""
