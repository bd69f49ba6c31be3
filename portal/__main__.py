"""`python -m portal`: serve until SIGTERM or SIGINT; answer what was taken, then end."""

import math
import signal
import sys
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from portal.app import create, doored
from portal.server import KEEP_ALIVE_SECONDS, Protocol, Server, bind
from runtime import logs
from runtime.beginning import begun
