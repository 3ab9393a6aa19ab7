#!/usr/bin/env python3
"""Follows the events of enforcer, and goes on where it was: over restarts of the daemon and of itself.

    follow.py [SOCKET [CURSOR-FILE]]

Prints each event as a line of JSON; `process` is where something else is done with it.
"""

import http.client
import json
import os
import signal
import socket
import sys
import time

FIRST_WAIT = 0.25
LONGEST_WAIT = 5.0
# The daemon sends something every 15 seconds.
SILENCE = 60
STOP = {signal.SIGTERM, signal.SIGINT}


def process(line):
    """Does what is to be done with an event. Types and keys are added: ignore those that you do not know."""
    event = json.loads(line)
    if event["type"] == "dev.enforcer.stream.gap":
        say(f"{event['data']['count']} events are lost: they are no longer kept")
    print(line, flush=True)


def say(text):
    print(f"follow.py: {text}", file=sys.stderr, flush=True)


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path):
        super().__init__("enforcer", timeout=SILENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Refused(Exception):
    """An answer that is no stream: its status, and what the server says."""


def blocks(answer):
    """The cursor and the line of each event. A cursor alone is the place behind events that a filter left out."""
    cursor = data = None
    # What is cut off before its empty line comes again.
    while line := answer.readline():
        name, _, value = line.decode().rstrip("\r\n").partition(": ")
        if name == "id":
            cursor = value
        elif name == "data":
            data = value
        elif not name:
            yield cursor, data
            cursor = data = None


def events(path, cursor):
    """One connection: what comes behind the cursor, until the daemon ends or the connection does."""
    connection = Connection(path)
    try:
        headers = {"Accept": "text/event-stream"}
        if cursor:
            headers["Last-Event-ID"] = cursor
        connection.request("GET", "/v1/events", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(answer.status, answer.read().decode())
        yield from blocks(answer)
        say(f"{path}: the daemon has ended the stream")
    except (OSError, http.client.HTTPException) as error:
        say(f"{path}: {error}")
    finally:
        connection.close()


def load(path):
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except FileNotFoundError:
        return None


def save(path, cursor):
    """The file has the old cursor or the new one, never half of one, also after a power cut."""
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(cursor + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


def follow(path, cursor_file):
    cursor = load(cursor_file)
    wait = FIRST_WAIT
    while True:
        try:
            for place, line in events(path, cursor):
                wait = FIRST_WAIT
                # A signal waits until the event is processed and the cursor behind it.
                signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
                if line is not None:
                    process(line)
                if place is not None:
                    save(cursor_file, place)
                    cursor = place
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
        except Refused as refused:
            status, said = refused.args
            if status == http.client.GONE:
                say(f"{said}; going on with the oldest event that is kept")
                cursor = None
                continue
            if status < 500:
                sys.exit(f"follow.py: HTTP status {status}: {said}")
            say(f"HTTP status {status}: {said}")
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


if __name__ == "__main__":
    for number in STOP:
        signal.signal(number, lambda *_: sys.exit(0))
    follow(*(sys.argv[1:] + ["/run/enforcer/observe.sock", "enforcer.cursor"][len(sys.argv) - 1 :]))
