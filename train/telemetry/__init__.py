"""What a run reports: log lines, TensorBoard events, profiles, and its diagnosis.

logs.py              JSON lines on stdout and in log.txt, a progress bar
events.py            TensorBoard's event files
wandb_run.py         runs of Weights & Biases
best.py              the best accuracy of a run
profiling.py         traces of some steps
diagnosis.py         `--diagnose`: what the run would wait for
"""

__all__ = ["best", "diagnosis", "events", "logs", "profiling", "wandb_run"]
