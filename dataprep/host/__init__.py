"""This machine and its processes: processors, memory and CPU time, heartbeats of workers, and its terminal."""
