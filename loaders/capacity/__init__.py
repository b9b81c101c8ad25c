"""The hosts and cores that training on a pod needs, for `dataprep plan-input`.

Measured costs of an image are compared with a table of machines; docs/capacity.md has the arithmetic.
"""

__all__ = ["host_cores", "input_costs", "plan", "traffic"]
