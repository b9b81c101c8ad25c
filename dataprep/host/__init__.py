"""This machine and its processes: processors, memory and CPU time, and the heartbeats of workers."""
