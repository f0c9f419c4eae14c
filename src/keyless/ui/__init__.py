"""The page: link, look, answer, link again, in a browser on the same machine. Needs the extra `ui`.

The work is done by the ordinary command `keyless link --out`, in a process of its own, so that what the page makes is a
plain run folder. What the page itself must remember is in files of the folder it was started in.
"""

from __future__ import annotations

from keyless.ui.server import open_page

__all__ = ["open_page"]
