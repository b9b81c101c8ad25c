"""Devices with other speeds alone than in a run: beside a program that ends or begins meanwhile, or by contention."""

import time

from loaders.diagnosis.observed_run import parse_simulated
from loaders.diagnosis.stages import WARM_UP_STEPS

SLOW_STEP_S = 0.2


class DisturbedDevice:
    """Takes 400 images/s, after as many slow steps as the warm-up and a short measurement have."""

    name = "disturbed"

    def __init__(self):
        self._device = parse_simulated("simulated:400")
        self._slow_steps = 2 * WARM_UP_STEPS

    def put(self, images_NHWC, labels_N):
        return self._device.put(images_NHWC, labels_N)

    def step(self, resident):
        if self._slow_steps:
            self._slow_steps -= 1
            time.sleep(SLOW_STEP_S)
        self._device.step(resident)


class CrowdedDevice:
    """Takes 400 images/s alone, and slow steps as soon as batches are sent while it works."""

    name = "crowded"

    def __init__(self, compute_threads=0):
        self.compute_threads = compute_threads
        self._device = parse_simulated("simulated:400")
        self._batches = 0

    def use_threads(self, count):
        self.compute_threads = count

    def put(self, images_NHWC, labels_N):
        self._batches += 1
        return self._device.put(images_NHWC, labels_N)

    def step(self, resident):
        if self._batches > 1:
            time.sleep(SLOW_STEP_S)
        self._device.step(resident)
