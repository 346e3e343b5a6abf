"""Ping-pongs of which the second pair misbehaves; its process imports little else."""

import os
import time

from commbench.errors import VerificationError
from commbench.workloads.pingpong import PingPong


class Wrong(PingPong):
    """Finds every second message wrong."""

    def verify(self, payload, reply, *, whole):
        if payload[0] % 2:
            raise VerificationError("this is not what was sent")


class WrongAtLast(PingPong):
    """Finds the last message of two bytes wrong, of which every byte is compared."""

    def verify(self, payload, reply, *, whole):
        if whole and payload.size == 2:
            raise VerificationError("this is not what was sent")


class Dies(PingPong):
    """Ends the process that sends."""

    def stamp(self, payload, number):
        if number >> 32 == 1:
            os._exit(7)


class Slow(PingPong):
    """Every window of the second pair takes long."""

    def stamp(self, payload, number):
        if number >> 32 == 1:
            time.sleep(0.05)
        super().stamp(payload, number)
