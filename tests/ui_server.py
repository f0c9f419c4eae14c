"""The page's server in a thread, and tables to link on it, for the tests."""

import socket
import threading

import httpx
import numpy as np
import pandas as pd
import uvicorn

from keyless.ui.app import Desk, make_app
from keyless.ui.folder import Folder
from keyless.ui.guard import Guard
from keyless.ui.jobs import Jobs

__all__ = ["Page", "hard_tables"]


class Page:
    """The server in a thread, and a browser that was let in."""

    def __init__(self, root, *, max_upload=10_000):
        self.folder = Folder(root, max_upload=max_upload)
        self.jobs = Jobs(self.folder.own / "jobs", self.folder.root)
        self.desk = Desk(self.folder, self.jobs)
        self.told, self._browsers = [], []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.home = f"http://127.0.0.1:{self.port}"
        self.guard = Guard(make_app(self.desk), port=self.port, renewed=self.told.append)
        self.desk.address = lambda: self.guard.address
        self._server = uvicorn.Server(uvicorn.Config(self.guard, log_level="critical", lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)
        self._thread.start()
        self.client = self.browser()
        assert self.client.get(self.guard.address).status_code == 200

    def browser(self):
        headers = {"origin": self.home}
        # A connection is used once: the server closes idle ones, perhaps just when a slow machine asks again.
        once = httpx.Limits(max_keepalive_connections=0)
        self._browsers.append(
            httpx.Client(base_url=self.home, headers=headers, follow_redirects=True, timeout=60, limits=once)
        )
        return self._browsers[-1]

    def close(self):
        for client in self._browsers:
            client.close()
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        self.jobs.close()


def hard_tables():
    """Two tables that are not linked without help, and the right partner of each patient."""
    rng = np.random.default_rng(1)
    count, rank, noise = 80, 5, 0.5
    factors = rng.normal(size=(count, rank))
    # Each table has one more factor of its own.
    clinic, lab = (
        factors @ rng.normal(size=(rank, width))
        + rng.normal(size=(count, 1)) @ rng.normal(size=(1, width))
        + noise * rng.normal(size=(count, width))
        for width in (9, 8)
    )
    order = rng.permutation(count)
    clinic = pd.DataFrame(clinic, columns=[f"vital {k}" for k in range(9)])
    lab = pd.DataFrame(lab[order], columns=[f"assay {k}" for k in range(8)])
    clinic.insert(0, "patient", [f"P{k:02d}" for k in range(count)])
    lab.insert(0, "sample", [f"S{k:02d}" for k in range(count)])
    return clinic, lab, {f"P{entity:02d}": f"S{place:02d}" for place, entity in enumerate(order)}
